// A chart of any column of a table against any other, by the values of a third: the Pareto front of each, or all rows.
import { div, h, mark } from "./dom.js";
import { NUMERIC, shown } from "./cells.js";
import { KINDS, Marks } from "./marks.js";
import { whole } from "./format.js";

const MOST = 3000, NONE = "nothing", ANY = "", FRONT = "front", ROWS = "rows";  // marks that are drawn

// Of points, those that no other exceeds in both, by their first figure; and the others.
const divided = (points) => {
  const ahead = [], beaten = [];
  let most = -Infinity;
  for (const point of [...points].sort((a, b) => b[0] - a[0] || b[1] - a[1])) {
    (point[1] > most ? ahead : beaten).push(point);
    most = Math.max(most, point[1]);
  }
  return [ahead.reverse(), beaten];
};

export class Picked {
  constructor(data, { head, body, id, choose }) {
    const { columns, rows } = globalThis.llmirTold.views.find(({ file }) => file === data.of);
    data = { ...data, columns, rows };
    Object.assign(this, { data, at: { y: data.y, x: data.x, by: data.by ?? NONE, draw: FRONT }, only: {} });
    const numbers = data.columns.filter(({ kind }) => NUMERIC.has(kind)), place = div("picks");
    const options = { y: numbers, x: numbers, by: [{ key: NONE, title: NONE }, ...data.columns.filter(({ key }) => data.axes.includes(key))], draw: [{ key: FRONT, title: "the front of each" }, { key: ROWS, title: "all rows" }] };
    for (const [name, words] of [["y", "show"], ["x", "against"], ["by", "by"], ["draw", "draw"]]) {
      const select = h("select", { id: `${id}-${name}`, onchange: () => this.pick(name, select.value) },
        ...options[name].map(({ key, title }) => h("option", { value: key, selected: key === this.at[name] }, title)));
      place.append(h("label", {}, `${words} `, select));
    }
    head.append(place);
    body.append(this.filters(id));
    this.note = h("p", { class: "note", "aria-live": "polite" });
    this.marks = new Marks(this.chart(), { body, choose });
    body.append(this.note);
    this.say();
  }

  // A choice of one value of each axis, or of all.
  filters(id) {
    const { columns, rows, axes } = this.data, place = div("picks");
    columns.forEach(({ key, title, kind }, i) => {
      const values = axes.includes(key) ? [...new Set(rows.map((row) => row[i]))] : [];
      if (values.length < 2) return;
      const select = h("select", { id: `${id}-only-${key}`, onchange: () => this.keep(key, select.value === ANY ? undefined : values[select.value]) },
        h("option", { value: ANY }, "all"), ...values.map((value, n) => h("option", { value: n }, shown(kind, value))));
      place.append(h("label", {}, `only ${title} `, select));
    });
    return place;
  }

  keep(key, value) {
    this.only[key] = value;
    this.marks.draw(this.chart());
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
    const front = this.at.draw === FRONT && [this.at.x, this.at.y].every((key) => this.data.better.includes(key));
    const kept = Object.entries(this.only).filter(([, value]) => value !== undefined).map(([key, value]) => [find(key), value]);
    const known = rows.map((_, i) => i).filter((i) => rows[i][x] !== null && rows[i][y] !== null && kept.every(([c, value]) => rows[i][c] === value)), step = Math.ceil(known.length / MOST) || 1;
    for (const i of known.filter((_, n) => front || n % step === 0)) {
      const row = rows[i], name = by < 0 ? columns[y].title : `${columns[by].title} ${shown(columns[by].kind, row[by])}`, room = fits < 0 || row[fits];
      if (!groups.has(name)) groups.set(name, { shape: groups.size % KINDS, points: [], beyond: [], threads: new Map() });
      const own = groups.get(name), words = `${this.called(row, axes)}\n${columns[x].title}: ${shown(columns[x].kind, row[x])}, ${columns[y].title}: ${shown(columns[y].kind, row[y])}`;
      const point = [row[x], row[y], i, words, ""], key = JSON.stringify(others.map((c) => row[c]));
      (room ? own.points : own.beyond).push(point);
      if (room) own.threads.set(key, [...(own.threads.get(key) ?? []), point]);
    }
    const sorted = (points) => points.sort((a, b) => (order < 0 ? 0 : rows[a[2]][order] - rows[b[2]][order]));
    const some = (points) => points.filter((_, n) => n % step === 0);
    const fronts = ([name, { shape, points, beyond }]) => {
      const [ahead, beaten] = divided(points);
      return [{ name: `${name}, does not fit`, shape, faint: true, points: some(beyond) }, { name: `${name}, beaten`, shape, faint: true, points: some(beaten) }, { name: `front of ${name}`, shape, line: true, points: ahead }];
    };
    const series = [...groups].flatMap(front ? fronts : ([name, { shape, points, beyond, threads }]) => [
      { name: `${name}, does not fit`, shape, faint: true, points: beyond }, { name, shape, line: true, points, threads: step > 1 ? [] : [...threads.values()].map(sorted), labels: step > 1 ? [] : [...threads.values()].map(([first]) => [first, this.called(rows[first[2]], axes.filter((key) => key !== walked && key !== this.at.by))]) },
    ]).filter(({ points }) => points.length);
    const drawn = step > 1 ? `one in ${whole(step)} of ${whole(known.length)} marks is drawn` : "";
    this.words = [front && "no row that fits has more of both figures than one on the front", drawn].filter(Boolean).join("; ");
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
