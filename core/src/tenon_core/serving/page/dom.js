// Making elements. Text is only ever set as text: nothing that comes from a model or a server is read as HTML.

export const byId = (id) => document.getElementById(id);

/** make("p.note", "text", child, ...): an element, its classes, its children. */
export function make(kind, ...children) {
  const [tag, ...classes] = kind.split(".");
  const element = document.createElement(tag);
  element.classList.add(...classes);
  element.append(...children);
  return element;
}

export function button(label, onClick) {
  const made = make("button", label);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

/** A button that copies what `text()` gives. */
export function copyButton(text) {
  const made = button("Copy", async () => {
    try {
      await navigator.clipboard.writeText(text());
      made.textContent = "Copied";
    } catch {
      made.textContent = "No clipboard";
    }
    setTimeout(() => { made.textContent = "Copy"; }, 1200);
  });
  return made;
}
