// Small charts: axes, lines, and what lies beyond a limit.
import { put, sheet, svg } from "./dom.js";

export const LEFT = 46, RIGHT = 16, TOP = 26, BOTTOM = 38;  // pixels around what is drawn

// An empty chart of a size, with its axes, and room under them; `x` and `y` are scales.
export function framed(wide, { x, y, title, unit, xFormat, yFormat, xTicks, yTicks, high, label, under = 0 }) {
  x.range([LEFT, wide - RIGHT]);
  y.range([high - BOTTOM, TOP]);
  const root = sheet(wide, high + under, label);
  const axis = (at, draw) => {
    const node = svg("g", { class: "axis", transform: at });
    d3.select(node).call(draw);
    return node;
  };
  const thin = xTicks?.filter((n) => n >= x.domain()[0] && n <= x.domain()[1]);
  const bottom = d3.axisBottom(x).tickFormat(xFormat).tickSizeOuter(0);
  const left = d3.axisLeft(y).ticks(4).tickValues(yTicks ?? null).tickFormat(yFormat).tickSizeOuter(0).tickSizeInner(-(wide - LEFT - RIGHT));
  root.append(axis(`translate(0,${high - BOTTOM})`, thin ? bottom.tickValues(thin) : bottom.ticks(5)),
    axis(`translate(${LEFT},0)`, left),
    put("head", 4, 13, title), put("unit", wide - RIGHT, high + under - 4, unit, "end"));
  return { root, wide, high };
}

let hatches = 0;

// From there on it does not fit: hatched, and in words.
export function beyond(root, from, to, high, words) {
  if (!(from < to)) return;
  const id = `hatch-${hatches++ % 8}`;
  root.append(svg("defs", {}, svg("pattern", { id, width: 7, height: 7, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svg("line", { x1: 0, x2: 0, y1: 0, y2: 7, class: "hatch" }))),
    svg("rect", { x: from, y: TOP, width: to - from, height: high - TOP - BOTTOM, fill: `url(#${id})` }));
  const long = words.length * 6.6;
  if (to - LEFT > long) root.append(put("inside", to - 3, high - BOTTOM - 6, words, "end"));
}
