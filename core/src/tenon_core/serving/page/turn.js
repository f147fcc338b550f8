// One answer of the model on the page: what it thought, what it said, the tools it calls, and what it cost.

import { button, copyButton, make } from "./dom.js";
import { markdown } from "./markdown.js";

export class Answer {
  constructor() {
    this.content = "";
    this.reasoning = "";
    this.calls = [];
    this.began = performance.now();
    this.first = 0;
    this.usage = null;
    this.reason = null;
    this.said = make("div.said.caret");
    this.body = make("div");
    this.foot = make("div.foot");
    this.element = make("article.turn.assistant", make("div.who", "Model"), this.body, this.said, this.foot);
    this.pending = false;
    this.cost = 0;
    this.failed = false;
  }

  /** Whether nothing came of it: neither it nor its question is said again. */
  get isLost() {
    return this.failed && !this.content && !this.calls.length;
  }

  /** Take one piece of a stream in. */
  take(piece) {
    if (piece.usage) this.usage = piece.usage;
    const choice = piece.choices?.[0];
    if (!choice) return;
    const delta = choice.delta ?? {};
    const thought = delta.reasoning ?? delta.reasoning_content;
    if (!this.first && (delta.content || thought || delta.tool_calls)) this.first = performance.now();
    if (thought) this.reasoning += thought;
    if (delta.content) this.content += delta.content;
    for (const part of delta.tool_calls ?? []) this.takeCall(part);
    if (choice.finish_reason) this.reason = choice.finish_reason;
    this.draw();
  }

  takeCall(part) {
    const call = (this.calls[part.index] ??= { id: "", name: "", arguments: "" });
    if (part.id) call.id = part.id;
    if (part.function?.name) call.name += part.function.name;
    if (part.function?.arguments) call.arguments += part.function.arguments;
  }

  /** Draw soon: at most once a frame, and less often where drawing takes long. */
  draw() {
    if (this.pending) return;
    this.pending = true;
    setTimeout(() => requestAnimationFrame(() => this.drawNow()), Math.min(this.cost * 4, 400));
  }

  drawNow() {
    this.pending = false;
    const began = performance.now();
    this.said.replaceChildren(...markdown(this.content));
    if (this.reasoning) this.drawThought();
    this.cost = performance.now() - began;
    this.element.dispatchEvent(new CustomEvent("grown", { bubbles: true }));
  }

  drawThought() {
    if (!this.thought) {
      this.thoughtText = make("div");
      this.thought = make("details.thought", make("summary", "Reasoning"), this.thoughtText);
      this.thought.open = true;
      this.body.append(this.thought);
    }
    this.thoughtText.textContent = this.reasoning.trim();
  }

  /** The end: tool calls with a place for their results, figures, buttons. error: where it broke off. */
  finish({ error, onResults, onAgain }) {
    this.drawNow();
    this.said.classList.remove("caret");
    this.calls = this.calls.filter(Boolean);
    this.failed = Boolean(error);
    if (this.thought && this.content) this.thought.open = false;
    for (const call of this.calls) this.element.insertBefore(this.drawCall(call, onResults), this.foot);
    if (error) this.element.insertBefore(make("p.problem", error), this.foot);
    this.foot.append(make("span", this.figures()));
    if (this.content) this.foot.append(copyButton(() => this.content));
    this.foot.append(button("Again", onAgain));
  }

  drawCall(call, onResults) {
    const result = make("input");
    result.placeholder = "What the tool answers";
    result.setAttribute("aria-label", `Result of ${call.name}`);
    const form = make("form", result, make("button", "Answer"));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      call.result = result.value;
      result.disabled = true;
      form.querySelector("button").disabled = true;
      if (this.calls.every((one) => one.result !== undefined)) onResults();
    });
    return make("section.call", make("div", "calls ", make("span.name", call.name)), make("pre", pretty(call.arguments)), form);
  }

  figures() {
    const end = performance.now();
    const parts = [];
    const count = this.usage?.completion_tokens;
    if (this.first) parts.push(`first token after ${((this.first - this.began) / 1000).toFixed(2)} s`);
    if (count > 1 && this.first) parts.push(`${((count - 1) / Math.max((end - this.first) / 1000, 0.001)).toFixed(1)} tokens/s`);
    if (this.usage) parts.push(`${this.usage.prompt_tokens} + ${count} tokens`);
    if (this.usage?.prompt_tokens_details?.cached_tokens) parts.push(`${this.usage.prompt_tokens_details.cached_tokens} from the prefix cache`);
    if (this.reason && this.reason !== "stop") parts.push(`ended by ${this.reason}`);
    return parts.join(", ");
  }

  /** The messages that this answer adds to the conversation. */
  messages() {
    const message = { role: "assistant", content: this.content };
    const calls = this.calls.filter((call) => isObject(call.arguments)); // a call that broke off is none
    if (!calls.length) return [message];
    message.tool_calls = calls.map((call) => ({
      id: call.id, type: "function", function: { name: call.name, arguments: call.arguments },
    }));
    const results = calls.filter((call) => call.result !== undefined);
    return [message, ...results.map((call) => ({ role: "tool", tool_call_id: call.id, content: call.result }))];
  }
}

function isObject(text) {
  try {
    const value = JSON.parse(text);
    return typeof value === "object" && value !== null && !Array.isArray(value);
  } catch {
    return false;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // a call that broke off
  }
}
