// Elements. What is said is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
export const $ = (id) => document.getElementById(id);

// Sets text and attributes only where they change, so that what stays costs nothing.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function mark(node, name, value) {
  const now = value === null || value === undefined || value === false ? null : String(value);
  if (node.getAttribute(name) !== now) {
    if (now === null) node.removeAttribute(name);
    else node.setAttribute(name, now);
  }
}

export const LETTERS = { compute: "C", memory: "M", network: "N", overhead: "O", bubble: "B" };

// A name that may break after its underscores and dots.
export const breaking = (name) => name.split(/(?<=[_.])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

// Calls with the width of a place whenever that changes; reading it while drawing would lay out all anew.
export function widths(place, changed) {
  let known = 0;
  new ResizeObserver(([{ contentRect }]) => {
    const now = Math.round(contentRect.width);
    if (now !== known) changed((known = now));
  }).observe(place);
}

// The bound of an op as a letter in its colour; `aria-hidden`, as the word stands beside it.
export const badge = (bound) => h("span", { class: `badge ${bound}`, "aria-hidden": "true" }, LETTERS[bound]);

// One of several that takes the focus, and arrows that go from one to the next.
export function roving(container, selector, step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }) {
  const all = () => [...container.querySelectorAll(selector)].filter((node) => node.getClientRects().length);
  const settle = (chosen) => {
    for (const node of container.querySelectorAll(selector)) mark(node, "tabindex", node === chosen ? "0" : "-1");
  };
  container.addEventListener("focusin", ({ target }) => target.matches(selector) && settle(target));
  container.addEventListener("keydown", (event) => {
    const nodes = all(), at = nodes.indexOf(event.target.closest(selector));
    const ends = { Home: 0, End: nodes.length - 1 };
    if (at < 0 || !(event.key in step || event.key in ends)) return;
    const next = nodes[event.key in ends ? ends[event.key] : at + step[event.key]];
    if (!next) return;
    event.preventDefault();
    settle(next);
    next.focus();
  });
  return () => {
    const nodes = [...container.querySelectorAll(selector)];
    if (!nodes.some((node) => node.getAttribute("tabindex") === "0")) settle(nodes[0]);
  };
}
