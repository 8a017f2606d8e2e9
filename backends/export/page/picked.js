// A chart of any column of a table against any other, with a line or marks for each value of a third.
import { div, h, mark } from "./dom.js";
import { NUMERIC, shown } from "./cells.js";
import { KINDS, Marks } from "./marks.js";
import { whole } from "./format.js";

const MOST = 3000, NONE = "nothing";  // marks that are drawn

export class Picked {
  constructor(data, { head, body, id, choose }) {
    const { columns, rows } = globalThis.llmirTold.views.find(({ file }) => file === data.of);
    data = { ...data, columns, rows };
    Object.assign(this, { data, at: { y: data.y, x: data.x, by: data.by ?? NONE } });
    const numbers = data.columns.filter(({ kind }) => NUMERIC.has(kind)), place = div("picks");
    const options = { y: numbers, x: numbers, by: [{ key: NONE, title: NONE }, ...data.columns.filter(({ key }) => data.axes.includes(key))] };
    for (const [name, words] of [["y", "show"], ["x", "against"], ["by", "by"]]) {
      const select = h("select", { id: `${id}-${name}`, onchange: () => this.pick(name, select.value) },
        ...options[name].map(({ key, title }) => h("option", { value: key, selected: key === this.at[name] }, title)));
      place.append(h("label", {}, `${words} `, select));
    }
    head.append(place);
    this.note = h("p", { class: "note", "aria-live": "polite" });
    this.marks = new Marks(this.chart(), { body, choose });
    body.append(this.note);
    this.say();
  }

  pick(name, key) {
    this.at[name] = key;
    this.marks.draw(this.chart());
    this.say();
  }

  say() {
    mark(this.note, "hidden", !this.words);
    this.note.textContent = this.words;
  }

  // Marks by the column that is picked, what does not fit apart; lines join what differs along one axis alone.
  chart() {
    const { columns, rows, axes, title, file, along } = this.data, find = (key) => columns.findIndex((column) => column.key === key);
    const [x, y, by, fits] = [this.at.x, this.at.y, this.at.by, "fits"].map(find), walked = axes.includes(this.at.x) ? this.at.x : along;
    const others = axes.filter((key) => key !== walked).map(find), order = find(walked), groups = new Map();
    const known = rows.map((_, i) => i).filter((i) => rows[i][x] !== null && rows[i][y] !== null), step = Math.ceil(known.length / MOST) || 1;
    for (const i of known.filter((_, n) => n % step === 0)) {
      const row = rows[i], name = by < 0 ? columns[y].title : `${columns[by].title} ${shown(columns[by].kind, row[by])}`, room = fits < 0 || row[fits];
      if (!groups.has(name)) groups.set(name, { shape: groups.size % KINDS, points: [], beyond: [], threads: new Map() });
      const own = groups.get(name), words = `${this.called(row, axes)}\n${columns[x].title}: ${shown(columns[x].kind, row[x])}, ${columns[y].title}: ${shown(columns[y].kind, row[y])}`;
      const point = [row[x], row[y], i, words, ""], key = JSON.stringify(others.map((c) => row[c]));
      (room ? own.points : own.beyond).push(point);
      if (room) own.threads.set(key, [...(own.threads.get(key) ?? []), point]);
    }
    const sorted = (points) => points.sort((a, b) => (order < 0 ? 0 : rows[a[2]][order] - rows[b[2]][order]));
    const series = [...groups].flatMap(([name, { shape, points, beyond, threads }]) => [
      { name: `${name}, does not fit`, shape, faint: true, points: beyond }, { name, shape, line: true, points, threads: step > 1 ? [] : [...threads.values()].map(sorted), labels: step > 1 ? [] : [...threads.values()].map(([first]) => [first, this.called(rows[first[2]], axes.filter((key) => key !== walked && key !== this.at.by))]) },
    ]).filter(({ points }) => points.length);
    this.words = step > 1 ? `one in ${whole(step)} of ${whole(known.length)} marks is drawn` : "";
    return { title, file, series, x: columns[x], y: columns[y], high: 420, none: "No row has both." };
  }

  called(row, axes) {
    const { columns } = this.data;
    return columns.flatMap(({ key, title, kind }, i) => (axes.includes(key) ? [`${title} ${shown(kind, row[i])}`] : [])).join(", ");
  }

  chosen(row) {
    this.marks.chosen(row);
  }

  drawing() {
    return this.marks.drawing();
  }

  csv() {
    return this.marks.csv();
  }
}
