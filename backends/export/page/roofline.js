// The roofline of one device, with every op that computes: squares read prompts, circles decode.
import { ceil, digits, floor, max, min, percent, rate, tick, whole } from "./format.js";
import { $, Chart, LETTERS, mark, pressed, put, roving, say, svg } from "./dom.js";

const LEFT = 62, RIGHT = 24, TOP = 26, BOTTOM = 40;  // pixels
const INNER = 5;  // decades across, of which a mark at the end takes room
const LARGEST = 26, LEAST = 3.5, NAMED = 0.05, LETTERED = 6.5, WIDE = 7.6;  // of a letter at most
const SOME = 8;  // ends of axes a decade, so that they stand still for small changes
const decades = (low, high) => {
  const found = [];
  for (let e = ceil(Math.log10(low) - 1e-9); e <= Math.log10(high) + 1e-9; e++) found.push(10 ** e);
  return found;
};

// Paths, to a tenth of a pixel.
const fixed = (n) => n.toFixed(1);
const square = (x, y, size) => `M${fixed(x - size)},${fixed(y - size)}h${fixed(2 * size)}v${fixed(2 * size)}h${fixed(-2 * size)}z`;
const arc = (size, wide) => `a${fixed(size)},${fixed(size)} 0 1 0 ${fixed(wide)},0`;
const circle = (x, y, size) => `M${fixed(x - size)},${fixed(y)}${arc(size, 2 * size)}${arc(size, -2 * size)}z`;

// Whether a point is in a box, or so near to it.
const over = ([a, b, c, d], x, y, near) => x > a - near && x < c + near && y > b - near && y < d + near;

const marked = (node, values) => Object.entries(values).forEach((each) => mark(node, ...each));
const place = (text, x, y) => marked(text, { x, y });

export class Roofline extends Chart {
  constructor(choose) {
    super($("roofline-chart"));
    this.choose = choose;
    this.root = svg("svg", { role: "group", "aria-label": "roofline: FLOP/s over FLOP per byte" });
    const id = "roofline-inside";
    this.window = svg("rect");
    const inside = svg("g", { "clip-path": `url(#${id})` });
    [this.grid, this.roofs, this.marks, this.names] = ["grid", "roofs", "marks", "names"].map((name) => svg("g", { class: name }));
    [this.x, this.y] = [svg("g", { class: "axis" }), svg("g", { class: "axis" })];
    this.title = [svg("text", { class: "unit" }, "FLOP/s"), svg("text", { class: "unit", "text-anchor": "end" }, "FLOP per byte moved (log)")];
    this.bandwidth = svg("text", { class: "unit" });
    inside.append(this.grid, this.roofs, this.marks, svg("g", { class: "names" }, this.bandwidth), this.names);
    this.root.append(svg("defs", {}, svg("clipPath", { id }, this.window)), this.x, this.y, inside, ...this.title);
    $("roofline-chart").append(this.root);
    this.settle = roving(this.marks, ".bubble");
    mark(this.marks, "tabindex", -1);  // Chrome stops at what listens for the focus
    this.bubbles = new Map();
    this.zoomed = d3.zoomIdentity;
    this.zoom = d3.zoom().scaleExtent([1, 12]).filter((event) => (event.type !== "wheel" || event.ctrlKey) && !event.button)
      .on("zoom", ({ transform }) => {
        this.zoomed = transform;
        this.again();
      });
    d3.select(this.root).call(this.zoom).on("dblclick.zoom", null);
    for (const [id, by] of [["zoom-in", 1.6], ["zoom-out", 1 / 1.6]]) {
      $(id).addEventListener("click", () => d3.select(this.root).call(this.zoom.scaleBy, by));
    }
    $("zoom-all").addEventListener("click", () => d3.select(this.root).call(this.zoom.transform, d3.zoomIdentity));
  }

  draw(view) {
    this.last = view;
    const { steps, setup, state } = view, { wide } = this, high = wide < 420 ? 340 : 370;
    if (!wide) return;
    const all = Object.entries(steps).filter(([, step]) => step).flatMap(([phase, step]) =>
      step.ops.map((op) => Object.assign(op, { phase, key: `${phase} ${op.name}`, speed: op.flops / op.time_s })));
    const drawn = all.filter(({ flops, bytes, time_s }) => flops && bytes && time_s);
    const peaks = setup.roofs.peaks, bandwidth = setup.roofs.memory;
    const most = max(...peaks.map(([, peak]) => peak), ...drawn.map(({ speed }) => speed), 1);
    const ends = {
      x: [min(0.1, ...drawn.map((op) => op.intensity / 2)), max((most / bandwidth) * 20, ...drawn.map((op) => op.intensity * max(3, 10 ** ((LARGEST * 1.2 * INNER) / (wide - LEFT - RIGHT)))))],
      y: [min(most / 1e5, ...drawn.map((op) => op.speed / 3)), most * 4],
    };
    for (const axis of ["x", "y"]) {
      const [low, high] = ends[axis].map(Math.log10);
      ends[axis] = [10 ** floor(low), 10 ** (ceil(SOME * high) / SOME)];
    }
    const x = this.zoomed.rescaleX(d3.scaleLog(ends.x, [LEFT, wide - RIGHT]));
    const y = this.zoomed.rescaleY(d3.scaleLog(ends.y, [high - BOTTOM, TOP]));
    this.frame(x, y, wide, high, setup);
    this.points(drawn, x, y, state);
    const chosen = drawn.filter(({ name }) => name === state.op);
    this.label(drawn, chosen, x, y, wide, high);
    const known = new Set(drawn.map(({ name }) => name)), left = [...new Set(all.map(({ name }) => name))].filter((name) => !known.has(name));
    const few = left.slice(0, 3).join(", "), more = left.length > 3 ? ` and ${left.length - 3} more` : "";
    say($("roofline-note"), left.length ? `Not drawn, as they have no FLOPs: ${few}${more}.` : "");
  }

