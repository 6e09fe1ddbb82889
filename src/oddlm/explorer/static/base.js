// What all scripts of the pages share. Plain scripts, no modules: pages opened from disk may not load those.
"use strict";

window.oddlm = (() => {
  const SVG = "http://www.w3.org/2000/svg";

  function fill(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value === true) node.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }

  // Strings become text nodes, never markup.
  const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
  const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
  const byId = (id) => document.getElementById(id);

  const HIDDEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\u00a0\ufffd]/gu;

  function picture(character) {
    if (character === "\n") return "↵\n";
    if (character === "\t") return "⇥\t";
    if (character === "\ufffd") return character;
    const code = character.codePointAt(0);
    if (code < 0x20) return String.fromCodePoint(0x2400 + code);
    if (code === 0x7f) return "␡";
    return `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  }

  // Control, formatting and direction characters as something that can be seen.
  const visible = (text) => String(text).replace(HIDDEN, picture);

  // Stays on the screen wherever the page is scrolled to, until it is closed or the next one comes.
  function notice(words, kind = "problem") {
    const place = byId("notice");
    place.className = words ? `notice ${kind}` : "";
    place.setAttribute("role", kind === "problem" ? "alert" : "status");
    const close = words ? el("button", { type: "button", "aria-label": "Close this message", onclick: () => notice("") }, "×") : null;
    place.replaceChildren(...(words ? [el("p", {}, visible(words)), close] : []));
  }

  function percent(share) {
    if (share > 0 && share < 0.001) return "<0.1 %";
    if (share < 1 && share > 0.999) return ">99.9 %";
    return `${(100 * share).toFixed(share > 0 && share < 1 && (share < 0.1 || share > 0.99) ? 1 : 0)} %`;
  }

  const unique = (values) => [...new Set(values)];
  const sorted = (values) => unique(values).sort((a, b) => a - b);
  const count = (number, one, many) => `${number} ${number === 1 ? one : many || `${one}s`}`;

  // {"name": "odd", "enough": 0.5} as people read it: odd (enough 0.5).
  function named(value) {
    if (typeof value !== "object" || value === null) return visible(value);
    const { name, ...options } = value;
    const said = Object.entries(options).map(([option, one]) => `${option} ${typeof one === "object" ? JSON.stringify(one) : one}`);
    return visible(said.length ? `${name} (${said.join(", ")})` : name);
  }

  function theme() {
    const root = document.documentElement;
    let stored = null;
    try { stored = localStorage.getItem("oddlm-theme"); } catch { /* storage may be forbidden */ }
    if (stored === "light" || stored === "dark") root.style.colorScheme = stored;
    byId("theme").addEventListener("click", () => {
      const dark = root.style.colorScheme ? root.style.colorScheme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.style.colorScheme = dark ? "light" : "dark";
      try { localStorage.setItem("oddlm-theme", root.style.colorScheme); } catch { /* it holds until the page is closed */ }
      document.dispatchEvent(new Event("theme"));
    });
  }

  // Whatever a script did not expect is said on the page, too.
  window.addEventListener("error", (event) => notice(`Something went wrong on this page: ${event.message}`));
  window.addEventListener("unhandledrejection", (event) => notice(`Something went wrong on this page: ${event.reason}`));

  return { el, svg, byId, unique, sorted, visible, notice, percent, count, named, theme };
})();
