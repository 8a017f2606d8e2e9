// What stands around the views: tabs where there is room for one at a time, and the foot.
import { LETTERS, $, badge, div, h, mark, pressed, say, span } from "./dom.js";
import { max, min, percent } from "./format.js";

const ORDER = ["Roofline", "Graph", "Table", "Memory", "Curves", "A:B"];

export class Tabs {
  constructor() {
    this.views = new Map([...document.querySelectorAll("[data-view]")].map((node) => [node.dataset.view, node]));
    this.tabs = ORDER.map((name) => {
      const tab = h("button", { onclick: () => this.show(name) }, name);
      $("tabs").append(tab);
      return [name, tab];
    });
    this.show("Roofline");
  }

  show(name) {
    this.shown = name;
    for (const [each, view] of this.views) mark(view, "data-shown", each === name);
    for (const [each, tab] of this.tabs) pressed(tab, each === name);
  }

  draw({ pinned }) {
    const last = this.tabs.at(-1)[1];
    mark(last, "hidden", !pinned);
    if (!pinned && this.shown === "A:B") this.show("Roofline");
  }
}

export class Foot {
  constructor(told) {
    const words = Object.keys(LETTERS).filter((bound) => bound !== "bubble").map((bound) => span(null, badge(bound), ` ${bound}`));
    this.notes = div("notes");
    this.basis = span();
    $("foot").append(span("legend", ...words), this.basis,
      span(null, `llmir ${told.version}; computed in this page, ${told.sent ?? "nothing is sent"}`), this.notes);
  }

  draw({ setup, steps }) {
    const errors = [...steps.prefill.ops, ...(steps.decode?.ops ?? [])].map(({ error }) => error).filter((error) => error !== null);
    const range = errors.length ? `, ± ${percent(min(...errors))} to ${percent(max(...errors))} by kernel` : "";
    say(this.basis, `times: ${setup.whose}${range}${errors.length ? "; ± is the mean error of such kernels on shapes left out of their fit" : ""}`);
    if (this.setup !== setup) this.notes.replaceChildren(...setup.notes.map((note) => h("p", {}, note)));
    this.setup = setup;
  }
}