  frame(x, y, wide, high, setup) {
    const key = JSON.stringify([x.domain(), y.domain(), wide, high, setup.roofs]);
    if (key === this.framed) return;
    this.framed = key;
    const end = wide - RIGHT, foot = high - BOTTOM;
    marked(this.root, { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high });
    marked(this.window, { x: LEFT, y: TOP - 14, width: end - LEFT, height: foot - TOP + 14 });
    const [xs, ys] = [decades(...x.domain()), decades(...y.domain())];
    const thin = (list, room) => list.filter((_, i) => i % ceil(list.length / room) === 0);
    const format = (n) => (n < 1 ? String(Number(n.toPrecision(1))) : tick(n));
    const plain = (n) => (n < 1 ? format(n) : whole(n));
    mark(this.x, "transform", `translate(0,${foot})`);
    mark(this.y, "transform", `translate(${LEFT},0)`);
    d3.select(this.x).call(d3.axisBottom(x).tickValues(thin(xs, wide / 60)).tickFormat(plain).tickSizeOuter(0));
    d3.select(this.y).call(d3.axisLeft(y).tickValues(thin(ys, 9)).tickFormat(format).tickSizeOuter(0));
    place(this.title[0], 4, 12);
    place(this.title[1], end, high - 5);
    const lines = [...xs.map((n) => ["x", x(n)]), ...ys.map((n) => ["y", y(n)])];
    this.grid.replaceChildren(...lines.map(([axis, at]) => (axis === "x"
      ? svg("line", { x1: at, x2: at, y1: TOP, y2: foot })
      : svg("line", { y1: at, y2: at, x1: LEFT, x2: end }))));
    this.roof(x, y, wide, setup);
  }

  roof(x, y, wide, { roofs }) {
    const peaks = roofs.peaks, bandwidth = roofs.memory, parts = [];
    const top = peaks.length ? peaks.at(-1)[1] : y.domain()[1] / 2, [low, high] = x.domain();
    const ridge = top / bandwidth, at = (n) => [x(n), y(n * bandwidth)];
    this.said = [];
    parts.push(svg("path", { d: d3.line()([at(low), at(ridge)]) }));
    peaks.forEach(([unit, peak], i) => {
      const [px, py] = [x(peak / bandwidth), y(peak)], words = `${unit} ${rate(peak, "FLOP/s")}`, end = px - 8;
      parts.push(svg("path", { d: d3.line()([[px, py], [x(high), py]]), class: i < peaks.length - 1 ? "lower" : "" }),
        put(null, end, py + 4, words, "end"));
      this.said.push([end - WIDE * words.length, py - 8, end, py + 8]);
    });
    const [px, py] = at(low * 1.3), [qx, qy] = at(ridge);
    say(this.bandwidth, `${roofs.memoryKind} ${rate(bandwidth, "B/s")}`);
    this.slope = { px, py, qx, qy, long: WIDE * this.bandwidth.textContent.length, turn: Math.atan2(qy - py, qx - px) };
    this.roofs.replaceChildren(...parts);
  }

  // The words of the bandwidth along its roof, where they cover the least; and the box that they are in.
  along(boxes) {
    const { px, py, qx, long, turn } = this.slope, [cos, sin] = [Math.cos(turn), Math.sin(turn)];
    let best = [Infinity];
    for (let from = 0; best[0] > 0.3 && (!from || px + (from + long) * cos < qx); from += 16) {
      for (const off of [6, 20, 34]) {
        const [x, y] = [px + from * cos + off * sin, py + from * sin - off * cos];
        let covered = off / 20 + (x < LEFT + 9 && 99);
        for (let s = 0; s <= long; s += 8) covered += boxes.some((box) => over(box, x + s * cos + 4 * sin, y + s * sin - 4 * cos, 6));
        if (covered < best[0]) best = [covered, x, y];
      }
    }
    const [, x, y] = best;
    mark(this.bandwidth, "transform", `translate(${fixed(x)},${fixed(y)}) rotate(${fixed((turn * 180) / Math.PI)})`);
    return [x - 8, y - 12 + long * sin, x + long * cos, y];
  }

