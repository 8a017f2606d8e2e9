// The page: each change is computed and drawn.
import { Setup, once } from "./price.js";
import { $, either, mark, say } from "./dom.js";
import { whole, time, digits } from "./format.js";
import { fitting } from "./rates.js";
import { State } from "./state.js";
import { Controls } from "./controls.js";
import { Figures } from "./figures.js";
import { Table } from "./table.js";
import { Graph } from "./graph.js";
import { Roofline } from "./roofline.js";
import { Op } from "./op.js";
import { Skyline } from "./skyline.js";
import { Lanes } from "./lanes.js";
import { Curves } from "./curves.js";
import { Against } from "./against.js";
import { Actions } from "./actions.js";
import { FRAMED } from "./menu.js";
import { Tabs, Foot } from "./frame.js";

const STILL = 300;  // ms

class Page {
  constructor(told) {
    const functions = once(globalThis.llmirFunctions);
    this.setups = told.setups.map((own) => (own.why ? own : new Setup(own, told.tables, functions, told)));
    this.told = told;
    this.state = new State(told, this.setups);
    const choose = (op) => this.changed({ op: this.state.op === op ? null : op });
    this.controls = new Controls(this.state, told, (change) => this.changed(change));
    const made = (...views) => views.map((View) => new View(choose, told));
    const [figures, graph, roofline] = made(Figures, Graph, Roofline);
    this.views = [new Actions(this), new Tabs(), figures, graph, roofline, new Foot(told)];
    this.later = [{ draw: (view) => [graph, roofline].forEach((each) => each.rest(view)) }, ...made(Op, Table, Skyline, Lanes, Against, Curves)];  // in a turn of their own, so that sliders move freely
    this.phased = either("phase", ["prefill", "decode"], (phase) => this.changed({ phase }));
    this.dims = matchMedia("(prefers-color-scheme: dark)");
    this.dims.addEventListener("change", () => this.changed({}));
    addEventListener("hashchange", () => {
      if (location.hash !== this.state.hash) {
        this.state.read();
        this.draw();
      }
    });
    this.draw();
    this.rest();
  }

  changed(change) {
    Object.assign(this.state, change);
    if (!this.asked) this.asked = requestAnimationFrame(() => this.draw());
  }

  // What a set-up takes at some sizes.
  priced(at) {
    const bare = this.setups[at.setup], setup = bare.given(fitting(bare, at.typed ?? {}).rates), figures = setup.request(at);
    figures.user = figures.tpot_s ? 1 / figures.tpot_s : null;
    return { setup, figures, memory: setup.memory(at), steps: setup.steps(at), at };
  }

  draw() {
    const began = performance.now(), { state } = this;
    this.asked = null;
    const priced = this.priced({ setup: state.setup, typed: state.typed, ...state.at });
    const key = JSON.stringify(state.pin);
    if (this.pinKey !== key) [this.pinKey, this.pinned] = [key, state.pin && this.priced(state.pin)];
    const phase = priced.steps[state.phase] ? state.phase : "prefill", step = priced.steps[phase];
    const title = phase === "decode"
      ? `last decode step, ${whole(step.context)} cached`
      : `prefill, ${whole(step.batch)} × ${whole(step.fresh)} tokens`;
    const view = { ...priced, state, phase, step, title, pinned: this.pinned, page: this };
    const dark = state.theme === "dark" || (state.theme === "auto" && this.dims.matches);
    mark(document.documentElement, "data-theme", dark ? "dark" : "light");
    this.controls.draw();
    this.phased(phase);
    mark($("phase-decode"), "disabled", !priced.steps.decode);
    for (const each of this.views) each.draw(view);
    this.view = view;
    this.took = performance.now() - began;
    this.waiting ??= setTimeout(() => this.rest());
    clearTimeout(this.saying);
    this.saying = setTimeout(() => this.still(view), STILL);
  }

  rest() {
    clearTimeout(this.waiting);
    this.waiting = null;
    for (const each of this.later) each.draw(this.view);
  }

  // The address, and the figures for those who hear them, once all stands still.
  still({ figures, memory }) {
    if (!FRAMED && location.hash !== this.state.hash) history.replaceState(null, "", this.state.hash);
    const later = figures.tpot_s === null ? "" : `, TPOT ${time(figures.tpot_s)}`;
    say($("live"), `TTFT ${time(figures.ttft_s)}${later}, ${digits(figures.output_tokens_per_s)} output tokens a second, ${memory.fits ? "fits" : "does not fit"}`);
  }
}

mark($("main"), "hidden", null);
(globalThis.llmirPage = new Page(globalThis.llmirTold)).ready = performance.now();
mark(document.documentElement, "data-ready", "");
