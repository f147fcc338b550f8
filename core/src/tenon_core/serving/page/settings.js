// The parameters: a form, kept for this tab, as the fields of a request.

import { byId } from "./dom.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty", "frequency_penalty"];
const PLACE = "tenon-parameters";

export class Settings {
  constructor() {
    this.form = byId("parameters");
    this.problem = byId("form-error");
    this.restore();
    this.form.addEventListener("input", () => this.keep());
    this.form.addEventListener("reset", () => setTimeout(() => this.keep()));
    this.form.addEventListener("submit", (event) => event.preventDefault());
  }

  value(name) {
    return this.form.elements[name].value;
  }

  key() {
    return this.value("key").trim();
  }

  /** The fields of a request beside its messages. Throws an Error with words for a person. */
  fields() {
    const fields = {};
    for (const name of NUMBERS) {
      const text = this.value(name).trim();
      if (text !== "") fields[name] = Number(text);
    }
    if (this.value("stop")) fields.stop = this.value("stop");
    const tools = parsed("Tools", this.value("tools"), Array.isArray, "a list");
    if (tools?.length) fields.tools = tools;
    if (this.value("tool_choice")) fields.tool_choice = this.value("tool_choice");
    const extra = parsed("Further fields", this.value("extra"), isObject, "an object");
    return { ...fields, ...extra };
  }

  system() {
    const text = this.value("system").trim();
    return text ? [{ role: "system", content: text }] : [];
  }

  say(message) {
    this.problem.textContent = message;
    this.problem.hidden = !message;
  }

  keep() {
    const values = Object.fromEntries(new FormData(this.form));
    try {
      sessionStorage.setItem(PLACE, JSON.stringify(values));
    } catch {
      // a browser that keeps nothing: the form still holds the values
    }
  }

  restore() {
    try {
      const values = JSON.parse(sessionStorage.getItem(PLACE) ?? "{}");
      for (const [name, value] of Object.entries(values)) {
        if (this.form.elements[name]) this.form.elements[name].value = value;
      }
    } catch {
      // nothing kept, or nothing readable
    }
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function parsed(name, text, fits, wanted) {
  if (!text.trim()) return undefined;
  let value;
  try {
    value = JSON.parse(text);
  } catch (error) {
    throw new Error(`${name}: no valid JSON (${error.message})`);
  }
  if (!fits(value)) throw new Error(`${name}: ${wanted} is expected`);
  return value;
}
