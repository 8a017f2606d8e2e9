// This set-up against the pinned one, op by op: differences add up.
import { abs, max, ratio, time, whole } from "./format.js";
import { $, badge, breaking, h, heads, mark, say, span } from "./dom.js";
import { SIZES } from "./state.js";

const SHOWN = 6;

export class Against {
  constructor(choose) {
    this.choose = choose;
    this.place = $("against-body");
  }

  draw({ pinned, steps, memory, setup, at, phase }) {
    mark($("against"), "hidden", !pinned);
    const place = document.querySelectorAll(".column")[pinned ? 0 : 1], own = $("skyline");  // where there is room
    if (own.parentNode !== place) place.append(own);
    if (!pinned) return;
    say($("against-what"), different(pinned, { setup, at }));
    const parts = Object.keys(steps).filter((name) => steps[name] && pinned.steps[name]);
    const body = h("tbody");
    for (const name of [phase, ...parts.filter((other) => other !== phase)]) {
      if (steps[name] && pinned.steps[name]) this.step(body, name, steps[name], pinned.steps[name]);
    }
    this.place.replaceChildren(
      h("table", {}, heads(["largest change", "A", "this", "difference", "ratio"]), body),
      h("p", { class: "line" }, ...[
        ["weights", memory.weights, pinned.memory.weights], ["peak memory", memory.bytes, pinned.memory.bytes], ["largest batch", memory.largest, pinned.memory.largest],
      ].map(([name, now, then]) => span(null, `${name} `, h("strong", {}, ratio(now, then))))));
  }

  step(body, name, now, then) {
    const sums = new Map();
    const add = (step, side) => [...step.ops, ...step.extras].forEach((op) => {
      const sum = sums.get(op.name) ?? { name: op.name, bound: op.bound, now: 0, then: 0 };
      sum[side] += op.total_s;
      sums.set(op.name, { ...sum, bound: op.bound });
    });
    add(then, "then");
    add(now, "now");
    const rows = [...sums.values()].sort((a, b) => abs(b.now - b.then) - abs(a.now - a.then));
    const most = max(...rows.map((row) => abs(row.now - row.then))), changed = rows.filter((row) => row.now !== row.then).slice(0, SHOWN), rest = rows.slice(changed.length);
    const total = rows.reduce((all, row) => ({ now: all.now + row.now, then: all.then + row.then }), { now: 0, then: 0 });
    for (const row of changed) body.append(this.row(row, most));
    if (rest.length) {
      const other = { name: `${rest.length} other ops`, now: 0, then: 0 };
      for (const row of rest) [other.now, other.then] = [other.now + row.now, other.then + row.then];
      body.append(this.row(other, most));
    }
    body.append(this.row({ name: name === "decode" ? "last decode step" : "prefill step", ...total }, 0, "total"));
  }

  row({ name, bound, now, then }, most, look) {
    const change = now - then, bar = h("i", { class: change > 0 ? "worse" : "better" });
    bar.style.width = most ? `${(40 * abs(change)) / most}px` : "0";
    return h("tr", { class: look },
      h("th", { scope: "row" }, bound ? badge(bound) : "", " ", breaking(name.split(".").at(-1))), h("td", {}, time(then)), h("td", {}, time(now)),
      h("td", {}, `${change > 0 ? "+" : ""}${time(change)} `, bar), h("td", {}, now >= 0 && then > 0 ? ratio(now, then) : "–"));
  }
}

// What the two sides differ in.
function different(pinned, { setup, at }) {
  const keys = Object.keys(setup.choices).filter((key) => setup.choices[key] !== pinned.setup.choices[key]);
  const words = [...keys.map((key) => `${key} ${pinned.setup.choices[key]}`),
    ...SIZES.filter((key) => at[key] !== pinned.at[key]).map((key) => `${key} ${whole(pinned.at[key])}`)];
  const told = (of) => Object.entries(of.typed).map(([key, value]) => `${key} ${value}`).join(", ");
  if (told(setup) !== told(pinned.setup)) words.push(told(pinned.setup) ? "other rates" : "the rates of its datasheet");
  return words.length ? `A has ${words.join(", ")}` : "A is equal to this";
}

