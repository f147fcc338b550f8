// The conversation: turns in order, one answer at a time, streamed.

import { byId, make } from "./dom.js";
import { Answer } from "./turn.js";

export class Chat {
  /** model: () => the model's name */
  constructor(api, settings, model) {
    this.api = api;
    this.settings = settings;
    this.model = model;
    this.turns = []; // {role: "user", text, element} or an Answer
    this.abort = null;
    this.log = byId("log");
    this.prompt = byId("prompt");
    this.log.addEventListener("grown", () => this.follow());
    this.log.addEventListener("scroll", () => { this.follows = this.isAtEnd(); });
    this.follows = true;
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.say(this.prompt.value);
    });
    byId("stop").addEventListener("click", () => this.stop());
    this.prompt.addEventListener("input", () => this.grow());
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.say(this.prompt.value);
      }
    });
    for (const starter of document.querySelectorAll(".starter")) {
      starter.addEventListener("click", () => this.say(starter.textContent));
    }
  }

  say(text) {
    if (this.abort || !text.trim()) return;
    this.prompt.value = "";
    this.grow();
    const element = make("article.turn.user", make("div.said", text));
    this.add({ role: "user", text, element });
    this.answer();
  }

  add(turn) {
    byId("welcome").hidden = true;
    this.turns.push(turn);
    this.log.append(turn.element);
    this.follows = true;
    this.follow();
  }

  messages() {
    const messages = [...this.settings.system()];
    for (const turn of this.turns) {
      if (turn instanceof Answer && turn.isLost) {
        if (messages.at(-1)?.role === "user") messages.pop(); // else what was refused once would be refused for ever
      } else if (turn instanceof Answer) messages.push(...turn.messages());
      else messages.push({ role: "user", content: turn.text });
    }
    return messages;
  }

  async answer() {
    if (this.abort) return; // one at a time: a tool's result may come while another answer does
    let fields;
    try {
      fields = this.settings.fields();
      this.settings.say("");
    } catch (error) {
      this.settings.say(error.message);
      fields = null;
    }
    const messages = this.messages();
    const answer = new Answer();
    this.add(answer);
    let problem = fields === null ? "The parameters cannot be used: see there." : "";
    if (fields !== null) problem = await this.receive(answer, { ...fields, messages });
    answer.finish({ error: problem, onResults: () => this.answer(), onAgain: () => this.again(answer) });
    this.follow();
  }

  /** Stream into an answer; returns what went wrong, or "". */
  async receive(answer, fields) {
    const body = { ...fields, model: this.model(), stream: true, stream_options: { include_usage: true } };
    this.abort = new AbortController();
    this.busy(true);
    try {
      for await (const piece of this.api.stream("v1/chat/completions", body, this.abort.signal)) answer.take(piece);
      return "";
    } catch (error) {
      if (error.name === "AbortError") {
        answer.reason = "you";
        return "";
      }
      return error.status === 401 ? `${error.message}. Type one in under Parameters.` : error.message;
    } finally {
      this.abort = null;
      this.busy(false);
    }
  }

  /** Ask once more for an answer; what came after it goes. */
  again(answer) {
    if (this.abort) return;
    const at = this.turns.indexOf(answer);
    for (const turn of this.turns.splice(at)) turn.element.remove();
    this.answer();
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    for (const turn of this.turns.splice(0)) turn.element.remove();
    byId("welcome").hidden = false;
    this.prompt.focus();
  }

  busy(is) {
    byId("send").hidden = is;
    byId("stop").hidden = !is;
    this.log.setAttribute("aria-busy", String(is));
  }

  isAtEnd() {
    return this.log.scrollHeight - this.log.scrollTop - this.log.clientHeight < 60;
  }

  follow() {
    if (this.follows) this.log.scrollTop = this.log.scrollHeight;
  }

  grow() {
    this.prompt.style.height = "auto";
    this.prompt.style.height = `${this.prompt.scrollHeight}px`;
  }
}