  // Shapes hold where they are: a transform each would be a layer of its own to paint.
  points(drawn, x, y, state) {
    const known = new Set();
    let more = false;
    for (const op of [...drawn].sort((a, b) => b.share - a.share)) {
      known.add(op.key);
      more ||= !this.bubbles.has(op.key);
      const bubble = this.bubbles.get(op.key) ?? this.bubble(op), [cx, cy] = [x(op.intensity), y(op.speed)];
      const size = max(LEAST, min(LARGEST, LARGEST * Math.sqrt(max(0, op.share) * 2)));
      const half = size * 0.9;
      bubble.at = { cx, cy, size, box: [cx - half, cy - half, cx + half, cy + half] };
      mark(bubble.node, "class", `bubble ${op.bound}${op.name === state.op ? " chosen" : ""}`);
      pressed(bubble.node, op.name === state.op);
      bubble.op = op;
      mark(bubble.shape, "d", op.phase === "prefill" ? square(cx, cy, size) : circle(cx, cy, size));
    }
    for (const [key, { node }] of this.bubbles) {
      if (!known.has(key)) {
        node.remove();
        this.bubbles.delete(key);
      }
    }
    const all = [...this.bubbles.values()];
    for (const { at: { cx, cy, size }, op, letter } of all) {
      const seen = size > LETTERED && !all.some(({ at }) => at.size < size && over(at.box, cx, cy, 4));
      say(letter, seen ? LETTERS[op.bound] : "");
      if (seen) place(letter, fixed(cx), fixed(cy));
    }
    if (more) this.settle();
  }

  // What each is for those who hear it, in a later turn.
  rest() {
    for (const { node, op } of this.bubbles.values()) {
      mark(node, "aria-label", `${op.name}, ${op.phase}: ${rate(op.speed, "FLOP/s")} at ${digits(op.intensity)} FLOP per byte, ${op.bound}, ${percent(op.share)}`);
    }
  }

  again() {
    super.again();
    if (this.last) this.rest();
  }

  bubble(op) {
    const pick = () => this.choose(op.name);
    const node = svg("g", {
      role: "button", tabindex: "-1", onclick: pick, onpointerenter: () => say(title, node.getAttribute("aria-label")),
      onkeydown: (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), pick()),
    });
    const shape = svg("path"), title = svg("title");
    const letter = svg("text", { class: "letter", "text-anchor": "middle", dy: "0.35em", "aria-hidden": "true" });
    node.append(title, shape, letter);
    this.marks.append(node);
    const bubble = { node, shape, letter };
    this.bubbles.set(op.key, bubble);
    return bubble;
  }

  // Names beside the largest and the chosen, where they cover neither each other nor what is drawn large.
  label(drawn, chosen, x, y, wide, high) {
    const wanted = [...chosen, ...drawn.filter((op) => op.share >= NAMED && !chosen.includes(op)).sort((a, b) => b.share - a.share)];
    const marks = [...this.bubbles.values()], boxes = (least) => [...this.said, ...marks.filter(({ at }) => at.size > least).map(({ at }) => at.box)];
    const taken = [this.along(boxes(0)), ...boxes(7)], seen = new Set();
    const { px: left, py: base, qx, qy, turn } = this.slope, roof = (px) => max(qy, base + (min(px, qx) - left) * Math.tan(turn));
    let placed = 0;
    for (const op of wanted) {
      const short = op.name.split(".").at(-1), { cx, cy, size } = this.bubbles.get(op.key).at, long = short.length * WIDE;
      if (seen.has(op.phase + short)) continue;
      seen.add(op.phase + short);
      const tries = [[cx + size + 5, cy + 4], [cx - size - 5 - long, cy + 4], [cx - long / 2, cy + size + 15], [cx - long / 2, cy - size - 6],
        [cx + size * 0.7 + 5, cy + size + 15], [cx - size - long, cy - size - 6]];
      const boxed = ([px, py]) => [px, py - 11, px + long, py + 4];
      const free = tries.filter((at) => {
        const [a, b, c, d] = boxed(at);
        return a > LEFT && c < wide - RIGHT && b > TOP && d < high - BOTTOM && !taken.some(([e, f, g, h]) => a < g && c > e && b < h && d > f);
      });
      if (!free.length) continue;
      const own = free.find(([px, py]) => py + 4 < roof(px + long) || py - 11 > roof(px)) ?? free[0];  // not across the roof
      taken.push(boxed(own));
      const text = this.names.childNodes[placed] ?? this.names.appendChild(svg("text"));
      place(text, ...own);
      mark(text, "class", chosen.includes(op) ? "chosen" : "");
      say(text, short);
      placed += 1;
    }
    while (this.names.childNodes.length > placed) this.names.lastChild.remove();
  }
}
