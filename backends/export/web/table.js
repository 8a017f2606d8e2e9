// All ops of both steps: sorted by any column, found by their names, one of them chosen.
import { abs, bytes, digits, flops, percent, time, within } from "./format.js";
import { $, LETTERS, called, div, h, mark, roving, say, span } from "./dom.js";
import { line } from "./menu.js";

const FEW = 24;  // ops on paper

const COLUMNS = [
  { key: "name", title: "op" },
  { key: "repeat", title: "×", show: String },
  { key: "time", title: "time of one", of: (op) => op.time_s, show: time },
  { key: "error", title: "±", show: (error, own) => (own || error ? within(error) : "–") },
  { key: "share", title: "share", show: percent },
  { key: "flops", title: "FLOPs", show: (n) => (n ? flops(n) : "–") },
  { key: "bytes", title: "bytes", show: (n) => (n ? bytes(n) : "–") },
  { key: "intensity", title: "FLOP/B", show: digits },
  { key: "bound", title: "bound" },
  { key: "ideal", title: "of roofline", of: (op) => op.ideal_time_s / op.time_s, show: (share, own) => percent(own ? share : NaN) },
];

export class Table {
  constructor(choose) {
    this.choose = choose;
    this.sort = { column: null, down: true };
    this.filter = "";
    this.place = $("table");
    this.settle = roving(this.place, "tbody button");
    $("filter").addEventListener("input", ({ target }) => {
      this.filter = target.value.toLowerCase();
      this.draw(this.last);
    });
  }

  build(step) {
    const heads = COLUMNS.map((column) => {
      const button = h("button", { onclick: () => this.by(column) }, column.title);
      return h("th", { scope: "col", class: column.key }, button);
    });
    const caption = h("caption");
    const body = h("tbody"), all = [...step.ops, ...step.extras];
    const rows = all.map((op) => {
      const name = op.row
        ? h("button", { onclick: () => this.choose(op.name) }, op.name)
        : span(null, called(op));
      const letter = h("span", { class: "badge", "aria-hidden": "true" }), word = span();
      const cells = COLUMNS.map(({ key }) => {
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
    const { sort } = this, again = sort.column === column;
    this.sort = again && sort.down !== (column.key !== "name") ? { column: null } : { column, down: again ? !sort.down : column.key !== "name" };
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
      COLUMNS.forEach(({ key, show, of }, c) => {
        if (key === "bound") say(word, op.bound);
        else if (key !== "name") say(cells[c], show(of ? of(op) : op[key], op.row));
      });
      if (!op.row) say(name, called(op));
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
      const of = column.of ?? ((op) => op[column.key] || 0), values = all.map(of), compare = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
      order.sort((a, b) => (down ? -1 : 1) * compare(values[a], values[b]) || a - b);
    }
    const key = order.join();
    if (key !== this.order) this.body.append(...order.map((i) => this.rows[i].row));
    this.order = key;
    this.heads.forEach((head, i) => {
      const own = COLUMNS[i] === column;
      mark(head, "aria-sort", own ? (down ? "descending" : "ascending") : null);
    });
  }
}

// A table as CSV, in SI units.
export function csv(steps) {
  const names = ["phase", "op", "repeat", "time_s", "ideal_time_s", "error", "share", "flops", "read_bytes", "write_bytes", "comm_bytes", "bound", "basis"];
  const lines = Object.entries(steps).flatMap(([phase, step]) =>
    step ? [...step.ops, ...step.extras].map((op) => line(names.map((name) => ({ ...op, phase, op: op.name })[name]))) : []);
  return [names.join(), ...lines, ""].join("\n");
}
