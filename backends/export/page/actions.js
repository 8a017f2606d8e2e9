// What can be done with what is shown: pinned, copied, saved, dimmed.
import { $, h, mark, pressed, say } from "./dom.js";
import { fitting } from "./rates.js";
import { FRAMED, Menu } from "./menu.js";
import { csv } from "./table.js";

const roofline = () => document.querySelector("#roofline-chart svg");

export class Actions extends Menu {
  constructor(page) {
    super([
      ["copy-link", "a link to this", () => this.text(this.link(), this.page.state.unsaid)], ["copy-command", "the command line", () => this.text(this.command())],
      ["copy-python", "the Python call", () => this.text(this.python())], ["save-csv", "ops as CSV", () => this.csv("ops", csv(page.view.steps))],
      ["save-svg", "roofline as SVG", () => this.svg("roofline", roofline())], ["save-png", "roofline as PNG", () => this.png("roofline", roofline())],
    ], (theme) => page.changed({ theme }));
    this.page = page;
    const { state } = page;
    this.pin = h("button", { class: "action", id: "pin", onclick: () => page.changed({ pin: state.pin ? null : { setup: state.setup, typed: state.typed, ...state.at } }) });
    $("actions").prepend(this.pin);
  }

  draw({ state }) {
    const unknown = this.page.setups[state.setup].passes === null;  // what made the program
    for (const id of ["copy-command", "copy-python"]) mark($(id), "hidden", unknown);
    mark($("copy-link"), "hidden", FRAMED);
    pressed(this.pin, Boolean(state.pin));
    say(this.pin, state.pin ? "Pinned as A ✕" : "Pin as A");
    this.dimmed();
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
    const { state, told, setups } = this.page, { asked = told.model } = setups[state.setup], values = { ...setups[state.setup].values, ...(this.file() && { hw: "device.yaml" }) };
    const word = (text) => (/^[\w.,@/+-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
    const options = Object.entries({ ...values, ...state.at }).map(([name, value]) =>
      (name === "sp" ? (value ? "--sp" : "") : `--${name.replaceAll("_", "-")} ${word(String(value))}`));
    const file = this.file(), before = file ? [`printf '%s\\n' ${file.map(word).join(" ")} > device.yaml &&`] : [];
    return [...before, "llmir analyze", word(asked), ...options.filter(Boolean)].join(" ");
  }

  python() {
    const { state, told, setups } = this.page, { values, passes, asked = told.model } = setups[state.setup], say = JSON.stringify, file = this.file();
    const hw = file ? "device.yaml" : values.hw, before = file ? `open("device.yaml", "w").write(${say(`${file.join("\n")}\n`)})\n` : "";
    const how = ["engine", "cost"].filter((name) => values[name]).map((name) => `, ${name}=${say(values[name])}`).join("");
    const sizes = Object.entries(state.at).map(([name, value]) => `, ${name}=${value}`).join("");
    return `${before}llmir.workload(llmir.run(llmir.load(${say(asked)}), ${say(passes)}), ${say(hw)}${sizes}${how})`;
  }
}
