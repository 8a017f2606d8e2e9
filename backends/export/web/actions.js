// What can be done with what is shown: pinned, copied, saved, dimmed.
import { whole } from "./format.js";
import { $, h, mark, say } from "./dom.js";
import { fitting } from "./rates.js";
import { csv } from "./table.js";

const PAINT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "font-size", "font-weight", "font-family", "opacity", "text-anchor"];

export class Actions {
  constructor(page) {
    this.page = page;
    const { state } = page, place = $("actions");
    this.pin = h("button", { type: "button", class: "action", id: "pin", onclick: () => page.changed({ pin: state.pin ? null : { setup: state.setup, typed: state.typed, ...state.at } }) });
    this.menu = h("div", { class: "menu card", id: "copy-menu", role: "group", "aria-label": "copy or save", hidden: true });
    this.copy = h("button", { type: "button", class: "action", id: "copy", "aria-expanded": "false", "aria-controls": "copy-menu", onclick: () => this.open(this.menu.hidden) }, "Copy ▾");
    this.theme = h("button", { type: "button", class: "action", id: "theme", onclick: () => this.dim() }, "◐");
    for (const [id, title, act] of [
      ["copy-link", "a link to this", () => this.text(this.link())], ["copy-command", "the command line", () => this.text(this.command())],
      ["copy-python", "the Python call", () => this.text(this.python())], ["save-csv", "ops as CSV", () => this.save("ops.csv", `data:text/csv;charset=utf-8,${encodeURIComponent(csv(page.view.steps))}`)],
      ["save-svg", "roofline as SVG", () => this.save("roofline.svg", this.picture().url)], ["save-png", "roofline as PNG", () => this.png()],
    ]) this.menu.append(h("button", { type: "button", id, onclick: act }, title));
    this.done = h("span", { class: "done", role: "status" });
    place.append(this.pin, this.copy, this.theme, this.menu, this.done);
    place.addEventListener("keydown", ({ key }) => key === "Escape" && !this.menu.hidden && (this.open(false), this.copy.focus()));
    document.addEventListener("click", ({ target }) => !place.contains(target) && this.open(false));
  }

  open(shown) {
    this.menu.hidden = !shown;
    mark(this.copy, "aria-expanded", String(shown));
  }

  dim() {
    const dark = document.documentElement.dataset.theme === "dark";
    this.page.changed({ theme: dark ? "light" : "dark" });
  }

  draw({ state }) {
    mark(this.pin, "aria-pressed", String(Boolean(state.pin)));
    say(this.pin, state.pin ? "Pinned as A ✕" : "Pin as A");
    mark(this.theme, "aria-label", `${document.documentElement.dataset.theme === "dark" ? "light" : "dark"} colours`);
  }

  link() {
    return location.href.replace(/#.*/, "") + this.page.state.hash;
  }

  // The lines of a device's file with what is typed in; null without any.
  file() {
    const { state, setups } = this.page, setup = setups[state.setup], entries = Object.entries(fitting(setup, state.typed).units);
    if (!entries.length) return null;
    const said = {}, inline = (of) => (typeof of === "object" ? `{${Object.entries(of).map(([key, value]) => `${key}: ${inline(value)}`).join(", ")}}` : of);
    for (const [key, value] of entries) {
      const way = key.split("."), last = way.pop();
      way.reduce((of, name) => (of[name] ??= {}), said)[last] = value;
    }
    return [`extend: ${setup.values.hw}`, ...Object.entries(said).map(([key, value]) => `${key}: ${inline(value)}`)];
  }

  command() {
    const { state, told, setups } = this.page, values = { ...setups[state.setup].values, ...(this.file() && { hw: "device.yaml" }) };
    const word = (text) => (/^[\w.,@/+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const options = Object.entries({ ...values, ...state.at }).map(([name, value]) =>
      (name === "sp" ? (value ? "--sp" : "") : `--${name.replaceAll("_", "-")} ${word(String(value))}`));
    const file = this.file(), before = file ? [`printf '%s\\n' ${file.map(word).join(" ")} > device.yaml &&`] : [];
    return [...before, "llmir analyze", word(told.model), ...options.filter(Boolean)].join(" ");
  }

  python() {
    const { state, told, setups } = this.page, { values, passes } = setups[state.setup], say = JSON.stringify, file = this.file();
    const hw = file ? "device.yaml" : values.hw, before = file ? `open("device.yaml", "w").write(${say(`${file.join("\n")}\n`)})\n` : "";
    const how = ["engine", "cost"].filter((name) => values[name]).map((name) => `, ${name}=${say(values[name])}`).join("");
    const sizes = Object.entries(state.at).map(([name, value]) => `, ${name}=${value}`).join("");
    return `${before}llmir.workload(llmir.run(llmir.load(${say(told.model)}), ${say(passes)}), ${say(hw)}${sizes}${how})`;
  }

  async text(text) {
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
    this.say(`copied ${whole(text.length)} characters`);
  }

  save(name, url) {
    this.saved = { name, url };
    h("a", { href: url, download: name }).click();
    this.say(`saved ${name}`);
  }

  say(text) {
    this.open(false);
    say(this.done, text);
    clearTimeout(this.saying);
    this.saying = setTimeout(() => say(this.done, ""), 3000);
  }

  // The roofline with its colours in it.
  picture() {
    const own = document.querySelector("#roofline-chart svg"), copy = own.cloneNode(true);
    const [from, to] = [own, copy].map((root) => [root, ...root.querySelectorAll("*")]);
    from.forEach((node, i) => {
      const look = getComputedStyle(node);
      for (const name of PAINT) to[i].setAttribute(name, look.getPropertyValue(name));
    });
    copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
    const url = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(new XMLSerializer().serializeToString(copy))}`;
    return { url, wide: own.clientWidth, high: own.clientHeight };
  }

  png() {
    const { url, wide, high } = this.picture(), image = new Image(), paper = getComputedStyle(document.documentElement).getPropertyValue("--card");
    image.onload = () => {
      const canvas = h("canvas", { width: 2 * wide, height: 2 * high }), pen = canvas.getContext("2d");
      pen.fillStyle = paper;
      pen.fillRect(0, 0, 2 * wide, 2 * high);
      pen.drawImage(image, 0, 0, 2 * wide, 2 * high);
      this.save("roofline.png", canvas.toDataURL("image/png"));
    };
    image.src = url;
  }
}
