// What the page shows, and how the address holds it.

export const SIZES = ["batch", "prompt", "generate"];
const WHOLE = { least: 1, most: 10_000_000 };

export class State {
  constructor(told, setups) {
    this.setups = setups;
    this.more = {};  // what else the address holds
    const first = setups.findIndex((setup) => !setup.why);
    Object.assign(this, { setup: first, ...told.start, typed: {}, phase: "decode", op: null, pin: null, theme: "auto" });
    this.read();
  }

  get at() {
    return { batch: this.batch, prompt: this.prompt, generate: this.generate };
  }

  // Why a size cannot be, or nothing.
  wrong(name, value, setup = this.setup) {
    const { least, most } = WHOLE, { parts } = this.setups[setup];
    if (!Number.isInteger(value) || value < least || value > most) {
      return `a whole number from ${least} to ${most.toLocaleString("en-US")}`;
    }
    return name === "batch" && value % parts ? `a multiple of the ${parts} micro-batches` : "";
  }

  valid(at) {
    const setup = this.setups[at.setup];
    return Boolean(setup && !setup.why) && SIZES.every((name) => !this.wrong(name, at[name], at.setup));
  }

  read() {
    const said = new URLSearchParams(location.hash.slice(1)), number = (name) => Number(said.get(name));
    const asked = { setup: this.setup, ...this.at };
    for (const name of Object.keys(asked)) if (said.has(name)) asked[name] = number(name);
    if (this.valid(asked)) Object.assign(this, asked);
    for (const [name, values] of [["phase", ["prefill", "decode"]], ["theme", ["light", "dark"]]]) {
      if (values.includes(said.get(name))) this[name] = said.get(name);
    }
    if (said.has("op")) this.op = said.get("op");
    this.typed = rates(said.get("rates"));
    this.pin = null;
    if (said.has("pin")) {
      const [setup, batch, prompt, generate] = said.get("pin").split(",").map(Number);
      const pin = { setup, batch, prompt, generate, typed: rates(said.get("pinrates")) };
      if (this.valid(pin)) this.pin = pin;
    }
  }

  get hash() {
    const said = new URLSearchParams({ setup: this.setup, ...this.at, phase: this.phase });
    if (this.op) said.set("op", this.op);
    const typed = [["rates", this.typed], ["pinrates", this.pin?.typed]];
    for (const [name, of] of typed) if (of && Object.keys(of).length) said.set(name, Object.entries(of).map(([key, value]) => `${key}:${value}`).join());
    if (this.pin) said.set("pin", ["setup", ...SIZES].map((name) => this.pin[name]));
    if (this.theme !== "auto") said.set("theme", this.theme);
    for (const [name, value] of Object.entries(this.more)) said.set(name, value);
    return `#${said}`;
  }
}

// Rates by key, as the address has them.
function rates(said) {
  const pairs = (said ?? "").split(",").map((pair) => pair.split(":"));
  return Object.fromEntries(pairs.map(([key, value]) => [key, Number(value)]).filter(([key, value]) => key && value > 0));
}
