// The page of a result: what was asked, its figures, and views of tables that were made with it.
import { $, div, h, mark, say, span } from "./dom.js";
import { Menu } from "./menu.js";
import { shown } from "./cells.js";
import { Sheet } from "./sheet.js";
import { Marks } from "./marks.js";
import { Picked } from "./picked.js";
import { Strip } from "./strip.js";

const VIEWS = { sheet: Sheet, marks: Marks, picked: Picked, strip: Strip };

class Page {
  constructor(told) {
    this.told = told;
    this.row = null;
    this.dims = matchMedia("(prefers-color-scheme: dark)");
    this.dims.addEventListener("change", () => this.dim(this.asked));
    const chip = ([title, text]) => div("chip", span("small", title), h("strong", {}, text));
    $("setup").append(...told.chips.map(chip));
    const main = $("main");
    if (told.answer) main.append(h("p", { class: "card answer" }, h("strong", {}, told.answer), ...told.lines.map((line) => span(null, line))));
    const card = ({ title, value, kind, beside }) => div("card figure", div("title", title),
      h("div", {}, h("strong", { class: "value" }, shown(kind, value)), " ", span("beside", beside)));
    if (told.figures.length) main.append(h("section", { class: "figures", "aria-label": "figures" }, ...told.figures.map(card)));
    main.append(h("p", { id: "live", class: "unseen", role: "status", "aria-live": "polite" }), h("div", { id: "results" }));
    this.views = told.views.map((view, i) => this.view(view, i));
    this.menu = new Menu(this.views.flatMap((view) => this.items(view)), (theme) => this.dim(theme));
    $("foot").append(span(null, told.basis), span(null, `llmir ${told.version}; all of it is in this page, nothing is asked or sent`),
      div("notes", ...told.notes.map((note) => h("p", {}, note))));
    addEventListener("beforeprint", () => mark(document.documentElement, "data-theme", "light"));
    addEventListener("afterprint", () => this.dim(this.asked));
    this.dim(new URLSearchParams(location.hash.slice(1)).get("theme"));
  }

  view(view, i) {
    const id = `view-${i}`, head = div("line", h("h2", { id: `${id}-title` }, view.title));
    const body = h("div"), own = h("section", { class: `card ${view.look} ${view.kind}`, id, "aria-labelledby": `${id}-title` }, head, body);
    $("results").append(own);
    const made = new VIEWS[view.kind](view, { head, body, id, choose: (row) => this.choose(row) });
    if (view.note) own.append(h("p", { class: "note" }, view.note));
    return made;
  }

  items(view) {
    const { title, file } = view.data, found = [];
    if (view.csv) found.push([`csv-${file}`, `${title} as CSV`, () => this.menu.csv(file, view.csv())]);
    if (view.drawing) {
      found.push([`svg-${file}`, `${title} as SVG`, () => this.menu.svg(file, view.drawing())],
        [`png-${file}`, `${title} as PNG`, () => this.menu.png(file, view.drawing())]);
    }
    return found;
  }

  // One row is chosen in all views, and what there is to say of it is heard.
  choose(row) {
    this.row = this.row === row ? null : row;
    for (const view of this.views) view.chosen?.(this.row);
    say($("live"), this.row === null ? "" : this.told.about[this.row] ?? "");
  }

  dim(asked) {
    this.asked = ["light", "dark"].includes(asked) ? asked : null;
    mark(document.documentElement, "data-theme", this.asked ?? (this.dims.matches ? "dark" : "light"));
    this.menu.dimmed();
  }
}

mark($("main"), "hidden", null);
globalThis.llmirPage = new Page(globalThis.llmirTold);
mark(document.documentElement, "data-ready", "");
