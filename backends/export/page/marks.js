// Lines and marks in a chart: what each says beside the pointer or under the focus, and what is ruled out.
import { Chart, div, h, mark, roving, span, svg } from "./dom.js";
import { BOTTOM, LEFT, RIGHT, TOP, beyond, framed } from "./charts.js";
import { scaled, shown, ticked } from "./cells.js";
import { line } from "./menu.js";

const NEAR = 26, MARK = 5.5, HIGH = 300, LETTER = 7, STEP = 10, LETTERED = 17;  // pixels
// Outlines of marks around 0, told apart by shape.
const SHAPES = [
  "M-1,0a1,1 0 1,0 2,0a1,1 0 1,0 -2,0", "M0,-1.25L1.25,0L0,1.25L-1.25,0Z", "M-.95,-.95H.95V.95H-.95Z", "M0,-1.2L1.2,1H-1.2Z",
  "M0,1.2L1.2,-1H-1.2Z", "M-.4,-1.1H.4V-.4H1.1V.4H.4V1.1H-.4V.4H-1.1V-.4H-.4Z", "M-1,-.5L0,-1.2L1,-.5V.9H-1Z",
];
const DASHES = ["", "6 4", "2 3", "8 3 2 3", "1 4", "10 3", "4 2 1 2 1 2"];
export const KINDS = SHAPES.length;

let clips = 0;

// Points on the lines between some.
const along = (points) => points.flatMap(([a, b], i) => {
  const [c, d] = points[i + 1] ?? [a, b], parts = Math.ceil(Math.hypot(c - a, d - b) / STEP) || 1;
  return Array.from({ length: parts }, (_, n) => [a + ((c - a) * n) / parts, b + ((d - b) * n) / parts]);
});

const outline = (shape, size = MARK) => svg("path", { d: SHAPES[shape % KINDS], transform: `scale(${size})`, class: "shape" });

export class Marks extends Chart {
  constructor(data, { body, choose }) {
    const place = div("chart");
    body.append(place);
    super(place);
    Object.assign(this, { data, place, choose, row: null });
    this.tip = h("div", { class: "tip card", hidden: true, "aria-hidden": "true" });
    this.legend = div("legend");
    body.append(this.legend);
    place.addEventListener("pointermove", (event) => this.point(event));
    place.addEventListener("pointerleave", () => this.say(null));
    place.addEventListener("click", (event) => this.take(this.nearest(event)));
    place.addEventListener("keydown", ({ key }) => key === "Escape" && this.say(null));
    this.settle = roving(place, ".mark");
    this.draw(data);
  }

