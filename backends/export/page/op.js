// One op: its equation, what it costs in symbols and here, what bounds it, and where the constants come from.
import { bytes, flops, max, percent, rate, time, whole, within } from "./format.js";
import { $, badge, breaking, div, h, heads, span } from "./dom.js";

// A size in symbols as it is read: 10,240·B·T.
const symbols = (text) => text.replace(/\d{4,}/g, (n) => whole(Number(n))).replaceAll("*", "·\u200b");

export class Op {
  constructor() {
    this.place = $("op-body");
  }

  draw({ step, state, phase, setup }) {
    const op = step.ops.find(({ name }) => name === state.op) ?? step.ops.reduce((a, b) => (b.total_s > a.total_s ? b : a));
    const key = JSON.stringify([step.at, phase, op.name, op.time_s, op.row.about.limits, setup.typed]);
    if (key === this.key) return;
    this.key = key;
    const limits = op.row.about.limits.map((limit) => ({ ...limit, rate: setup.rate(limit.key) ?? limit.rate, source: limit.key in setup.typed ? "typed in" : limit.source }));
    const { about } = op.row, chosen = op.name === state.op;
    const head = div("line", h("h2", {}, breaking(op.name), span("more", ` ${about.op}${op.repeat > 1 ? ` × ${op.repeat}` : ""}, ${phase}`)),
      span(null, h("strong", { class: `big ${op.bound}` }, time(op.time_s)), ` ${within(op.error)} `, badge(op.bound), ` ${op.bound}`));
    const sizes = about.axes.map(([name, size]) => `${name} ${symbols(size)}`).join(", ");
    this.place.replaceChildren(head,
      chosen ? "" : h("p", { class: "hint" }, "The longest op of the step; choose another in the graph, the roofline or the table."),
      div("equation", h("code", {}, about.equation), span("more", sizes)),
      this.sizes(op, step), this.bars(op, limits), this.origin(op, limits));
  }

  sizes(op, { at }) {
    const { about } = op.row, rows = [];
    if (op.matmul_flops) rows.push(["matrix FLOPs", about.matrix, flops(op.matmul_flops)]);
    if (op.flops - op.matmul_flops) rows.push(["vector FLOPs", about.vector, flops(op.flops - op.matmul_flops)]);
    for (const [role, text] of Object.entries(about.moved)) {
      const [way, what] = role.split(", "), moved = op[`${what === "cache" ? "kv_cache" : what}_${way === "read" ? way : "write"}_bytes`];
      rows.push([role, text, moved === undefined ? "" : bytes(moved)]);
    }
    if (op.comm_bytes) rows.push(["sent", "", bytes(op.comm_bytes)]);
    return h("table", { class: "sizes" },
      heads(["one execution", "in symbols", `B ${whole(at[0])}, T ${whole(at[1])}, C ${whole(at[2])}`]),
      h("tbody", {}, rows.map(([name, text, here]) => h("tr", {}, h("th", { scope: "row" }, name), h("td", {}, h("code", {}, symbols(text))), h("td", {}, here)))));
  }

  bars(op, limits) {
    const rows = [];
    for (const { bound, what, rate: speed } of limits) {
      const matrix = what.includes("matrix"), amount = bound === "memory" ? op.bytes : matrix ? op.matmul_flops : op.flops - op.matmul_flops;
      if (bound !== "network" && amount) rows.push([what, bound, amount / speed, rate(speed, bound === "memory" ? "B/s" : "FLOP/s")]);
    }
    if (op.comm_bytes) rows.push(["roofline", "network", op.ideal_time_s, ""]);
    rows.push(["predicted", op.bound, op.time_s, `${percent(op.ideal_time_s / op.time_s)} of the roofline`]);
    const most = max(...rows.map(([, , seconds]) => seconds));
    return div("bars", rows.map(([name, bound, seconds, beside]) => {
      const fill = h("i", { class: bound });
      fill.style.width = `${(100 * seconds) / most}%`;
      return div("row", span(null, name), span("track", fill), span(null, `${time(seconds)}${beside ? ` · ${beside}` : ""}`));
    }));
  }

  origin(op, limits) {
    const { about } = op.row, kernel = about.kernels[op.which];
    const lines = [`${op.basis}${kernel ? `: ${kernel}` : ""}${op.error === null ? "" : `; ${percent(op.error)} off in the mean on shapes left out`}.`,
      ...new Set(limits.map(({ what, rate: speed, source }) => `${what}: ${rate(speed, what === "bytes" ? "B/s" : "FLOP/s")}, ${source}.`))];
    return div("origin", h("h3", {}, "Where the constants come from"), lines.map((line) => h("p", {}, line)));
  }
}
