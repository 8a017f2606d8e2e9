// A table: sorted by any column, found in by its text, one row of it chosen.
import { h, mark, roving, say, span } from "./dom.js";
import { line } from "./menu.js";
import { whole } from "./format.js";
import { NUMERIC, shown } from "./cells.js";

const MOST = 500, FEW = 12;  // rows that are shown, and above which there is something to find

export class Sheet {
  constructor(data, { head, body, id, choose }) {
    Object.assign(this, { data, choose, sort: null, down: true, row: null, filter: "" });
    this.texts = data.rows.map((row) => row.filter((cell) => typeof cell === "string").join(" ").toLowerCase());
    if (data.rows.length > FEW) {
      head.append(h("input", { type: "search", class: "find", placeholder: "find a row", "aria-label": `find a row in ${data.title}`, oninput: ({ target }) => this.find(target.value) }));
    }
    this.heads = data.columns.map((column, i) => h("th", { scope: "col", class: kind(column), title: column.more },
      h("button", { onclick: () => this.by(i) }, column.title)));
    [this.caption, this.lines] = [h("caption"), h("tbody")];
    const table = h("table", {}, this.caption, h("thead", {}, h("tr", {}, ...this.heads)), this.lines);
    body.append(h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${data.title}, scrolls sideways`, id: `${id}-table` }, table));
    this.settle = data.choosable ? roving(this.lines, "button", { ArrowDown: 1, ArrowUp: -1 }) : () => {};
    this.draw();
  }

  find(text) {
    this.filter = text.toLowerCase();
    this.draw();
  }

  // Numbers first from the largest, words from the first letter, then the other way, then as they came.
  by(i) {
    const first = NUMERIC.has(this.data.columns[i].kind), again = this.sort === i;
    [this.sort, this.down] = again && this.down !== first ? [null, true] : [i, again ? !this.down : first];
    this.draw();
  }

  get order() {
    const { rows } = this.data, found = rows.map((_, i) => i).filter((i) => this.texts[i].includes(this.filter));
    if (this.sort === null) return found;
    const value = (i) => rows[i][this.sort], none = (v) => v === null || v === undefined, turn = this.down ? -1 : 1;
    return found.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (none(x) || none(y)) return none(x) - none(y) || a - b;
      return (x < y ? -turn : x > y ? turn : 0) || a - b;
    });
  }

  draw() {
    const { data, order } = this, few = order.slice(0, MOST), all = data.rows.length;
    const what = order.length < all ? `${whole(order.length)} of ${whole(all)} rows` : `${whole(all)} row${all === 1 ? "" : "s"}`;
    say(this.caption, few.length < order.length ? `${what}, the first ${MOST} shown; the CSV has all` : what);
    this.lines.replaceChildren(...few.map((i) => this.line(i)));
    this.heads.forEach((head, i) => mark(head, "aria-sort", this.sort === i ? (this.down ? "descending" : "ascending") : null));
    this.settle();
  }

  line(i) {
    const { columns, rows, choosable, wrong } = this.data, bad = wrong?.[i] ?? [];
    const cells = rows[i].map((value, c) => {
      const text = shown(columns[c].kind, value), look = [kind(columns[c]), bad.includes(c) ? "wrong" : ""].join(" ").trim();
      if (c) return h("td", { class: look }, bad.includes(c) ? [text, span("unseen", ", beyond its limit")] : text);
      return h("th", { scope: "row", class: look }, choosable ? h("button", { "data-row": i, onclick: () => this.choose(i) }, text) : text);
    });
    return h("tr", { class: i === this.row ? "chosen" : null, "data-row": i }, ...cells);
  }

  chosen(row) {
    if (!this.data.choosable) return;
    this.row = row;
    for (const own of this.lines.rows) {
      const at = Number(own.dataset.row) === row;
      mark(own, "class", at ? "chosen" : null);
      mark(own.querySelector("button"), "aria-pressed", at ? "true" : null);
    }
  }

  csv() {
    const { columns, rows } = this.data;
    return [line(columns.map(({ key }) => key)), ...this.order.map((i) => line(rows[i])), ""].join("\n");
  }
}

const kind = (column) => (column.prose ? "prose" : NUMERIC.has(column.kind) ? "" : "word");