  draw(data) {
    this.last = this.data = data;
    if (!this.wide) return;
    const { series, x, y, limits = [] } = data, points = series.flatMap((each) => each.points);
    this.points = [];
    if (!points.length) return this.place.replaceChildren(h("p", { class: "note" }, data.none ?? "nothing to draw"));
    const of = (i, more) => [...points.map((point) => point[i]), ...more.filter((n) => n !== null && n !== undefined)];
    const across = scaled(of(0, [x.least]), { log: x.log, room: Math.max(3, Math.floor(this.wide / 75)) });
    const up = scaled(y.most ? [0, y.most / 1.08] : of(1, limits.filter(({ axis }) => axis === "y").map(({ at }) => at)), { log: y.most ? false : y.log, room: 7 });
    const chart = framed(this.wide, {
      x: across.scale, y: up.scale, title: y.title, unit: x.title, xFormat: ticked(x.kind), yFormat: ticked(y.kind), xTicks: across.ticks, yTicks: up.ticks,
      high: data.high ?? HIGH, label: `${data.title}: ${y.title} by ${x.title}`,
    }), { root, high } = chart;
    mark(root, "role", "group");
    this.at = ([a, b]) => [across.scale(a), up.scale(b)];
    const spots = this.lettered(series), place = (point) => spots.get(point) ?? this.at(point);
    this.busy = series.filter(({ faint }) => !faint).flatMap((each) => (each.line && !each.threads ? along(each.points.filter(([a, b]) => a !== null && b !== null).map(this.at)) : each.points.map(place)));
    const words = [...limits].sort((a, b) => (b.axis === "y") - (a.axis === "y")).map((limit) => this.limit(root, limit, across.scale, up.scale, high));
    const top = high - BOTTOM, clip = `clip-${(clips += 1)}`, inner = svg("g", { "clip-path": `url(#${clip})` });
    root.append(svg("defs", {}, svg("clipPath", { id: clip }, svg("rect", { x: LEFT - 12, y: TOP - 9, width: this.wide - LEFT - RIGHT + 24, height: top - TOP + 18 }))), inner);
    const inside = ([, b]) => b >= TOP - 1 && b <= top + 1;
    series.forEach((each, number) => {
      const shape = each.shape ?? number, look = `series s${shape % KINDS} ${each.faint ? "faint" : ""} ${each.best ? "best" : ""}`;
      const group = svg("g", { class: look }), known = each.points.filter((point) => point[0] !== null && point[1] !== null);
      if (each.line) {
        const path = d3.line((point) => this.at(point)[0], (point) => this.at(point)[1]);
        for (const points of each.threads ?? [known]) group.append(svg("path", { d: path(points), class: "thread", "stroke-dasharray": DASHES[shape % KINDS] || null }));
      }
      for (const point of known) {
        const at = place(point), [, , row, about, letter] = point;
        if (!inside(at) || each.bare) continue;
        const said = [each.name, ...(about ? [about] : [`${x.title}: ${shown(x.kind, point[0])}`, `${y.title}: ${shown(y.kind, point[1])}`])];
        const own = svg("g", { class: "mark", transform: `translate(${at})`, role: row === null ? "img" : "button", "aria-label": said.join(", "), tabindex: "-1", "data-row": row },
          outline(letter ? 0 : shape, letter ? 9 : each.faint ? 2.6 : MARK), letter && svg("text", { y: 4, "text-anchor": "middle", class: "letter" }, letter));
        const found = { at, own, row, said };
        own.addEventListener("focus", () => this.say(found));
        own.addEventListener("blur", () => this.say(null));
        own.addEventListener("keydown", (event) => ["Enter", " "].includes(event.key) && (event.preventDefault(), this.take(found)));
        this.points.push(found);
        group.append(own);
      }
      inner.append(group);
    });
    for (const [point, text] of series.flatMap(({ labels = [] }) => labels)) words.push(this.label(this.at(point), text));
    root.append(...words.filter(Boolean));
    this.place.replaceChildren(root, this.tip);
    this.chosen(this.row);
    this.settle();
    this.legend.replaceChildren(...series.map((each, number) => this.entry(each, each.shape ?? number)));
  }

  // Where points with numbers stand.
  lettered(series) {
    const spots = new Map(), others = [];
    for (const point of series.flatMap(({ bare, points }) => (bare ? [] : points)).filter(([a, b, , , letter]) => letter && a !== null && b !== null)) {
      const at = this.at(point);
      this.beside(others, at);
      spots.set(point, at);
    }
    return spots;
  }

  // So that a number covers no other, it stands beside it.
  beside(others, at) {
    const covered = () => others.find(([x, y]) => Math.abs(at[0] - x) < LETTERED && Math.abs(at[1] - y) < LETTERED), first = covered();
    const away = first && at[0] < first[0] ? -LETTERED : LETTERED;
    for (let other = first, tries = 4; other && tries; other = covered(), tries--) at[0] = other[0] + away;
    others.push(at);
  }

  // What a mark is, where there is room at one of its sides.
  label([x, y], text) {
    const places = [-10, 18].flatMap((by) => [[x + 8, y + by], [x - 8, y + by, "end"]]);
    return text && this.words("inside", text, places, true);
  }

