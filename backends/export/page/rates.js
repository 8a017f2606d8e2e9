// Rates of a device, as its file has them: what can be typed in, and the fields for it.
import { CAPACITY } from "./price.js";
import { digits, max, min, round } from "./format.js";
import { $, div, field, h, mark, number, say, span, unfold } from "./dom.js";

const ORDER = ["matrix", "memory_GBps", CAPACITY, "links", "node", "vector"];
const TIMES = 100;  // as much or as little at most; beyond, another device is meant
const plain = (n) => Number(n.toPrecision(6));
const si = (n, exponent) => Number(`${n}e${exponent}`);

// What can be typed in of a set-up: each with its bounds, and a reason for them that is not plain.
export function fields(setup) {
  const found = setup.rates.map(({ key, unit, value, least, source }) => {
    const [group, name] = key.split("."), exponent = unit === 1e12 ? 12 : 9, usual = value / unit;
    const title = { matrix_tflops: `${name} peak`, vector_tflops: `${name} peak without matrix units`, memory_GBps: "memory bandwidth", links: `link, ${name}` }[group] ?? "network";
    const low = max(usual / TIMES, least / unit), slower = least > value / TIMES;
    return { key, title, unit: exponent === 12 ? "TFLOP/s" : "GB/s", exponent, usual, low, high: usual * TIMES, source, why: slower ? "or another link is faster" : "" };
  });
  const [least, most] = setup.sizes, usual = (setup.bare ?? setup).capacity / 1e9, engine = setup.engine ?? "";
  const [low, high] = [max(usual / TIMES, least / 1e9), min(usual * TIMES, (most ?? Infinity) / 1e9)];
  const tight = least > 1 || most;
  found.push({ key: CAPACITY, title: "memory", unit: "GB", exponent: 9, usual, low, high, source: "what programs can have of it", why: tight ? `or ${engine} takes other steps` : "" });
  const place = ({ key }) => ORDER.findIndex((start) => key.startsWith(start));
  return found.sort((a, b) => place(a) - place(b));
}

// Why a number cannot be, or nothing.
export function wrong({ key, low, high, why, usual, exponent }, value, setup) {
  const bounded = value === usual || (value > low && value < high) || (key === CAPACITY && value >= low && value < high);
  if (!bounded) return `a number from ${digits(low)} to ${digits(high)}${why && `, ${why}`}`;
  return key === CAPACITY && !(setup.given({ [key]: round(si(value, exponent)) }).capacity_bytes > 0) ? "more than the engine keeps for itself" : "";
}

// Those of what is typed in that a set-up can have, in its units, and the same in SI units.
export function fitting(setup, typed) {
  const known = fields(setup).filter((field) => field.key in typed && typed[field.key] !== field.usual && !wrong(field, typed[field.key], setup));
  const units = Object.fromEntries(known.map(({ key }) => [key, typed[key]]));
  return { units, rates: Object.fromEntries(known.map(({ key, exponent }) => [key, (key === CAPACITY ? round : Number)(si(typed[key], exponent))])) };
}

export class Rates {
  constructor(state, changed) {
    Object.assign(this, { state, changed, place: $("rates") });
    this.button = h("button", { class: "chip", id: "change", "aria-expanded": "false", "aria-controls": "rates", onclick: () => this.open(this.place.hidden) },
      span("small", "rates"), h("strong"));
    $("setup").append(this.button);
  }

  open(shown) {
    unfold(this.button, this.place, shown);
  }

  // Anew for each set-up; what stands in a field that is being edited stays.
  draw() {
    const { state } = this, setup = state.setups[state.setup], { typed } = state, count = Object.keys(fitting(setup, typed).units).length;
    say(this.button.lastChild, count ? `${count} typed in` : "of its datasheet");
    mark(this.button, "data-typed", count > 0);
    if (this.setup !== setup) this.build((this.setup = setup));
    for (const { own, box, why } of this.boxes) {
      if (document.activeElement === box) continue;
      const now = String(typed[own.key] ?? plain(own.usual));
      if (box.value !== now) box.value = now;
      mark(box, "aria-invalid", null);
      say(why, own.key in typed ? `${digits(own.usual)} in its file` : "");
      mark(why, "class", "note");
    }
  }

  build(setup) {
    this.boxes = fields(setup).map((own) => {
      const id = `rate-${own.key}`, why = h("span", { class: "note", id: `${id}-why` });
      const box = field(id, { inputmode: "decimal", title: own.source, oninput: () => this.typed(own, box, why) });
      const label = h("label", { for: id }, own.title, span("more", `, ${own.unit}`));
      return { own, box, why, node: div("rate", label, box, why) };
    });
    this.place.replaceChildren(div("line", h("strong", {}, `Rates of ${setup.device}`),
      h("button", { class: "action", onclick: () => this.changed({ typed: {} }) }, "as they were")),
    div("fields", this.boxes.map(({ node }) => node)),
    h("p", { class: "note" }, "Kernels keep their measured shares of these; where they were measured at others, ± is as of another device of the same die."));
  }

  typed(own, box, place) {
    const { state } = this, value = number(box, /^\d+(\.\d+)?$/), usual = value === plain(own.usual);
    const why = usual ? "" : wrong(own, value, state.setups[state.setup]);
    mark(box, "aria-invalid", why ? "true" : null);
    mark(place, "class", why ? "why" : "note");
    say(place, why ? `expected ${why}` : `${digits(own.usual)} in its file`);
    if (why) return;
    const { [own.key]: _, ...others } = state.typed;
    this.changed({ typed: usual ? others : { ...others, [own.key]: value } });
  }
}
