// Throughput and TPOT as the batch grows, or the prompt: at the other sizes as the sliders have them.
import { digits, floor, kilo, max, min, time, whole } from "./format.js";
import { $, Chart, either, put, svg } from "./dom.js";
import { BOTTOM, LEFT, RIGHT, TOP, beyond, framed } from "./charts.js";

const SAMPLES = 16, HIGH = 190, MOST = 256;  // points that are kept of a set-up
const ALONG = {
  batch: { values: [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256], unit: "batch", ticks: [1, 4, 16, 64, 256, 1024], show: whole },
  prompt: { values: [128, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072], unit: "prompt tokens", ticks: [128, 1024, 8192, 32768, 131072], show: kilo },
};

// Figures of a request, with decode steps at a few contexts in place of all of them: for lines.
export function sampled(setup, { batch, prompt, generate }) {
  const reading = setup.reading(batch, prompt), later = generate - 1, few = min(later, SAMPLES);
  const contexts = Array.from({ length: few }, (_, i) => prompt + floor(((i + 0.5) * later) / few));
  const tpot = few ? setup.timings(batch, 1, contexts).reduce((all, { period }) => all + period, 0) / few : null;
  return { tpot_s: tpot, output_tokens_per_s: (batch * generate) / (reading.time + later * (tpot ?? 0)) };
}

export class Curves extends Chart {
  constructor() {
    super($("curve-rate"));
    this.along = "batch";
    this.kept = new WeakMap();
    this.places = [$("curve-rate"), $("curve-tpot")];
    this.marked = either("along", Object.keys(ALONG), (name) => {
      this.along = name;
      this.again();
    });
  }

  line({ setup, at }) {
    const { values } = ALONG[this.along], { parts } = setup;
    const each = this.along === "batch" ? values.filter((n) => n % parts === 0) : values;
    const all = [...new Set([...each, at[this.along]])].sort((a, b) => a - b);
    return all.map((value) => ({ value, ...this.point(setup, { ...at, [this.along]: value }) }));
  }

  // What a set-up takes at some sizes, worked out once: others stay as one of them moves.
  point(setup, { batch, prompt, generate }) {
    const key = `${batch} ${prompt} ${generate}`, own = this.kept.get(setup) ?? new Map();
    this.kept.set(setup, own);
    if (!own.has(key)) {
      if (own.size >= MOST) own.clear();
      own.set(key, { ...sampled(setup, { batch, prompt, generate }), fits: setup.peak(batch, prompt, generate).bytes <= setup.capacity_bytes });
    }
    return own.get(key);
  }

  draw(view) {
    this.last = view;
    const { unit, ticks, show } = ALONG[this.along];
    this.marked(this.along);
    if (!this.wide) return;
    const own = this.line(view), then = view.pinned ? this.line({ ...view.pinned, at: { ...view.pinned.at, [this.along]: view.at[this.along] } }) : [];
    const now = view.at[this.along], domain = [own[0].value, own.at(-1).value];
    const charts = [["output_tokens_per_s", "output tokens/s", digits, 1], ["tpot_s", "TPOT, ms", (s) => time(s), 1e3]];
    charts.forEach(([key, title, say, scale], i) => {
      const place = this.places[i], known = [...own, ...then].filter((point) => point[key] !== null);
      if (!known.length) return place.replaceChildren("One token has no later ones.");
      const x = d3.scaleLog(domain, [0, 1]), y = d3.scaleLinear([0, max(...known.map((point) => point[key])) * scale * 1.08], [1, 0]);
      const said = `${title} by ${unit}: ${say(view.figures[key])} at ${show(now)}`;
      const chart = framed(this.wide, { x, y, title, unit, xFormat: show, yFormat: (n) => (n >= 1000 ? `${n / 1000}k` : `${n}`), xTicks: ticks, high: HIGH, label: said });
      const { root, wide, high } = chart, first = own.find(({ fits }) => !fits);
      if (view.figures[key] !== null) root.append(svg("line", { x1: x(now), x2: x(now), y1: TOP, y2: high - BOTTOM, class: "here" }));
      if (first) beyond(root, max(LEFT, x(first.value)), wide - RIGHT, high, "does not fit");
      const path = d3.line((point) => x(point.value), (point) => y(point[key] * scale)).defined((point) => point[key] !== null);
      if (then.length) root.append(svg("path", { d: path(then), class: "then" }));
      root.append(svg("path", { d: path(own), class: "now" }));
      if (view.figures[key] !== null) {
        const [px, py] = [x(now), y(view.figures[key] * scale)], left = px > wide / 2;
        root.append(svg("circle", { cx: px, cy: py, r: 5, class: "dot" }),
          put("here-text", px + (left ? -9 : 9), max(py - 8, 32), say(view.figures[key]), left ? "end" : "start"));
      }
      place.replaceChildren(root);
    });
  }
}
