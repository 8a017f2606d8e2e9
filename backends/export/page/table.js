// All ops of both steps: sorted by any column, found by their names, one of them chosen.
import { abs, bytes, digits, flops, percent, time, within } from "./format.js";
import { $, LETTERS, badge, breaking, div, h, mark, roving, say, span } from "./dom.js";
import { line } from "./menu.js";

const FEW = 24;  // ops on paper

const some = (show) => (n) => (n ? show(n) : "–");
// What each has of an op, its title, and how it is shown; what stands in `ideal` is worked out.
const COLUMNS = [
  ["name", "op"], ["repeat", "×", String], ["time_s", "time of one", time], ["error", "±", (error, own) => (own || error ? within(error) : "–")],
  ["share", "share", percent], ["flops", "FLOPs", some(flops)], ["bytes", "bytes", some(bytes)], ["intensity", "FLOP/B", some(digits)], ["bound", "bound"],
  ["ideal", "of roofline", (share, own) => percent(own ? share : NaN)],
];
const valued = (op, key) => (key === "ideal" ? op.ideal_time_s / op.time_s : op[key]);

export class Table {
  constructor(choose) {
    this.choose = choose;
    this.sort = {};
    this.filter = "";
    this.place = $("table");
    this.settle = roving(this.place, "tbody button");
    $("filter").addEventListener("input", ({ target }) => {
      this.filter = target.value.toLowerCase();
      this.draw(this.last);
    });
  }

  build(step) {
    const heads = COLUMNS.map(([key, title]) => h("th", { scope: "col", class: key }, h("button", { onclick: () => this.by(key) }, title)));
    const caption = h("caption"), body = h("tbody"), all = [...step.ops, ...step.extras];
    const rows = all.map((op) => {
      const name = op.row ? h("button", { onclick: () => this.choose(op.name) }, breaking(op.name)) : span(null, op.name);
      const letter = badge(op.bound), word = span();
      const cells = COLUMNS.map(([key]) => {
        if (key === "name") return h("th", { scope: "row" }, name);
        return key === "bound" ? h("td", { class: key }, letter, " ", word) : h("td", { class: key });
      });
      const row = h("tr", {}, ...cells);
      body.append(row);
      return { row, cells, letter, word, name };
    });
    const rest = div("note paper");
    this.place.replaceChildren(h("table", {}, caption, h("thead", {}, h("tr", {}, ...heads)), body), rest);
    Object.assign(this, { heads, rows, body, caption, rest, built: step.phase, size: all.length });
    this.order = null;
  }

  by(column) {
    const { sort } = this, again = sort.column === column, first = column !== "name";
    this.sort = again && sort.down !== first ? {} : { column, down: again ? !sort.down : first };
    this.draw(this.last);
  }

  draw(view) {
    this.last = view;
    const { step, state } = view, all = [...step.ops, ...step.extras];
    if (this.built !== step.phase || this.size !== all.length) this.build(step);
    const error = step.error === null ? "" : ` ${within(step.error)}`;
    say(this.caption, `${view.title}: ${time(step.time_s)}${error}`);
    const found = all.filter(({ name }) => name.toLowerCase().includes(this.filter)), chosen = (op) => op.name === state.op;
    const late = found.sort((a, b) => chosen(b) - chosen(a) || abs(b.total_s) - abs(a.total_s)).slice(FEW);
    say(this.rest, late.length ? `… ${late.length} more that take less: ${percent(late.reduce((sum, { share }) => sum + share, 0))} of the step, in the CSV` : "");
    all.forEach((op, i) => {
      const { row, cells, letter, word, name } = this.rows[i];
      COLUMNS.forEach(([key, , show], c) => {
        if (key === "bound") say(word, op.bound);
        else if (show) say(cells[c], show(valued(op, key), op.row));
      });
      if (!op.row) say(name, op.name);
      say(letter, LETTERS[op.bound]);
      mark(letter, "class", `badge ${op.bound}`);
      mark(row, "class", chosen(op) ? "chosen" : late.includes(op) ? "late" : null);
      mark(row, "aria-selected", chosen(op) ? "true" : null);
      mark(row, "hidden", !found.includes(op));
    });
    this.arrange(all);
    this.settle();
  }

  arrange(all) {
    const { column, down } = this.sort, order = all.map((_, i) => i);
    if (column) {
      const values = all.map((op) => valued(op, column) || 0), turn = down ? -1 : 1;
      order.sort((a, b) => (values[a] < values[b] ? -turn : values[a] > values[b] ? turn : a - b));
    }
    const key = order.join();
    if (key !== this.order) this.body.append(...order.map((i) => this.rows[i].row));
    this.order = key;
    this.heads.forEach((head, i) => mark(head, "aria-sort", COLUMNS[i][0] === column ? (down ? "descending" : "ascending") : null));
  }
}

// A table as CSV, in SI units.
export function csv(steps) {
  const names = "phase,op,repeat,time_s,ideal_time_s,error,share,flops,read_bytes,write_bytes,comm_bytes,bound,basis".split(",");
  const lines = Object.entries(steps).flatMap(([phase, step]) =>
    step ? [...step.ops, ...step.extras].map((op) => line(names.map((name) => ({ ...op, phase, op: op.name })[name]))) : []);
  return [names.join(), ...lines, ""].join("\n");
}
