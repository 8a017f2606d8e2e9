// A step over its pipeline stages, to scale: what each does with each micro-batch, and how long it waits for others.
import { max, time } from "./format.js";
import { $, Chart, mark, put, sheet, svg } from "./dom.js";

const LEFT = 46, TOP = 34, ROW = 30, HIGH = 22;  // pixels

export class Lanes extends Chart {
  constructor() {
    super($("skyline-chart"));
    this.place = $("lanes");
  }

  draw(view) {
    const { setup, step, title } = (this.last = view);
    mark(this.place, "hidden", setup.stages === 1);
    if (setup.stages === 1 || !this.wide) return;
    const high = TOP + setup.stages * ROW, x = d3.scaleLinear([0, step.time_s], [LEFT, this.wide - 16]), rows = slices(step, setup.parts);
    const words = `${setup.stages} stages${setup.parts > 1 ? ` × ${setup.parts} micro-batches` : ""}; dashed: waits`;
    const root = sheet(this.wide, high, `${title}: ${words}`);
    root.append(put("head", 4, 13, words), put("unit", LEFT, 29, "0"), put("unit", this.wide - 16, 29, time(step.time_s), "end"));
    rows.forEach((lane, stage) => {
      const y = TOP + stage * ROW, paths = {}, marks = [];
      for (const { kind, part, from, to } of lane) {
        const [left, right] = [x(from), x(to)], said = kind === "bubble" ? time(to - from) : `${part}`;
        paths[kind] = `${paths[kind] ?? ""}M${left},${y}H${right}V${y + HIGH}H${left}Z`;
        if (kind !== "overhead" && said.length * 7 + 6 < right - left) marks.push(put("inside", (left + right) / 2, y + 15, said, "middle"));
      }
      const all = (name) => lane.reduce((sum, { kind, from, to }) => sum + (kind === name && to - from), 0);
      const said = `stage ${stage}: ${time(all("work"))} of ops, ${time(all("overhead"))} of overhead, ${time(all("bubble"))} of waits`;
      root.append(svg("g", {}, svg("title", {}, said), put("head", 4, y + 15, stage), ...Object.entries(paths).map(([kind, d]) => svg("path", { d, class: `lane ${kind}` })), ...marks));
    });
    this.place.replaceChildren(root);
  }
}

// Of each stage its slices, from the start of the step to its end: a micro-batch begins once it has left the stage
// before, and the stage has done the one before. What the engine adds to a micro-batch is one slice, before its ops.
export function slices({ stages, overheads }, parts) {
  const found = stages.map(() => []), free = stages.map(() => 0);
  const add = (stage, kind, part, from, to) => to > from && found[stage].push({ kind, part, from, to });
  for (let part = 0; part < parts; part++) {
    let there = 0;
    stages.forEach((seconds, stage) => {
      const start = max(free[stage], there), work = start + overheads[stage];
      add(stage, "bubble", part, free[stage], start);
      there = free[stage] = start + seconds;
      add(stage, "overhead", part, start, work);
      add(stage, "work", part, work, there);
    });
  }
  const end = max(...free);
  stages.forEach((_, stage) => add(stage, "bubble", parts - 1, free[stage], end));
  return found;
}
