// The set-up on top, and the sliders.
import { kilo, max, min, round, whole } from "./format.js";
import { $, div, field, h, mark, number, say, span } from "./dom.js";
import { SIZES } from "./state.js";
import { Rates } from "./rates.js";

const ORDER = ["device", "split", "weights", "activations", "KV cache", "collectives", "engine", "times"];
const SLIDERS = {
  batch: ["sequences at once", [1, 4, 16, 64, 256]],
  prompt: ["tokens in", [128, 1024, 8192, 32768, 131072]],
  generate: ["tokens out", [1, 16, 128, 1024, 8192]],
};

// Numbers from low to high, eight an octave and those that the marks name.
function steps(low, high, own) {
  const found = new Set([low, high, ...own]);
  for (let octave = 1; octave <= high; octave *= 2) {
    for (let i = 0; i < 8; i++) found.add(round(octave * (1 + i / 8)));
  }
  return [...found].filter((n) => n >= low && n <= high).sort((a, b) => a - b);
}

export class Controls {
  constructor(state, told, changed) {
    Object.assign(this, { state, told, changed, menus: new Map(), sliders: new Map() });
    this.setup($("setup"));
    this.rates = new Rates(state, changed);
    for (const name of SIZES) this.slider(name);
  }

  // Menus of what several set-ups differ in, and the rest as words.
  setup(place) {
    const { setups } = this.state;
    place.append(this.chip("model", h("strong", {}, this.told.model)));
    for (const menu of ORDER) {
      const labels = [...new Set(setups.map(({ choices }) => choices[menu]).filter(Boolean))];
      if (labels.length > 1) {
        const select = h("select", { id: `menu-${menu.replace(" ", "-")}`, onchange: () => this.choose(menu, select.value) });
        for (const label of labels) select.append(h("option", { value: label }, label));
        this.menus.set(menu, select);
        place.append(this.chip(menu, select, true));
      } else {
        const text = h("strong");
        this.menus.set(menu, text);
        place.append(this.chip(menu, text));
      }
    }
  }

  chip(title, what, labels = false) {
    const small = span("small", title);
    return h(labels ? "label" : "div", { class: "chip", "data-menu": title }, small, what);
  }

  // The set-up that differs from this one in one menu alone.
  other(menu, label) {
    const { setups, setup } = this.state, wanted = { ...setups[setup].choices, [menu]: label };
    return setups.findIndex(({ choices }) => Object.keys(wanted).every((key) => choices[key] === wanted[key]));
  }

  choose(menu, label) {
    const found = this.other(menu, label), { setups } = this.state;
    if (found < 0 || setups[found].why) return this.choices(this.state.setup);
    const { parts } = setups[found], { batch } = this.state;
    const typed = setups[found].device === setups[this.state.setup].device ? this.state.typed : {};
    this.changed({ setup: found, typed, batch: max(parts, round(batch / parts) * parts) });
  }

  slider(name) {
    const [more, ticks] = SLIDERS[name], start = this.state[name];
    const values = steps(min(ticks[0], start), max(ticks.at(-1), start), [start]);
    const range = h("input", {
      type: "range", min: 0, max: values.length - 1, step: 1, id: `range-${name}`, "aria-label": `${name}, ${more}`,
      oninput: () => this.move(name, this.fitting(name, values[range.value])),
    });
    const typed = () => this.typed(name), box = field(name, { inputmode: "numeric", "aria-label": `${name}, a number`, onchange: typed, oninput: typed });
    const why = h("span", { class: "why", id: `${name}-why` });
    const marks = h("div", { class: "ticks", "aria-hidden": "true" });
    for (const tick of ticks) {
      const mark = span(null, name === "batch" ? whole(tick) : kilo(tick));
      mark.style.left = `${(100 * nearest(values, tick)) / (values.length - 1)}%`;
      marks.append(mark);
    }
    $("sliders").append(div("card slider",
      div("line", h("label", { for: `range-${name}` }, name, span("more", `, ${more}`)), box),
      range, marks, why));
    this.sliders.set(name, { range, box, why, values });
  }

  fitting(name, value) {
    const { parts } = this.state.setups[this.state.setup];
    return name === "batch" ? max(parts, round(value / parts) * parts) : value;
  }

  move(name, value) {
    this.sliders.get(name).box.value = whole(value);
    this.wrong(name, "");
    this.changed({ [name]: value });
  }

  typed(name) {
    const value = number(this.sliders.get(name).box, /^\d+$/), why = this.state.wrong(name, value);
    this.wrong(name, why);
    if (!why) this.changed({ [name]: value });
  }

  wrong(name, why) {
    const { box, why: place } = this.sliders.get(name);
    mark(box, "aria-invalid", why ? "true" : null);
    say(place, why && `expected ${why}`);
  }

  draw() {
    this.rates.draw();
    if (this.drawn !== this.state.setup) this.choices((this.drawn = this.state.setup));
    for (const [name, slider] of this.sliders) {
      const { range, box, values } = slider, value = this.state[name], at = nearest(values, value);
      if (Number(range.value) !== at) range.value = at;
      if (slider.at !== at) range.style.setProperty("--at", `${(100 * (slider.at = at)) / (values.length - 1)}%`);
      mark(range, "aria-valuetext", whole(value));
      if (document.activeElement === box) continue;
      if (box.value !== whole(value)) box.value = whole(value);
      if (!this.state.wrong(name, value)) this.wrong(name, "");
    }
  }

  choices(setup) {
    const { state } = this, own = state.setups[setup];
    for (const [menu, node] of this.menus) {
      const label = own.choices[menu];
      if (node.tagName === "SELECT") {
        for (const option of node.options) {
          const other = this.other(menu, option.value), why = other < 0 ? "not in this page" : state.setups[other].why;
          option.disabled = Boolean(why);
          mark(option, "title", why || null);
        }
        node.value = label;
      } else {
        say(node, label ?? (facts(own)[menu] || ""));
        node.parentNode.hidden = !node.textContent;
      }
      if (menu === "device") say(node.parentNode.firstChild, own.devices > 1 ? `${own.devices} devices` : menu);
    }
  }
}

// How many values are smaller.
const nearest = (values, value) => min(values.filter((n) => n < value).length, values.length - 1);

// What a set-up is where no menu says it.
const facts = ({ precision: { weights, activations, kv_cache }, device, devices, engine, cost }) => ({
  device, weights, engine, times: cost, "KV cache": kv_cache,
  split: devices > 1 ? "" : "one device",
  activations: activations !== weights && activations,
});
