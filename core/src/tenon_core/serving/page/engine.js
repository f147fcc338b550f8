// The live view of the engine: asked for every second while the page is seen, counters turned into rates here.

import { byId, make } from "./dom.js";

const EVERY_MS = 1000;
const KEPT = 120;

export class EngineView {
  constructor(api) {
    this.api = api;
    this.rates = [];
    this.before = null;
    this.modelName = "";
    this.kernelsShown = "";
    document.addEventListener("visibilitychange", () => this.ask());
    this.ask();
  }

  model() {
    return this.modelName || undefined;
  }

  async ask() {
    clearTimeout(this.timer);
    if (document.hidden) return;
    try {
      this.show(await this.api.get("engine", AbortSignal.timeout(5000)));
    } catch (error) {
      this.before = null;
      if (error.status === 401) this.light("locked", "an API key is needed");
      else this.light("away", error.status ? error.message : "the server cannot be reached");
    }
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.ask(), EVERY_MS);
  }

  light(state, text) {
    byId("light").dataset.state = state;
    if (byId("state").textContent !== text) byId("state").textContent = text;
    if (!this.modelName) byId("model").textContent = "no model yet";
  }

  show(found) {
    this.modelName = found.model;
    byId("model").textContent = found.model;
    this.light(found.status, found.status);
    document.title = `${found.model} - Tenon playground`;
    this.showFacts(found);
    this.showKernels(found.kernels);
    if (found.stats) this.showStats(found.stats);
  }

  showStats(stats) {
    const now = performance.now();
    const before = this.before;
    if (before && stats.num_generated_tokens >= before.stats.num_generated_tokens) {
      const tokens = stats.num_generated_tokens - before.stats.num_generated_tokens;
      this.rates.push((tokens * 1000) / Math.max(now - before.now, 1));
      this.rates.splice(0, this.rates.length - KEPT);
      this.showRates();
    }
    this.before = { stats, now };
    byId("running").textContent = stats.num_running;
    byId("waiting").textContent = stats.num_waiting;
    byId("preemptions").textContent = stats.num_preemptions;
    byId("compiles").textContent = stats.num_compiles_after_ready;
    const used = stats.num_blocks - stats.num_free_blocks;
    byId("blocks").textContent = `${used} of ${stats.num_blocks}`;
    byId("blocks-bar").value = stats.num_blocks ? used / stats.num_blocks : 0;
    const share = stats.num_prefix_queries ? stats.num_prefix_hits / stats.num_prefix_queries : 0;
    byId("hits").textContent = stats.num_prefix_queries ? `${(share * 100).toFixed(1)} %` : "-";
    byId("hits-bar").value = share;
  }

  showRates() {
    const last = this.rates.at(-1);
    byId("rate").textContent = last < 100 ? last.toFixed(1) : last.toFixed(0);
    const top = Math.max(...this.rates, 1);
    const points = this.rates.map((rate, at) => `${KEPT - this.rates.length + at},${(31 - (rate / top) * 29).toFixed(1)}`);
    const [area, line] = byId("spark").children;
    line.setAttribute("points", points.join(" "));
    area.setAttribute("points", `${KEPT - this.rates.length},32 ${points.join(" ")} ${KEPT - 1},32`);
  }

  showFacts(found) {
    const facts = {
      Platform: found.platform || "-", "Longest context": found.max_model_len ?? "-", "Most at once": found.max_num_seqs ?? "-",
      "Block size": found.block_size ?? "-", "Tool calls": found.parsers.tools || "as text",
      Reasoning: found.parsers.reasoning || "as text", Version: found.version,
    };
    list(byId("facts"), facts);
    const phases = Object.entries(found.start_seconds).map(([name, seconds]) => [name, `${seconds.toFixed(2)} s`]);
    list(byId("phases"), Object.fromEntries(phases));
  }

  showKernels(kernels) {
    const key = JSON.stringify(kernels);
    if (key === this.kernelsShown) return; // so that a selection in the table survives
    this.kernelsShown = key;
    byId("kernels").replaceChildren(...kernels.map(({ op, kernel, source, uses }) => {
      const from = make("td", source);
      from.dataset.source = source;
      return make("tr", make("td", op), make("td", kernel), from, make("td", String(uses)));
    }));
  }
}

function list(element, entries) {
  const key = JSON.stringify(entries);
  if (element.shown === key) return;
  element.shown = key;
  element.replaceChildren(...Object.entries(entries).flatMap(([name, value]) => [make("dt", name), make("dd", String(value))]));
}
