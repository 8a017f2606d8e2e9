// The strip of figures, and the memory of a GPU beside what it has.
import { abs, bytes, digits, max, percent, ratio, time, whole, within } from "./format.js";
import { $, div, h, mark, say, span } from "./dom.js";

const CARDS = [
  { key: "ttft_s", title: "TTFT, first token", show: time, error: "prefill", split: ({ steps }) => bounds(steps.prefill) },
  { key: "tpot_s", title: "TPOT, later tokens", show: time, error: "decode", split: ({ steps }) => steps.decode && bounds(steps.decode) },
  { key: "output_tokens_per_s", title: "output tokens/s", show: digits, more: true, rises: true, why: ({ figures, setup }) => (setup.stages > 1 ? `${digits(figures.busy_output_tokens_per_s)} if all stages are busy` : "") },
  { key: "user", title: "tokens/s a user", show: digits, rises: true, why: () => "1 / TPOT" },
  { key: "e2e_s", title: "end to end", show: time, split: ({ figures }) => [["weights", "prefill", figures.ttft_s], ["caches", "decode", figures.e2e_s - figures.ttft_s]] },
];
const PARTS = [["weights", "weights"], ["caches", "KV cache"], ["rest", "activations"]];

// Seconds of a step by what bounds its ops, the most first.
function bounds({ ops, extras }) {
  const found = new Map();
  for (const { bound, total_s } of ops.concat(extras)) found.set(bound, (found.get(bound) ?? 0) + total_s);
  return [...found].sort((a, b) => b[1] - a[1]).filter(([, seconds]) => seconds > 0).map(([bound, seconds]) => [bound, bound, seconds]);
}

export class Figures {
  constructor() {
    const place = $("figures");
    this.cards = CARDS.map((card) => {
      const [value, beside, pinned] = [h("strong", { class: "value" }), span("beside"), div("pinned")];
      const [strip, words] = [h("div", { class: "strip", hidden: !card.split }), h("div", { class: "note", hidden: !card.split && !card.why })];
      place.append(h("div", { class: "card figure", id: card.key }, div("title", card.title),
        h("div", {}, value, " ", beside), strip, words, pinned));
      return { ...card, value, beside, strip, words, pinned };
    });
    this.memory = { value: h("strong", { class: "value" }), fits: span("fits"), bar: div("bar") };
    this.memory.parts = PARTS.map(([key, title]) => {
      const [block, label] = [div(`part ${key}`), span(`label ${key}`)];
      this.memory.bar.append(block);
      return { key, title, block, label };
    });
    this.memory.limit = div("limit");
    this.memory.usable = span("label usable");
    this.memory.bar.append(this.memory.limit);
    place.append(h("div", { class: "card figure memory", id: "memory-card" },
      div("line", span("title", "peak memory of a device"), this.memory.fits),
      div("line", this.memory.value, this.memory.bar),
      div("labels", ...this.memory.parts.map(({ label }) => label), this.memory.usable)));
  }

  draw(view) {
    const { figures, memory, steps, setup, pinned } = view;
    for (const { key, show, error, more, rises, split, why, value, beside, strip, words, pinned: place } of this.cards) {
      const now = figures[key];
      say(value, now === null ? "–" : show(now));
      const each = more && setup.devices > 1 && now !== null ? `${digits(now / setup.devices)} a device` : "";
      say(beside, error && steps[error] ? within(steps[error].error) : each);
      if (split) this.split(strip, words, split(view) ?? []);
      if (why) say(words, why(view));
      this.against(place, now, pinned?.figures[key], show, rises);
    }
    this.bar(memory, setup, pinned);
  }

  // Shares as a strip to scale, and the largest two in words.
  split(strip, words, parts) {
    const whole = parts.reduce((all, [, , seconds]) => all + seconds, 0);
    let at = 0;
    const stops = parts.map(([name, , seconds]) => `var(--${name}) ${(at / whole) * 100}% ${((at += seconds) / whole) * 100}%`);
    const look = whole ? `linear-gradient(to right, ${stops.join(", ")})` : "none";
    if (strip.look !== look) strip.style.background = strip.look = look;
    say(words, parts.slice(0, 2).map(([, title, seconds]) => `${title}\u00a0${percent(seconds / whole)}`).join(" · "));
  }

  against(place, now, then, show, rises) {
    const known = typeof then === "number" && typeof now === "number";
    mark(place, "hidden", !known);
    if (!known) return say(place, "");
    const sign = abs(now / then - 1) < 5e-4 ? "=" : now > then ? "▲" : "▼";
    const better = sign === "=" ? "" : (now > then) === Boolean(rises) ? "better" : "worse";
    place.replaceChildren(`A ${show(then)} `, h("b", { class: better }, `${sign}\u00a0${ratio(now, then)}`),
      span("unseen", better && `, ${better}`));
  }

  bar(memory, setup, pinned) {
    const { value, fits, parts, limit, usable } = this.memory, all = max(setup.capacity, memory.bytes);
    const { weights, caches } = memory, sizes = { weights, caches, rest: memory.bytes - weights - caches };
    say(value, bytes(memory.bytes));
    const most = memory.largest >= 2 ** 40 ? "any batch does" : memory.largest ? `batch ${whole(memory.largest)} does` : "no batch does";
    const then = pinned ? ` (A: ${whole(pinned.memory.largest)})` : "";
    say(fits, memory.fits ? `✓ fits, to batch ${whole(memory.largest)}${then}` : `✗ does not fit, ${most}${then}`);
    mark(fits, "data-fits", memory.fits ? "yes" : "no");
    for (const { key, title, block, label } of parts) {
      block.style.width = `${(100 * max(0, sizes[key])) / all}%`;
      say(label, `${key === "rest" && memory.overhead ? "activations, engine" : title} ${bytes(sizes[key])}`);
    }
    limit.style.left = `${(100 * memory.capacity) / all}%`;
    say(usable, `${bytes(memory.capacity)} usable of ${bytes(setup.capacity)}`);
  }
}
