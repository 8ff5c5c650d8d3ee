"use strict";
// What every page of ours shares. Data reach a document as text nodes and attributes only, never as markup.
const base = (() => {
  const root = document.documentElement;
  root.classList.add("js");

  // -- light and dark -------------------------------------------------------------------------------------------------
  const KEY = "headscope-theme";
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => root.dataset.theme || (dark.matches ? "dark" : "light");
  // Storage is refused in some frames; the choice then lasts as long as the page.
  try {
    const kept = localStorage.getItem(KEY);
    if (kept === "dark" || kept === "light") root.dataset.theme = kept;
  } catch { /* no storage */ }

  function themes() {
    const button = document.getElementById("theme");
    const name = () => { button.textContent = theme() === "dark" ? "Light" : "Dark"; };
    button.title = "Switch between light and dark";
    button.addEventListener("click", () => {
      root.dataset.theme = theme() === "dark" ? "light" : "dark";
      try { localStorage.setItem(KEY, root.dataset.theme); } catch { /* no storage */ }
      name();
    });
    dark.addEventListener("change", name);
    name();
  }

  // -- pieces -----------------------------------------------------------------------------------------------------------
  const count = (number) => number.toLocaleString("en-US");

  function element(name, text, parent) {
    const made = document.createElement(name);
    made.textContent = text;
    if (parent) parent.append(made);
    return made;
  }

  function download(name, content, type) {
    const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
    const link = document.createElement("a");
    link.href = address;
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }

  // A hint beside a box of the window, {left, width, top, bottom}: above it, or below where there is no room.
  function hints() {
    const tip = document.getElementById("tip");
    const hide = () => { tip.hidden = true; };
    addEventListener("scroll", hide, { passive: true, capture: true });
    addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
    return { hide, show(lines, box) {
      tip.replaceChildren();
      lines.forEach((line, k) => element(k ? "span" : "strong", line, tip));
      tip.hidden = false;
      const left = Math.min(Math.max(box.left + box.width / 2 - tip.offsetWidth / 2, 8), root.clientWidth - tip.offsetWidth - 8);
      const above = box.top - tip.offsetHeight - 8;
      tip.style.left = `${left}px`;
      tip.style.top = `${above > 8 ? above : box.bottom + 8}px`;
    } };
  }

  // -- paper: what is folded on the screen is printed whole -----------------------------------------------------------
  function printing() {
    const opened = new Set();
    function unfold(on) {
      if (on) {
        for (const part of document.querySelectorAll("details:not([open])")) {
          part.open = true;
          opened.add(part);
        }
      } else {
        for (const part of opened) part.open = false;
        opened.clear();
      }
    }
    matchMedia("print").addEventListener("change", (event) => unfold(event.matches));
    addEventListener("beforeprint", () => unfold(true));
    addEventListener("afterprint", () => unfold(false));
  }

  return { hints, root, theme, themes, element, count, download, printing };
})();
