// Markdown as a model writes it, into elements: blocks first, then what is inline. No HTML is ever interpreted: every
// piece of text becomes a text node, a link's address must be http or https, and there are no images.

import { copyButton, make } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*)$/s;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/s;
const RULE = /^ {0,3}([-*_])(\s*\1){2,}\s*$/;
const DIVIDER = /^\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?$/; // of a trimmed line
// All are linear: no repeat meets another one of the same characters where the rest may fail, so that hostile output cannot
// stall the page.
const INLINE = /(`{1,3})([^`]+)\1|\*\*([^*\n]+)\*\*|\*([^*\s][^*\n]*)\*|\[([^\]\n]{1,400})\]\(([^)\s]{1,2000})\)/g;
const MAX_DEPTH = 8;

/** The elements of a text. */
export function markdown(text) {
  return blocks(text.split("\n"), 0);
}

function blocks(lines, depth) {
  const found = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) found.push(make("p", ...inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at += 1) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (fence) {
      flush();
      const end = closing(lines, at + 1, fence[1]);
      found.push(codeBlock(lines.slice(at + 1, end).join("\n"), fence[2]));
      at = end;
    } else if (!line.trim()) {
      flush();
    } else if (HEADING.test(line)) {
      flush();
      const [, marks, title] = HEADING.exec(line);
      found.push(make(`h${Math.min(marks.length + 2, 5)}`, ...inline(title)));
    } else if (RULE.test(line)) {
      flush();
      found.push(make("hr"));
    } else if (line.startsWith(">") && depth < MAX_DEPTH) {
      flush();
      const end = until(lines, at, (one) => one.startsWith(">"));
      found.push(make("blockquote", ...blocks(lines.slice(at, end).map((one) => one.replace(/^> ?/, "")), depth + 1)));
      at = end - 1;
    } else if (ITEM.test(line) && depth < MAX_DEPTH) {
      flush();
      const end = until(lines, at, (one) => ITEM.test(one) || /^\s{2,}\S/.test(one));
      found.push(list(lines.slice(at, end), depth));
      at = end - 1;
    } else if (line.includes("|") && at + 1 < lines.length && DIVIDER.test(lines[at + 1].trim())) {
      flush();
      const end = until(lines, at + 2, (one) => one.includes("|"));
      found.push(table(line, lines.slice(at + 2, end)));
      at = end - 1;
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return found;
}

function closing(lines, from, fence) {
  for (let at = from; at < lines.length; at += 1) {
    if (lines[at].trim().startsWith(fence) && !lines[at].trim().slice(fence.length).replaceAll(fence[0], "")) return at;
  }
  return lines.length; // still being written
}

function until(lines, from, holds) {
  let end = from;
  while (end < lines.length && holds(lines[end])) end += 1;
  return end;
}

function list(lines, depth) {
  const [, indent, mark] = ITEM.exec(lines[0]);
  const made = make(/\d/.test(mark) ? "ol" : "ul");
  if (/^\d/.test(mark)) made.start = Number.parseInt(mark, 10);
  let item = [];
  const flush = () => {
    if (item.length === 1) made.append(make("li", ...inline(item[0])));
    else if (item.length) made.append(make("li", ...inline(item[0]), ...blocks(item.slice(1), depth + 1)));
    item = [];
  };
  for (const line of lines) {
    const match = ITEM.exec(line);
    if (match && match[1].length <= indent.length) {
      flush();
      item.push(match[3]);
    } else {
      item.push(line.slice(Math.min(indent.length + 2, line.search(/\S/))));
    }
  }
  flush();
  return made;
}

function table(head, rows) {
  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());
  const row = (line, kind) => make("tr", ...cells(line).map((cell) => make(kind, ...inline(cell))));
  return make("table", make("thead", row(head, "th")), make("tbody", ...rows.map((line) => row(line, "td"))));
}

function codeBlock(text, language) {
  const head = make("div.head", make("span", language || "code"), copyButton(() => text));
  return make("div.block", head, make("pre", make("code", text)));
}

/** Text with code, bold, italic and links, as nodes. */
function inline(text) {
  const found = [];
  let from = 0;
  for (const match of text.matchAll(INLINE)) {
    if (match.index > from) found.push(text.slice(from, match.index));
    const [whole, , code, bold, italic, label, address] = match;
    if (code !== undefined) found.push(make("code", code));
    else if (bold !== undefined) found.push(make("strong", bold));
    else if (italic !== undefined) found.push(make("em", italic));
    else found.push(link(label, address) ?? whole);
    from = match.index + whole.length;
  }
  if (from < text.length) found.push(text.slice(from));
  return found;
}

function link(label, address) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  const made = make("a", label);
  made.href = url.href;
  made.target = "_blank";
  made.rel = "noopener noreferrer nofollow";
  made.title = url.href; // a label may claim another address
  return made;
}
