// The page of a server: what is chosen on top is asked for, comes as data, and is computed here from then on.
import { Setup, once } from "./price.js";
import { functionsOf } from "./lists.js";
import { $, h, mark, say, span } from "./dom.js";
import { } from "./main.js";

const WHOLE = ["tp", "pp", "micro_batches", "dp", "ep"];
const TITLES = { hw: "device", micro_batches: "micro-batches", kv: "KV cache", cost: "times" };
const TYPES = ["bf16", "fp8", "int8", "int4", "nvfp4", "mxfp4"];
const GONE = { why: "is not in this address", choices: {}, values: {} };

async function told(path, options) {
  const answer = await fetch(path, options).catch(() => { throw new Error("the server does not answer"); });
  const found = await answer.json().catch(() => ({ error: `the server says ${answer.status}` }));
  if (!answer.ok) throw new Error(found.error);
  return found;
}

class Served {
  constructor(page) {
    this.page = page;
    const { told: own, setups } = page, [first] = setups;
    first.model = own.model;
    first.asked = own.asked;
    this.asks = [{ model: own.asked, ...first.values }];  // of each set-up, what was asked for
    this.fields = new Map();
    this.turn = 0;
    page.controls.menus.clear();
    $("setup").replaceChildren(...this.choosers(), page.controls.rates.button, this.status);
    page.views.push(this);
  }

  choosers() {
    const number = (name) => this.field(name, h("input", { type: "text", inputmode: "numeric", size: 3, placeholder: "1" }));
    const text = (name, list) => this.field(name, h("input", { type: "text", size: 8, placeholder: "as it is", list: `list-${list}` }));
    const menu = (name, ...options) => this.field(name, h("select", {}, options));
    const option = (value, title = value) => h("option", { value }, title);
    this.file = h("input", { type: "file", accept: ".json", class: "unseen", tabindex: -1, "aria-hidden": "true", onchange: () => this.opened() });
    this.status = h("p", { id: "asked", role: "status" });
    return [
      this.field("model", h("input", { type: "text", size: 18, list: "list-models" })),
      h("button", { class: "action", id: "open-config", onclick: () => this.file.click() }, "config.json …"), this.file,
      menu("hw"), ...WHOLE.map(number), text("weights", "types"), text("kv", "types"), text("engine", "engines"),
      menu("cost", option("", "as measured"), option("calibrated"), option("ideal")),
      h("datalist", { id: "list-models" }), h("datalist", { id: "list-types" }, TYPES.map((name) => option(name))), h("datalist", { id: "list-engines" }),
    ];
  }

  field(name, control) {
    const title = TITLES[name] ?? name;
    mark(control, "id", `ask-${name}`);
    mark(control, "autocomplete", "off");
    mark(control, "aria-describedby", "asked");
    control.addEventListener("change", () => this.chosen(name));
    this.fields.set(name, control);
    return h("label", { class: "chip", "data-menu": title }, span("small", title), control);
  }

  // What there is to choose from.
  async lists() {
    const [{ models }, { names, clusters, engines }] = await Promise.all(["api/models", "api/hw"].map((path) => told(path)));
    const options = (list) => list.map((name) => h("option", { value: name }, name));
    $("list-models").replaceChildren(...options(models.map(({ name }) => name)));
    $("list-engines").replaceChildren(...options(engines));
    this.fields.get("hw").replaceChildren(...options(names), h("optgroup", { label: "clusters" }, options(clusters)));
    this.fill(this.asks[this.page.state.setup]);
  }

  // What the fields say, in the order of a set-up; of a config that was opened, until a model is named.
  wanted() {
    const found = this.config ? { config: this.config.fields } : {};
    for (const [name, { value }] of this.fields) {
      const said = value.trim();
      if (said && !(name === "model" && this.config)) found[name] = WHOLE.includes(name) && /^\d+$/.test(said) ? Number(said) : said;
    }
    return found;
  }