  // A limit as a line, and what lies beyond it hatched; its words, which lie above all else.
  limit(root, { axis, at, words, side, asked }, x, y, high) {
    const right = this.wide - RIGHT, bottom = high - BOTTOM, look = asked ? "here" : "capacity", text = asked ? "here-text" : "limit-text";
    if (axis === "y") {
      const py = y(at), places = [-5, 14].flatMap((by) => [[LEFT + 6, py + by], [right, py + by, "end"]]);
      if (py < TOP || py > bottom) return null;
      root.append(svg("line", { x1: LEFT, x2: right, y1: py, y2: py, class: look }));
      const own = this.words(text, words, places);
      this.busy.push(...along([[LEFT, py], [right, py]]));
      return own;
    }
    const px = Math.max(LEFT, Math.min(x(at), right)), left = side === "high" || px > (LEFT + right) / 2;
    if (side) beyond(root, side === "low" ? LEFT : px, side === "low" ? px : right, high, "");
    if (px === x(at)) root.append(svg("line", { x1: px, x2: px, y1: TOP, y2: bottom, class: look }));
    const most = bottom - TOP, heights = [0.97, 0.99, 0.1, 0.5, 0.25, 0.75].map((at) => TOP + at * most), roomy = side === "high" && words.length * LETTER + 10 < right - px;
    if (side === "high") heights.unshift(TOP + 12);
    const sides = roomy ? [[right, "end"]] : [[px - 5, "end"], [px + 5, "start"]];
    if (!left) sides.reverse();
    return this.words(text, words, sides.flatMap(([px, anchor]) => heights.map((py) => [px, py, anchor])));
  }

  // Words in the first of some places that no line, mark or word is in.
  words(look, text, places, spare = false) {
    const wide = text.length * LETTER, start = ([px, , anchor]) => (anchor === "end" ? px - wide : px);
    const inside = (place) => start(place) > 0 && start(place) + wide < this.wide;
    const covered = (place) => this.busy.filter(([px, py]) => px > start(place) - 8 && px < start(place) + wide + 8 && py > place[1] - 21 && py < place[1] + 10).length;
    const least = () => places.filter(inside).sort((a, b) => covered(a) - covered(b))[0] ?? places[0];
    const own = places.find((place) => inside(place) && !covered(place)) ?? (spare ? null : least());
    if (!own) return null;
    const [px, py, anchor] = own;
    for (let at = 0; at <= wide; at += STEP) this.busy.push([start(own) + at, py - 4]);
    return svg("text", { x: px, y: py, "text-anchor": anchor, class: look }, text);
  }

  entry(each, shape) {
    const look = `series s${shape % KINDS} ${each.faint ? "faint" : ""} ${each.best ? "best" : ""}`;
    const sample = svg("svg", { width: 30, height: 14, "aria-hidden": "true", class: look },
      each.line && svg("path", { d: "M0,7H30", class: "thread", "stroke-dasharray": DASHES[shape % KINDS] || null }),
      !each.bare && svg("g", { class: "mark", transform: "translate(15,7)" }, outline(each.numbered ? 0 : shape, each.faint ? 3 : 5)));
    return span("entry", sample, each.name);
  }

  nearest(event) {
    const { left, top } = this.place.getBoundingClientRect(), [x, y] = [event.clientX - left, event.clientY - top];
    let best = null, least = NEAR ** 2;
    for (const point of this.points ?? []) {
      const away = (point.at[0] - x) ** 2 + (point.at[1] - y) ** 2 - (point.row === null ? 0 : 30);
      if (away < least) [best, least] = [point, away];
    }
    return best;
  }

  point(event) {
    this.say(this.nearest(event));
  }

  say(found) {
    if (this.told === found) return;
    if (this.told) this.told.own.classList.remove("near");
    this.told = found;
    this.tip.hidden = !found;
    if (!found) return;
    found.own.classList.add("near");
    const [name, ...words] = found.said;
    this.tip.replaceChildren(h("strong", {}, name), ...words.flatMap((text) => text.split("\n")).map((text) => span(null, text)));
    const [x, y] = found.at, wide = Math.min(this.tip.offsetWidth, this.wide), high = this.tip.offsetHeight;
    this.tip.style.left = `${Math.max(0, Math.min(x - wide / 2, this.wide - wide))}px`;
    this.tip.style.top = `${y > high + 14 ? y - high - 12 : y + 14}px`;
  }

  take(found) {
    if (found && found.row !== null) this.choose(found.row);
  }

  chosen(row) {
    this.row = row;
    for (const { own, row: of } of this.points ?? []) own.classList.toggle("chosen", row !== null && of === row);
  }

  drawing() {
    return this.place.querySelector("svg");
  }

  csv() {
    const { series, x, y } = this.data;
    return [line(["series", x.key ?? x.title, y.key ?? y.title]), ...series.flatMap((each) => each.points.map(([a, b]) => line([each.name, a, b]))), ""].join("\n");
  }
}
