// What can be done with any page: copied, saved, dimmed.
import { whole } from "./format.js";
import { $, h, mark, say, unfold } from "./dom.js";

const PAINT = "fill fill-opacity stroke vector-effect stroke-width stroke-dasharray font-size font-weight font-family opacity text-anchor".split(" ");

export const FRAMED = location.protocol === "about:";  // in a notebook: no address, and no link to it

const dark = () => document.documentElement.dataset.theme === "dark";

export class Menu {
  // `items` are what the menu has: id, title, and what it does.
  constructor(items, dim) {
    this.items = items.map(([id, title, act]) => h("button", { id, onclick: act }, title));
    this.menu = h("div", { class: "menu card", id: "copy-menu", role: "group", "aria-label": "copy or save", hidden: true }, ...this.items);
    this.copy = h("button", { class: "action", id: "copy", "aria-expanded": "false", "aria-controls": "copy-menu", onclick: () => this.open(this.menu.hidden) }, "Copy ▾");
    this.theme = h("button", { class: "action", id: "theme", onclick: () => dim(dark() ? "light" : "dark") }, "◐");
    this.done = h("span", { class: "done", role: "status" });
    const place = $("actions");
    place.append(this.copy, this.theme, this.menu, this.done);
    place.addEventListener("keydown", ({ key }) => key === "Escape" && !this.menu.hidden && (this.open(false), this.copy.focus()));
    document.addEventListener("click", ({ target }) => !place.contains(target) && this.open(false));
  }

  open(shown) {
    unfold(this.copy, this.menu, shown);
  }

  dimmed() {
    mark(this.theme, "aria-label", `${dark() ? "light" : "dark"} colours`);
  }

  async text(text, but) {
    this.copied = text;
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const field = h("textarea", {}, text);
      document.body.append(field);
      field.select();
      document.execCommand("copy");
      field.remove();
    }
    this.say(`copied ${whole(text.length)} characters${but ? `, ${but}` : ""}`);
  }

  save(name, url) {
    this.saved = { name, url };
    h("a", { href: url, download: name }).click();
    this.say(`saved ${name}`);
  }

  csv(name, text) {
    this.save(`${name}.csv`, `data:text/csv;charset=utf-8,${encodeURIComponent(text)}`);
  }

  say(text) {
    this.open(false);
    say(this.done, text);
    clearTimeout(this.saying);
    this.saying = setTimeout(() => say(this.done, ""), 3000);
  }

  svg(name, own) {
    this.save(`${name}.svg`, picture(own));
  }

  png(name, own) {
    const { clientWidth: wide, clientHeight: high } = own, image = new Image(), paper = getComputedStyle(document.documentElement).getPropertyValue("--card");
    image.onload = () => {
      const canvas = h("canvas", { width: 2 * wide, height: 2 * high }), pen = canvas.getContext("2d");
      pen.fillStyle = paper;
      pen.fillRect(0, 0, 2 * wide, 2 * high);
      pen.drawImage(image, 0, 0, 2 * wide, 2 * high);
      this.save(`${name}.png`, canvas.toDataURL("image/png"));
    };
    image.src = picture(own);
  }
}

// A drawing with its colours in it.
function picture(own) {
  const copy = own.cloneNode(true), [from, to] = [own, copy].map((root) => [root, ...root.querySelectorAll("*")]);
  from.forEach((node, i) => {
    const look = getComputedStyle(node);
    for (const name of PAINT) to[i].setAttribute(name, look.getPropertyValue(name));
  });
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
}

// A line of CSV; what a spreadsheet would take for a formula is text.
export function line(values) {
  const cell = (value) => {
    const text = value === null || value === undefined || Number.isNaN(value) ? "" : String(value);
    const safe = /^[=+\-@\t\r]/.test(text) && !/^-?[\d.]+(e[+-]?\d+)?$/i.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return values.map(cell).join();
}