  async chosen(name) {
    if (name === "model") this.config = null;
    for (const field of this.fields.values()) mark(field, "aria-invalid", null);
    const turn = ++this.turn, wanted = this.wanted(), { page } = this;
    say(this.status, "asking …");
    try {
      const number = await this.number(wanted);
      if (turn !== this.turn) return;
      say(this.status, "");
      const { parts, device } = page.setups[number], { batch, setup } = page.state;
      const typed = device === page.setups[setup].device ? page.state.typed : {};  // rates are of one device
      page.changed({ setup: number, typed, batch: Math.max(parts, Math.round(batch / parts) * parts) });
    } catch ({ message }) {
      if (turn !== this.turn) return;
      if (this.fields.has(name)) mark(this.fields.get(name), "aria-invalid", "true");
      say(this.status, `${message}; below is still what stood before`);
    }
  }

  async opened() {
    const [file] = this.file.files;
    this.file.value = "";
    if (!file) return;
    try {
      this.config = { name: file.name, fields: JSON.parse(await file.text()) };
    } catch {
      return say(this.status, `${file.name}: no JSON`);
    }
    this.fields.get("model").value = file.name;
    await this.chosen("config");
  }

  // The set-up of what is asked for, which comes once.
  async number(wanted) {
    const key = JSON.stringify(wanted), known = this.asks.findIndex((ask) => JSON.stringify(ask) === key);
    if (known >= 0) return known;
    const answer = await told("api/program", { method: "POST", headers: { "Content-Type": "application/json" }, body: key });
    return this.add(answer, wanted);
  }

  add({ model, asked, setup, rates, tables, graphs, functions }, wanted) {
    const { setups, told } = this.page;
    for (const phase of Object.values(setup.phases)) phase.graph += told.graphs.length;
    told.graphs.push(...graphs);
    this.asks.push(wanted);
    return setups.push(new Setup({ ...setup, model, asked }, tables, once(functionsOf(functions)), { ...told, rates })) - 1;
  }

  // What the address asks for comes first, in its places; others are gaps.
  async restore(address) {
    const asks = addressed(address);
    for (const ask of asks.slice(1)) {
      const before = this.page.setups.length;
      if (ask) await this.number(ask).catch(({ message }) => say(this.status, message));
      if (this.page.setups.length === before) {
        this.page.setups.push(GONE);
        this.asks.push(null);
      }
    }
    if (asks.length > 1 && location.hash !== address) history.replaceState(null, "", address);
    this.page.state.read();
    this.page.draw();
  }

  fill(ask) {
    this.shown = ask;
    this.config = ask.config ? { name: "config.json", fields: ask.config } : null;
    for (const [name, field] of this.fields) {
      const value = name === "model" && this.config ? this.config.name : ask[name] ?? (name === "hw" ? this.page.setups[0].values.hw : "");
      field.value = typeof value === "object" ? "" : value;
    }
  }

  draw({ state, setup }) {
    const used = [state.setup, state.pin?.setup], asks = this.asks.map((ask, i) => (i && used.includes(i) && !ask?.config ? ask : null));
    while (asks.length > 1 && !asks.at(-1)) asks.pop();
    state.unsaid = used.some((i) => this.asks[i]?.config) ? "without your config, which a link does not hold" : "";
    state.more = asks.length > 1 ? { asks: JSON.stringify(asks) } : {};
    if (this.shown !== this.asks[state.setup]) this.fill(this.asks[state.setup]);
    say(this.fields.get("hw").parentNode.firstChild, setup.devices > 1 ? `${setup.devices} devices` : "device");
    document.title = `${setup.model}: llmir`;
  }
}

function addressed(address) {
  try {
    const asks = JSON.parse(new URLSearchParams(address.slice(1)).get("asks"));
    return Array.isArray(asks) ? asks : [];
  } catch {
    return [];
  }
}

const address = location.hash, page = globalThis.llmirPage, served = (globalThis.llmirServed = new Served(page));
page.draw();
served.lists().catch(({ message }) => say(served.status, message))
  .then(() => served.restore(address))
  .then(() => mark(document.documentElement, "data-served", ""));
addEventListener("hashchange", () => {
  if (JSON.stringify(addressed(location.hash)) !== JSON.stringify(addressed(page.state.hash))) location.reload();
});
