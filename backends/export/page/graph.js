// The graph of a step: blocks that fold, ops from top to bottom, what jumps over others dashed beside them.
import { max, min, percent, time } from "./format.js";
import { $, breaking, div, h, mark, pressed, roving, say, span, svg, unfold } from "./dom.js";

const MANY = 60, SOME = 30, SMALL = 5;  // ops from which blocks begin folded, but for the longest; and small ones, to it
const LANE = 7;
const WORDS = { engine_cpu: "engine CPU", launch_gap: "launch gap", rank_skew: "rank skew", bubble: "waits" };

export class Graph {
  constructor(choose, told) {
    Object.assign(this, { choose, graphs: told.graphs, folded: new Map(), far: new Set() });
    this.place = $("graph-body");
    this.settle = roving(this.place, "button");
    new ResizeObserver(() => this.links()).observe(this.place);
    this.watch = new IntersectionObserver((all) => all.forEach(({ target, isIntersecting }) => this.far[isIntersecting ? "delete" : "add"](target)));
  }

  build(view) {
    const { setup, step } = view, graph = this.graphs[step.phase.graph];
    this.built = step.phase;
    const heavy = graph.sections.map(({ ops }) => this.seconds(ops, step)), most = heavy.indexOf(max(...heavy));
    const many = step.ops.length > MANY;
    this.sections = graph.sections.map((section, i) => {
      const key = `${step.phase.graph} ${i}`, closed = this.folded.get(key) ?? (i !== most && (many || section.title === "embedding" || (step.ops.length > SOME && heavy[i] * SMALL < heavy[most])));
      const [name, cost] = [span("name", `${section.title}${section.count > 1 ? ` × ${section.count}` : ""}${section.where}`), span("cost")];
      const head = h("button", { class: "fold", "aria-expanded": String(!closed), tabindex: "-1" }, name, cost);
      const ranks = [], boxes = section.ops.map((op) => {
        const box = this.box(op);
        box.place = ranks[op.rank] ??= h("div", { class: op.columns > 1 ? "rank several" : "rank" });
        box.place.append(box.node);
        return box;
      });
      const lines = svg("svg", { class: "jumps", "aria-hidden": "true" });
      const body = h("div", { class: "body", hidden: closed }, ...ranks, lines);
      head.addEventListener("click", () => {
        unfold(head, body, body.hidden);
        this.folded.set(key, body.hidden);
        this.draw(this.last);
        this.rest(this.last);
        this.links();
      });
      const node = h("section", { class: section.count > 1 ? "block layer" : "block" }, head, body);
      return { ...section, node, cost, body, lines, boxes };
    });
    this.extras = step.extras.map(() => div("extra"));
    this.place.replaceChildren(...this.sections.map(({ node }) => node), ...this.extras);
    this.watch.disconnect();
    this.far.clear();
    for (const place of new Set(this.sections.flatMap(({ boxes }) => boxes.map((box) => box.place)))) this.watch.observe(place);
    this.settle();
    this.links();
  }

  box(op) {
    const [name, cost, share, track] = [span("name", breaking(op.name)), span("cost"), span("share"), span("track")];
    const node = h("button", { tabindex: "-1", class: "op" }, name, cost, track, share);
    const box = { ...op, node, cost, share, track };
    node.addEventListener("click", () => this.choose(box.own.name));
    return box;
  }

  seconds(ops, step) {
    return ops.reduce((all, { rows }) => all + rows.reduce((a, row) => a + step.ops[row].total_s, 0), 0);
  }

  draw(view) {
    const { step } = view;
    this.last = view;
    if (this.built !== step.phase || this.extras.length !== step.extras.length) this.build(view);
    say($("graph-title"), `${view.title} · ${time(step.time_s)}`);
    const whole = step.time_s * view.setup.stages;
    this.longest = max(...this.sections.flatMap(({ boxes }) => boxes.map((box) => this.seconds([box], step))));
    for (const { cost, ops, count } of this.sections) {
      const all = this.seconds(ops, step);
      say(cost, `${count > 1 ? `${time(all / count / view.setup.parts)} each · ` : ""}${time(all)} · ${percent(all / whole)}`);
    }
    const open = this.sections.flatMap(({ boxes, body }) => (body.hidden ? [] : boxes));
    this.left = open.filter(({ place }) => this.far.has(place));
    for (const box of open) if (!this.far.has(box.place)) this.say(box, view);
    step.extras.forEach((op, i) => {
      const what = WORDS[op.name.split(".").at(-1)];
      say(this.extras[i], `${what}${view.setup.stages > 1 ? `, stage ${op.stage}` : ""} · ${time(op.total_s)} · ${percent(op.share)}`);
    });
  }

  // Boxes that were out of sight, in a later turn.
  rest(view) {
    for (const box of this.left.splice(0)) this.say(box, view);
  }

  say(box, { step, setup, state }) {
    const own = (box.own = step.ops[box.rows[0]]), total = this.seconds([box], step);
    const chosen = box.rows.some((row) => step.ops[row].name === state.op);
    mark(box.node, "class", `op ${own.bound}${chosen ? " chosen" : ""}`);
    pressed(box.node, chosen);
    say(box.cost, time(own.time_s));
    say(box.share, `${own.bound} · ${percent(total / (step.time_s * setup.stages))}`);
    const filled = `${(100 * max(0, total / this.longest)).toFixed(1)}% 100%`;
    if (box.filled !== filled) box.track.style.backgroundSize = box.filled = filled;
    mark(box.node, "title", box.note ? `${own.name}, ${box.note}` : own.name);
  }

  // What jumps over other rows, as dashed lines at the side.
  links() {
    for (const { body, lines, boxes, links } of this.sections ?? []) {
      if (body.hidden) continue;
      const jumps = links.filter(([tail, head]) => boxes[head].rank - boxes[tail].rank > 1);
      const at = body.getBoundingClientRect(), paths = [], lanes = [];
      for (const [tail, head] of jumps) {
        // Beside another box, out of it below and into it from above.
        const [[a, under], [b, over]] = [tail, head].map((i) => {
          const own = boxes[i].node.getBoundingClientRect();
          return [own, own.right < boxes[i].place.getBoundingClientRect().right - 1];
        });
        const [from, to] = [a.bottom - at.top + (under ? 3 : -5), b.top - at.top + (over ? -3 : 5)], end = b.right - at.left;
        let lane = lanes.findIndex((end) => end <= from);
        if (lane < 0) lane = lanes.length;
        lanes[lane] = to;
        const side = at.width - 24 + min(lane, 2) * LANE;
        paths.push(svg("path", { d: `M${a.right - at.left - (under ? 14 : 0)},${from - (under ? 3 : 0)}V${from}H${side - 4}q4,0 4,4V${to - 4}q0,4 -4,4H${end + (over ? -14 : 5)}` }),
          svg("path", { class: "tip", d: over ? `M${end - 14},${to + 3}l-3.5,-6h7z` : `M${end},${to}l7,-3.5v7z` }));
      }
      mark(lines, "width", at.width);
      mark(lines, "height", at.height);
      lines.replaceChildren(...paths);
    }
  }
}
