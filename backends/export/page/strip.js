// A step to scale: what each stage does, a part of it enlarged, and live activations under the same axis.
import { Chart, LETTERS, badge, div, h, mark, roving, say, span, svg } from "./dom.js";
import { bytes, flops, percent, time } from "./format.js";
import { RIGHT } from "./charts.js";
import { ticked } from "./cells.js";
import { line } from "./menu.js";

const ROW = 58, HIGH = 34, NEAR = 58, MEMORY = 150, LEFT = 74, THIN = 0.7, SLIM = 4, NEXT = 0.5, LINE = 16;  // pixels
const LETTER = 6.9, WIDE = 7.6, LABELS = 10, LINES = 6, FEW = 60;  // pixels of letters; labels below slices, their lines, and slices of which they are
const COLUMNS = ["op", "path", "stage", "rank", "micro_batch", "start_s", "end_s", "bound", "basis", "error", "flops", "read_bytes", "write_bytes", "comm_bytes", "live_bytes"];

export class Strip extends Chart {
  constructor(data, { head, body, id }) {
    const place = div("chart");
    super(body);
    Object.assign(this, { data, place, stage: 0, drawn: null, told: new WeakMap() });
    this.slices = data.slices.map((row) => Object.fromEntries(data.keys.map((key, i) => [key, row[i]])));
    for (const own of this.slices) {
      own.op = data.ops[own.op];
      Object.assign(own, data.facts[own.fact]);
      own.name = own.path.split(".").at(-1);
    }
    this.stages = data.stages.map((_, stage) => this.slices.filter((own) => own.stage === stage));
    this.legend = div("legend", ...data.bounds.map((bound) => span(null, badge(bound), ` ${bound === "bubble" ? "bubble: waits for another stage" : bound}`)));
    const button = (title, words, act) => h("button", { "aria-label": words, onclick: act }, title);
    head.append(h("div", { class: "switch", role: "group", "aria-label": "part that is enlarged" },
      button("◀", "earlier", () => this.move(-0.5)), button("▶", "later", () => this.move(0.5)), button("+", "nearer", () => this.zoom(0.5)), button("−", "farther", () => this.zoom(2)),
      button("all", "all of the step", () => this.look(0, data.end))));
    this.about = h("p", { class: "note about", "aria-live": "polite" }, data.said);
    body.append(this.legend, place, this.about);
    this.settle = roving(place, ".slice");
    const told = ({ target }) => this.told.get(target.closest(".slice")), tell = (event) => told(event) && say(this.about, told(event).words);
    place.addEventListener("pointerover", tell);
    place.addEventListener("focusin", tell);
    place.addEventListener("click", (event) => told(event)?.act());
    place.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && told(event) && (event.preventDefault(), told(event).act()));
    this.look(data.from, data.to);
  }

  look(from, to) {
    const wide = Math.min(to - from, this.data.end), start = Math.max(0, Math.min(from, this.data.end - wide));
    Object.assign(this, { from: start, to: start + wide });
    this.draw(this.data);
  }

  move(by) {
    const wide = this.to - this.from;
    this.look(this.from + by * wide, this.to + by * wide);
  }

  zoom(by) {
    const middle = (this.from + this.to) / 2, half = Math.max(((this.to - this.from) * by) / 2, 1e-8);
    this.look(middle - half, middle + half);
  }

  draw(data) {
    this.last = data;
    if (!this.wide) return;
    const right = this.wide - RIGHT, whole = d3.scaleLinear([0, data.end], [LEFT, right]), part = d3.scaleLinear([this.from, this.to], [LEFT, right]);
    const below = 26 + this.stages.length * ROW, detail = below + 46;
    if (this.drawn !== this.wide) this.whole(whole);
    const root = this.part, seen = this.stages[this.stage].filter((own) => own.end_s > this.from && own.start_s < this.to);
    const near = this.gathered(seen, part), labels = seen.length > FEW ? [] : labelled(near, LEFT, right);
    // Lines of labels stay once there, so that nothing below jumps as one moves.
    this.lines = Math.max(this.lines, ...labels.map(({ row }) => row));
    const under = detail + NEAR + LINE * this.lines + 4, memory = under + 44, high = memory + MEMORY + 10;
    root.replaceChildren();
    mark(this.root, "height", high);
    mark(this.root, "viewBox", `0 0 ${this.wide} ${high}`);
    // What is enlarged, on the whole and as a cone to the part.
    const [a, b] = [whole(this.from), Math.max(whole(this.to), whole(this.from) + 2)], top = 26 + this.stage * ROW;
    root.append(svg("path", { d: `M${a},${top + HIGH}L${LEFT},${detail}H${right}L${b},${top + HIGH}Z`, class: "cone" }), svg("rect", { x: a, y: top - 2, width: b - a, height: HIGH + 4, class: "lens" }));
    const scale = data.end / (this.to - this.from);
    root.append(svg("text", { x: 0, y: detail - 8, class: "head" }, `${time(this.to - this.from)} of ${data.stages[this.stage].name}`));
    if (scale > 1.05) root.append(svg("text", { x: right, y: detail - 8, "text-anchor": "end", class: "unit" }, `${scale >= 10 ? Math.round(scale).toLocaleString("en-US") : scale.toFixed(1)} × the scale above`));
    root.append(svg("text", { x: 0, y: detail + 22, class: "head" }, "stream"), svg("text", { x: 0, y: detail + 37, class: "unit" }, `GPU ${seen[0]?.rank ?? 0}`));
    root.append(...labels.map((label) => leader(label, detail + NEAR)), ...near.map((each) => (each.all.length > 1 ? this.several(each, detail) : this.one(each, detail))),
      this.axis(d3.scaleLinear([0, this.to - this.from], [LEFT, right]), under + 14), ...this.skyline(seen, part, memory));
    this.settle();
  }

  // What stays as a part is enlarged: the whole step, and a place for the rest.
  whole(x) {
    [this.drawn, this.lines] = [this.wide, 0];
    const root = (this.root = svg("svg", { width: this.wide, role: "group", "aria-label": `${this.data.title}, to scale` }));
    root.append(svg("defs", {}, svg("pattern", { id: "waits", width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" }, svg("line", { x1: 0, x2: 0, y1: 0, y2: 7, class: "hatch" }))));
    root.append(this.axis(x, 18));
    this.stages.forEach((slices, stage) => {
      const top = 26 + stage * ROW, { name, ranks } = this.data.stages[stage];
      root.append(svg("text", { x: 0, y: top + 15, class: "head" }, name), svg("text", { x: 0, y: top + 30, class: "unit" }, ranks));
      root.append(...this.runs(stage).map((run) => this.block(run, x, top)));
      root.append(...merged(slices, x).map((own) => svg("rect", { x: own.x, y: top + HIGH - 9, width: own.wide, height: 8, class: `tone ${own.bound}` })));
      root.append(...this.sent(stage, x, top + HIGH));
    });
    root.append((this.part = svg("g")));
    this.place.replaceChildren(root);
  }

  axis(scale, y) {
    const marks = scale.ticks(Math.max(2, Math.floor(this.wide / 130))), show = (s) => (this.data.end && s ? ticked("time")(s) : "0");
    return svg("g", { class: "axis" }, ...marks.map((at) => svg("text", { x: scale(at), y, "text-anchor": "middle" }, show(at))));
  }

  // What a stage does with each micro-batch: its work, the engine before it, and waits.
  runs(stage) {
    const found = [];
    for (const own of this.stages[stage]) {
      const kind = own.bound === "bubble" ? "bubble" : "work", last = found.at(-1);
      if (last && last.kind === kind && last.batch === own.micro_batch && own.start_s <= last.end + 1e-12) last.end = own.end_s;
      else found.push({ kind, stage, batch: own.micro_batch, start: own.start_s, end: own.end_s });
    }
    return found;
  }

  block({ kind, stage, batch, start, end }, x, top) {
    const [left, wide] = [x(start), Math.max(x(end) - x(start), 0.5)], waits = kind === "bubble";
    const long = time(end - start), letter = this.data.micro_batches > 1 ? `micro-batch ${batch}` : "all layers";
    const words = waits ? `waits ${long}` : `${letter} · ${long}`, short = waits ? long : this.data.micro_batches > 1 ? `${batch} · ${long}` : long;
    const text = [words, short].find((each) => each.length * 7 < wide - 14);
    const name = this.data.stages[stage].name, node = this.slice(`run ${waits ? "bubble" : ""}`, { x: left, y: top, width: wide, height: HIGH, fill: waits ? "url(#waits)" : null, rx: 3 },
      `${name}: ${words}, from ${time(start)} to ${time(end)}`, () => {
        this.stage = stage;
        this.look(start, end);
      }, `${name}, ${words}, from ${time(start)}`);
    if (text) node.append(svg("text", { x: left + 8, y: top + 16, class: "inside" }, text));
    return node;
  }

  // What crosses to the next stage as each micro-batch leaves this one.
  sent(stage, x, y) {
    const { sends } = this.data.stages[stage], below = y + ROW - HIGH, right = this.wide - RIGHT;
    const ends = sends ? this.runs(stage).filter(({ kind }) => kind === "work").map(({ end }) => x(end)) : [];
    return ends.map((at, i) => {
      const words = [`${bytes(sends)} a GPU`, bytes(sends)].find((text) => text.length * LETTER + 16 < (ends[i + 1] ?? right) - at);
      return svg("g", { class: "network sends" }, svg("path", { d: `M${at},${y}V${below - 6}` }), svg("path", { class: "tip", d: `M${at},${below}l-4,-7h8z` }),
        words && svg("text", { x: at + 8, y: y + 16, class: "took" }, words));
    });
  }

  // Slices of a part, of which those that are too slim to point at stand together.
  gathered(seen, x) {
    const found = [];
    for (const own of seen) {
      const left = Math.max(x(own.start_s), LEFT), right = Math.min(x(own.end_s), this.wide - RIGHT), last = found.at(-1);
      if (last && right - last.left < SLIM) {
        last.right = right;
        last.all.push(own);
      } else found.push({ left, right, all: [own] });
    }
    return found;
  }

  several({ left, right, all }, top) {
    const [first, last] = [all[0], all.at(-1)], bound = bounding(all);
    return this.slice(`near ${bound}`, { x: left, y: top, width: Math.max(right - left, THIN), height: NEAR },
      `${all.length} from ${first.path} to ${last.path} · ${time(last.end_s - first.start_s)} · from ${time(first.start_s)}`, () => this.look(first.start_s, last.end_s));
  }

  one({ left, right, all: [own] }, top) {
    const wide = right - left, long = own.end_s - own.start_s;
    const node = this.slice(`near ${own.bound}`, { x: left, y: top, width: Math.max(wide, THIN), height: NEAR, rx: wide > 6 ? 3 : 0 }, this.words(own),
      () => this.look(own.start_s - 0.2 * long, own.end_s + 0.2 * long));
    const fits = fitting(wide);
    if (fits(own.name)) {
      const lines = [[own.name, "head"], [time(long), "took"], [own.bound, "unit"]].filter(([text]) => fits(text));
      node.append(...lines.map(([text, look], i) => svg("text", { x: left + wide / 2, y: top + 19 + 15 * i, "text-anchor": "middle", class: look }, text)));
    } else if (wide > 13) node.append(svg("text", { x: left + wide / 2, y: top + NEAR / 2 + 4, "text-anchor": "middle", class: "took" }, LETTERS[own.bound]));
    return node;
  }

  // What is pointed at, or has the focus: words of it, and what a click or a key does.
  slice(look, box, words, act, label = words) {
    const node = svg("g", { class: `slice ${look}`, role: "button", tabindex: "-1", "aria-label": label }, svg("rect", box));
    this.told.set(node, { words, act });
    return node;
  }

  words(own) {
    const amounts = [own.flops && flops(own.flops), own.read_bytes + own.write_bytes && bytes(own.read_bytes + own.write_bytes), own.comm_bytes && `${bytes(own.comm_bytes)} sent`].filter(Boolean);
    const error = own.error === null ? "" : ` ± ${percent(own.error)}`;
    return [own.path, `${time(own.end_s - own.start_s)}${error}, ${own.bound}`, `from ${time(own.start_s)}`, ...amounts, own.live_bytes ? `${bytes(own.live_bytes)} live` : null, own.basis || null].filter(Boolean).join(" · ");
  }

  // Live activations while each op runs; a wait keeps what was there.
  skyline(seen, x, top) {
    const points = [], work = seen.filter((own) => own.fact !== null && !["overhead", "bubble"].includes(own.bound));
    for (const own of work) {
      const at = Math.max(own.start_s, this.from), last = points.at(-1);
      if (!last || x(at) - x(last.x) >= NEXT) points.push({ x: at, live: own.live_bytes, own });
      else if (own.live_bytes > last.live) Object.assign(last, { live: own.live_bytes, own });
    }
    const right = this.wide - RIGHT, title = svg("text", { x: 0, y: top - 10, class: "head" }, "live activations of that GPU");
    const said = svg("text", { x: right, y: top - 10, "text-anchor": "end", class: "unit" }, this.wide > 700 ? this.data.stages[this.stage].below : "");
    if (!points.length) return [title, said, svg("text", { x: LEFT, y: top + 20, class: "unit" }, "nothing runs here")];
    const most = Math.max(...points.map(({ live }) => live)), peak = points.find(({ live }) => live === most);
    points.push({ ...points.at(-1), x: Math.min(work.at(-1).end_s, this.to) });
    const y = d3.scaleLinear([0, most * 1.15 || 1], [top + MEMORY, top]), area = d3.area((p) => x(p.x), () => top + MEMORY, (p) => y(p.live)).curve(d3.curveStepAfter);
    const marks = y.ticks(3), px = x(peak.x), left = px > (LEFT + right) / 2;
    return [title, said, svg("g", { class: "axis" }, ...marks.map((n) => svg("line", { x1: LEFT, x2: right, y1: y(n), y2: y(n) })), ...marks.map((n) => svg("text", { x: LEFT - 6, y: y(n) + 4, "text-anchor": "end" }, n ? bytes(n) : "0"))),
      svg("path", { d: area(points), class: "stack rest" }), svg("line", { x1: LEFT, x2: right, y1: y(most), y2: y(most), class: "peak-line" }), svg("circle", { cx: px, cy: y(most), r: 4, class: "peak" }),
      svg("text", { x: px + (left ? -8 : 8), y: y(most) - 6, "text-anchor": left ? "end" : "start", class: "peak-text" }, `peak ${bytes(most)} at ${peak.own.name}`)];
  }

  drawing() {
    return this.place.querySelector("svg");
  }

  csv() {
    return [line(COLUMNS), ...this.slices.map((own) => line(COLUMNS.map((key) => own[key]))), ""].join("\n");
  }
}

const fitting = (wide) => (text) => text.length * LETTER < wide - 6;

// What bounds most of the time of some slices.
function bounding(all) {
  const seconds = new Map();
  for (const own of all) seconds.set(own.bound, (seconds.get(own.bound) ?? 0) + own.end_s - own.start_s);
  return [...seconds].reduce((best, each) => (each[1] > best[1] ? each : best))[0];
}

// Words of slices that have no room for their names, in lines below them: of as many of the longest as have all room there.
function labelled(near, least, most) {
  const wanted = near.filter(({ left, right, all }) => all.length > 1 || !fitting(right - left)(all[0].name)).map(({ left, right, all }) => {
    const long = all.at(-1).end_s - all[0].start_s, first = all.reduce((best, own) => (own.end_s - own.start_s > best.end_s - best.start_s ? own : best)), bound = bounding(all);
    const sent = all.length === 1 && first.comm_bytes ? `, ${bytes(first.comm_bytes)} sent` : "";
    const at = (left + right) / 2, what = `${first.name}${all.length > 1 ? ` and ${all.length - 1} more` : ""} ${time(long)}`, size = (text) => text.length * WIDE + 10;
    const words = [`${what} · ${bound === "bubble" ? "waits" : bound}${sent}`, what].find((text) => at + size(text) <= most || at >= size(text));
    return { at, long, bound, words, wide: words && size(words) };
  }).filter(({ words }) => words).sort((a, b) => b.long - a.long).slice(0, LABELS);
  for (let count = wanted.length; count; count--) {
    const found = placed(wanted.slice(0, count), (least + most) / 2, most);
    if (found) return found;
  }
  return [];
}

// Labels so that none covers another, nor is crossed by a line; null where there is no such way.
function placed(labels, middle, most) {
  const found = [], late = labels.filter(({ at }) => at > middle).sort((a, b) => a.at - b.at), early = labels.filter(({ at }) => at <= middle).sort((a, b) => b.at - a.at);
  for (const label of [...late, ...early]) {
    const sides = [{ from: label.at, to: label.at + label.wide }, { from: label.at - label.wide, to: label.at, left: true }].filter(({ from, to }) => from >= 0 && to <= most);
    if (label.at > middle) sides.reverse();
    const free = (row, { from, to }) => !found.some((other) => {
      const over = from < other.to + 4 && other.from < to + 4, crossed = other.at > from - 4 && other.at < to + 4, crosses = label.at > other.from - 4 && label.at < other.to + 4;
      return (other.row === row && over) || (other.row >= row && crossed) || (other.row <= row && crosses);
    });
    const tries = sides.flatMap((side) => Array.from({ length: LINES }, (_, i) => ({ ...label, ...side, row: i + 1 })));
    const own = tries.find((each) => free(each.row, each));
    if (!own) return null;
    found.push(own);
  }
  return found;
}

// A label with its line to the slice.
function leader({ at, row, left, bound, words }, top) {
  const y = top + LINE * row, side = left ? -8 : 8;
  return svg("g", { class: `leader ${bound}`, "aria-hidden": "true" }, svg("path", { d: `M${at},${top}V${y - 10}l${side * 0.75},6` }),
    svg("text", { x: at + side, y, "text-anchor": left ? "end" : "start", class: "took" }, words));
}

// Slices as wide as a pixel at least: neighbours of one bound that are thinner become one.
function merged(slices, x) {
  const found = [];
  for (const own of slices) {
    if (own.bound === "bubble") continue;
    const left = x(own.start_s), right = x(own.end_s), last = found.at(-1);
    if (last && (last.bound === own.bound || right - last.x < 1.5) && left - last.x - last.wide < 0.5) last.wide = Math.max(last.wide, right - last.x);
    else found.push({ x: left, wide: Math.max(right - left, THIN), bound: own.bound });
  }
  return found;
}
