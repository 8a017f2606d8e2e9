// Elements. What is said is always set as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else mark(node, name, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

export const h = (tag, attributes, ...children) => filled(document.createElement(tag), tag === "button" ? { type: tag, ...attributes } : attributes, children);
export const div = (look, ...children) => h("div", { class: look }, ...children);
export const span = (look, ...children) => h("span", { class: look }, ...children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);
// A drawing of a size, and words in one: `anchor` is which end of them is at x.
export const sheet = (wide, high, label, role = "img") => svg("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role, "aria-label": label });
export const put = (look, x, y, words, anchor) => svg("text", { class: look, x, y, "text-anchor": anchor }, words);
export const heads = (titles) => h("thead", null, h("tr", null, titles.map((title) => h("th", { scope: "col" }, title))));
export const $ = (id) => document.getElementById(id);

// Sets text and attributes only where they change, so that what stays costs nothing.
export function say(node, text) {
  const own = node.firstChild;
  if (own?.nodeType !== Node.TEXT_NODE || own.nextSibling) node.textContent = text;
  else if (own.data !== text) own.data = text;
}

export function mark(node, name, value) {
  const now = value === true ? "" : value === null || value === undefined || value === false ? null : String(value);
  if (node.getAttribute(name) !== now) {
    if (now === null) node.removeAttribute(name);
    else node.setAttribute(name, now);
  }
}

export const pressed = (button, on) => mark(button, "aria-pressed", String(on));

// What a button shows or hides.
export function unfold(button, what, shown) {
  what.hidden = !shown;
  mark(button, "aria-expanded", String(shown));
}

// A field for a number, and what stands in it without its commas; NaN where that is no such number.
export const field = (id, more) => h("input", { type: "text", id, autocomplete: "off", "aria-describedby": `${id}-why`, ...more });
export function number(box, pattern) {
  const said = box.value.replace(/[\s,]/g, "");
  return pattern.test(said) ? Number(said) : NaN;
}

export const LETTERS = { compute: "C", memory: "M", network: "N", overhead: "O", bubble: "B" };

// A name that may break after its underscores and dots.
export const breaking = (name) => name.split(/(?<=[_.])/).flatMap((part, i) => (i ? [h("wbr"), part] : [part]));

// What is drawn as wide as its place, and again when that changes; reading it while drawing would lay out all anew.
export class Chart {
  constructor(place) {
    this.wide = place.clientWidth;
    new ResizeObserver(([{ contentRect }]) => {
      const now = Math.round(contentRect.width);
      if (now === this.wide) return;
      this.wide = now;
      this.again();
    }).observe(place);
  }

  again() {
    if (this.last) this.draw(this.last);
  }
}

// Buttons of which one holds, as what is given back is told.
export function either(group, names, choose) {
  const buttons = names.map((name) => [name, $(`${group}-${name}`)]);
  for (const [name, button] of buttons) button.addEventListener("click", () => choose(name));
  return (chosen) => buttons.forEach(([name, button]) => pressed(button, name === chosen));
}

// The bound of an op as a letter in its colour; `aria-hidden`, as the word stands beside it.
export const badge = (bound) => h("span", { class: `badge ${bound}`, "aria-hidden": "true" }, LETTERS[bound]);

// One of several that takes the focus, and arrows that go from one to the next.
export function roving(container, selector, step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }) {
  const all = () => [...container.querySelectorAll(selector)];
  const settle = (chosen) => all().forEach((node) => mark(node, "tabindex", node === chosen ? "0" : "-1"));
  container.addEventListener("focusin", ({ target }) => target.matches(selector) && settle(target));
  container.addEventListener("keydown", (event) => {
    const nodes = all().filter((node) => node.getClientRects().length), at = nodes.indexOf(event.target.closest(selector));
    const ends = { Home: 0, End: nodes.length - 1 };
    if (at < 0 || !(event.key in step || event.key in ends)) return;
    const next = nodes[event.key in ends ? ends[event.key] : at + step[event.key]];
    if (!next) return;
    event.preventDefault();
    settle(next);
    next.focus();
  });
  return () => {
    const nodes = all();
    if (!nodes.some((node) => node.getAttribute("tabindex") === "0")) settle(nodes[0]);
  };
}
