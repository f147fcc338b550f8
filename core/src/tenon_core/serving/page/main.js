// Puts the page together: parameters, conversation, the engine's view, the theme, the sheets and the keys.

import { Api } from "./api.js";
import { Chat } from "./chat.js";
import { byId } from "./dom.js";
import { EngineView } from "./engine.js";
import { Settings } from "./settings.js";

const settings = new Settings();
const api = new Api(() => settings.key());
const view = new EngineView(api);
const chat = new Chat(api, settings, () => view.model());

byId("key").addEventListener("change", () => view.ask());
byId("new-chat").addEventListener("click", () => chat.clear());

// theme: the system's, until chosen
const THEME = "tenon-theme";
const root = document.documentElement;
const system = matchMedia("(prefers-color-scheme: dark)");
let chosen = null;
try {
  chosen = localStorage.getItem(THEME);
} catch {
  // a browser that keeps nothing
}
const paint = () => { root.dataset.theme = chosen ?? (system.matches ? "dark" : "light"); };
paint();
system.addEventListener("change", paint);
byId("theme").addEventListener("click", () => {
  chosen = root.dataset.theme === "dark" ? "light" : "dark";
  try {
    localStorage.setItem(THEME, chosen);
  } catch {
    // it holds for this page
  }
  paint();
});

// sheets, on narrow screens
const sheets = [[byId("open-settings"), byId("settings")], [byId("open-engine"), byId("engine")]];
function show(wanted) {
  for (const [opener, sheet] of sheets) {
    const is = sheet === wanted && !sheet.classList.contains("open");
    sheet.classList.toggle("open", is);
    opener.setAttribute("aria-expanded", String(is));
    if (is) sheet.querySelector("input, textarea, h2")?.focus();
  }
}
for (const [opener, sheet] of sheets) opener.addEventListener("click", () => show(sheet));
byId("log").addEventListener("click", () => show(null));

addEventListener("keydown", (event) => {
  const types = event.target.matches("input, textarea, select");
  if (event.key === "Escape") {
    if (document.querySelector(".side.open")) show(null);
    else chat.stop();
  } else if (event.key === "/" && !types) {
    event.preventDefault();
    byId("prompt").focus();
  } else if (event.altKey && event.code === "KeyN") {
    event.preventDefault();
    chat.clear();
  }
});
