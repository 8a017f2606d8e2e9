// The memory of a device over the ops of a step, or over the tokens of a request.
import { abs, bytes, floor, max, round, time, tokens, whole } from "./format.js";
import { $, Chart, LETTERS, either, put, say, svg } from "./dom.js";
import { total } from "./price.js";
import { BOTTOM, LEFT, RIGHT, framed } from "./charts.js";

const HIGH = 210, POINTS = 48, STRIP = 20, WIDE = 7.6;

export class Skyline extends Chart {
  constructor() {
    super($("skyline-chart"));
    this.over = "step";
    this.place = $("skyline-chart");
    this.marked = either("over", ["step", "request"], (name) => {
      this.over = name;
      this.again();
    });
  }

  draw(view) {
    this.last = view;
    this.marked(this.over);
    if (!this.wide) return;
    const chart = this.over === "step" ? this.step(view) : this.request(view), { points, capacity, peak } = chart;
    const all = points.map(total);
    const top = max(capacity, ...all) * 1.12, x = d3.scaleLinear(chart.domain, [0, 1]), y = d3.scaleLinear([0, top / 1e9], [1, 0]);
    const { root, wide } = framed(this.wide, {
      x, y, title: "GB", unit: chart.unit, xFormat: chart.format, yFormat: (n) => `${n}`, xTicks: chart.ticks, high: HIGH, label: chart.said, under: chart.slices ? STRIP : 0,
    });
    const layers = [["weights", 0, "weights"], ["caches", "weights", "KV cache"], ["rest", "caches", "activations"]];
    const sums = points.map((point, i) => ({ ...point, 0: 0, caches: point.weights + point.caches, rest: all[i] }));
    for (const [key, under] of layers) {
      const area = d3.area((p) => x(p.x), (p) => y(p[under] / 1e9), (p) => y(p[key] / 1e9));
      root.append(svg("path", { d: (this.over === "step" ? area.curve(d3.curveStepAfter) : area)(sums), class: `stack ${key}` }));
    }
    const limit = y(capacity / 1e9);
    root.append(svg("line", { x1: LEFT, x2: wide - RIGHT, y1: limit, y2: limit, class: "capacity" }),
      put("limit-text", LEFT + 6, limit - 4, `${bytes(capacity)} may be used`));
    const room = (low, high) => y(low / 1e9) - y(high / 1e9) > 15;
    for (const [key, , title] of layers.slice(0, 2)) {
      const size = points.at(-1)[key], base = key === "weights" ? 0 : points.at(-1).weights;
      const middle = y((base + size / 2) / 1e9) + 4, aside = abs(middle + 4 - limit) < 16 ? 170 : 0;  // of the limit's words
      if (room(base, base + size)) root.append(put("in-stack", LEFT + 6 + aside, middle, `${title} ${bytes(size)}`));
    }
    if (chart.slices) root.append(...chart.slices.map((slice) => this.slice(slice, x)));
    const high = max(...all), at = all.indexOf(high), px = x(peak ?? points[at].x), py = y(high / 1e9);
    const left = px > wide / 2, words = chart.label(high, at), long = words.length * 1.15;
    root.append(svg("circle", { cx: px, cy: py, r: 4, class: "peak" }),
      put("peak-text", px + (left ? -8 : 8), py > limit && py - limit < 22 ? py + 16 : py - 7, long * WIDE < (left ? px : wide - px) - 8 ? words : bytes(high), left ? "end" : "start"));
    this.place.replaceChildren(root);
    say($("skyline-note"), chart.said);
  }

  // An op of the step, wide as its time, with its letter, and its name where there is room.
  slice({ from, to, name, bound, repeat, time_s }, x) {
    const [left, right] = [x(from), x(to)], wide = right - left, short = name.split(".").at(-1), top = HIGH - BOTTOM + 6;
    const words = WIDE * (short.length + 2) < wide ? `${LETTERS[bound]} ${short}` : wide > 2 * WIDE ? LETTERS[bound] : "";
    return svg("g", { class: bound }, svg("title", {}, `${name}: ${time(time_s)}${repeat > 1 ? ` × ${repeat}` : ""}, ${bound}`),
      svg("rect", { class: "slice", x: left, y: top, width: max(wide, 0.5), height: STRIP }),
      put(null, (left + right) / 2, top + 14, words, "middle"));
  }

  // All ops of the step, wide as the time of their runs; those of layers that are alike together.
  step({ step, setup, title }) {
    const sizes = step.memory, stage = sizes.reduce((best, of, i) => (total(of) > total(sizes[best]) ? i : best), 0);
    const ops = step.ops.filter((op) => op.stage === stage), points = [], slices = [];
    let x = 0;
    for (const op of ops) {
      slices.push({ from: x, to: x + op.total_s, ...op });
      points.push({ x, weights: sizes[stage].weights, caches: sizes[stage].caches, activations: step.moments[op.row.moment] ?? 0, name: op.name });
      x += op.total_s;
    }
    if (points.length) points.push({ ...points.at(-1), x });
    const end = x || 1;
    return {
      points, slices, capacity: setup.capacity_bytes, domain: [0, end], unit: "ops of a step, width = time of all runs", ticks: [], format: () => "",
      label: (high, at) => `peak ${bytes(high)} at ${points[at].name.split(".").at(-1)}`,
      said: `${title}${setup.stages > 1 ? `, stage ${stage}` : ""}: what this step alone holds, ${bytes(total(sizes[stage]))} at its peak`,
    };
  }

  // Caches as all requests grow together.
  request({ setup, at, memory }) {
    const first = at.prompt, last = at.prompt + max(0, at.generate - 2), points = [];
    const sequences = floor(at.batch / setup.parts), { stage } = memory, other = memory.bytes - memory.weights - memory.caches;
    for (let i = 0; i <= POINTS; i++) {
      const context = round(first + ((last - first) * i) / POINTS);
      points.push({ x: context, weights: memory.weights, caches: setup.held(sequences, 1, context)[stage], activations: other });
    }
    if (first === last) points.push({ ...points.at(-1), x: last + 1 });
    return {
      points, capacity: setup.capacity_bytes, domain: [first, max(last, first + 1)], unit: "tokens of each request", format: tokens,
      label: (high) => `${bytes(high)} at the end`,
      said: `${whole(at.batch)} requests from their first token to their last`,
    };
  }
}
