// The page: what it was told is opened, and each change is computed and drawn.
import { Setup } from "./price.js";
import { $, mark, say } from "./dom.js";
import { whole, time, digits } from "./format.js";
import { State } from "./state.js";
import { Controls } from "./controls.js";
import { Figures } from "./figures.js";
import { Table } from "./table.js";

async function opened() {
  const packed = Uint8Array.from(atob($("data").textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const text = await new Response(stream).text(), end = text.indexOf("\n");
  const script = document.createElement("script");
  script.textContent = text.slice(end + 1);  // its hash is in the page's policy
  document.head.append(script);
  return JSON.parse(text.slice(0, end));
}

class Page {
  constructor(told) {
    this.setups = told.setups.map((own) => (own.why ? own : new Setup(own, told.tables, globalThis.llmirFunctions, told)));
    this.told = told;
    this.state = new State(told, this.setups);
    const choose = (op) => this.changed({ op: this.state.op === op ? null : op });
    this.controls = new Controls(this.state, told, (change) => this.changed(change));
    this.views = [new Figures(), new Table(choose)];
    this.dims = matchMedia("(prefers-color-scheme: dark)");
    this.dims.addEventListener("change", () => this.changed({}));
    addEventListener("hashchange", () => {
      if (location.hash !== this.state.hash) {
        this.state.read();
        this.draw();
      }
    });
    this.draw();
  }

  changed(change) {
    Object.assign(this.state, change);
    if (!this.asked) this.asked = requestAnimationFrame(() => this.draw());
  }

  // What a set-up takes at some sizes.
  priced(at) {
    const setup = this.setups[at.setup], figures = setup.request(at);
    figures.user = figures.tpot_s ? 1 / figures.tpot_s : null;
    return { setup, figures, memory: setup.memory(at), steps: setup.steps(at), at };
  }

  draw() {
    const began = performance.now(), { state } = this;
    this.asked = null;
    const priced = this.priced({ setup: state.setup, ...state.at });
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
    for (const each of this.views) each.draw(view);
    history.replaceState(null, "", state.hash);
    this.view = view;
    this.took = performance.now() - began;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => this.say(view), 500);
  }

  // The figures for those who hear them, once they stand still.
  say({ figures, memory }) {
    const later = figures.tpot_s === null ? "" : `, TPOT ${time(figures.tpot_s)}`;
    const fits = memory.fits ? "fits" : "does not fit";
    say($("live"), `TTFT ${time(figures.ttft_s)}${later}, ${digits(figures.output_tokens_per_s)} output tokens a second, ${fits}`);
  }
}

async function main() {
  if (!("DecompressionStream" in globalThis)) {
    mark($("old"), "hidden", null);
    return;
  }
  globalThis.llmirPage = new Page(await opened());
  mark($("main"), "hidden", null);
  mark(document.documentElement, "data-ready", "");
}

main();
