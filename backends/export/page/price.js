// What requests take: the rules of llmir.workload over the functions of a set-up. No drawing here.

const { floor, max, min } = Math;
const UNLIMITED = 2 ** 40, CHUNK = 1 << 16, BLOCK = 128;
const PRICED = 4;
const FUNCTIONS = ["early", "late", "figures", "memory"];
export const CAPACITY = "memory_GB";

const mapped = (of, each) => Object.fromEntries(Object.entries(of).map(([name, value]) => [name, each(value, name)]));
const sum = (list) => list.reduce((a, b) => a + b, 0);

// A step that goes through pipeline stages: seconds of a micro-batch on each, and how many there are.
function timing(stages, parts) {
  const all = sum(stages), slowest = max(...stages);
  return {
    step: parts === 1 ? all : all + (parts - 1) * slowest,
    interval: parts * slowest,
    period: max(all, parts * slowest),
  };
}

// What is known of a step before its context, kept for the next one of its kind.
function known(phase, each, fresh) {
  if (phase.kept?.each !== each || phase.kept.fresh !== fresh) phase.kept = { each, fresh, found: phase.early(each, fresh) };
  return phase.kept.found;
}

// Values that follow one another by name, so many of each.
const apart = (values, counts, from = 0) => mapped(counts, (count) => values.slice(from, (from += count)));

// Functions by name for what they are told, made once for each.
export function once(made) {
  const known = new Map();
  return (told) => {
    const key = String(told);
    if (!known.has(key)) {
      if (known.size > 64) known.clear();
      known.set(key, made(told));
    }
    return known.get(key);
  };
}

// The functions of a set-up, by name.
export class Setup {
  constructor(told, tables, functions, names) {
    Object.assign(this, told);
    this.names = names;
    this.stages = told.prefix.length;
    this.functions = functions;
    this.kinds = mapped(told.phases, (phase, name) => {
      const rows = tables[phase.rows].map(([name, stage, repeat, priced, amounts, moment, sends], i) => {
        const [bases, about] = [phase.bases.map((of) => tables[of][i]), tables[phase.described][i]];
        return { name, stage, repeat, priced, amounts, moment, sends, bases, about };
      });
      return { ...phase, name, rows, added: tables[phase.added] };
    });
    this.roofs = tables[told.roofs];
    this.rates = tables[told.rates];
    this.lanes = this.dp * this.parts;
    this.tell({});
  }

  // The same with some of the device's rates as they are typed in, in SI units by key.
  given(typed) {
    const bare = this.bare ?? this, key = JSON.stringify(typed);
    if (key === "{}") return bare;
    if (bare.last?.key !== key) {
      bare.last = Object.assign(Object.create(bare), { bare, key });
      bare.last.tell(typed);
    }
    return bare.last;
  }

  tell(typed) {
    const rate = (key, usual) => typed[key] ?? usual, { rates, roofs, limits } = this;
    const known = Object.fromEntries(rates.map(({ key, value }) => [key, rate(key, value)]));
    this.typed = typed;
    this.rate = (key) => known[key];
    const functions = this.functions(this.names.rates.map((key) => known[key]));
    this.held = functions[this.reserves];
    this.counted = functions[this.counts];
    this.phases = mapped(this.kinds, (kind) => ({ ...kind, ...Object.fromEntries(FUNCTIONS.map((key) => [key, functions[kind[key]]])) }));
    this.roofs = { ...roofs, memory: rate("memory_GBps", roofs.memory), peaks: roofs.peaks.map(([unit, peak, key]) => [unit, rate(key, peak), key]).sort((a, b) => a[1] - b[1]) };
    this.capacity = rate(CAPACITY, this.capacity);
    const physical = this.capacity, { aside } = limits;
    this.limits = { ...limits, physical, share: aside === null || aside === undefined ? limits.share : 1 - aside / physical };
    this.capacity_bytes = this.usable();
    this.doubts = this.doubted(rates.filter(({ key, value }) => known[key] !== value), rate);
  }

  // Which errors hold for kernels, and for collectives: those known here, or as on another device of the same die, or not.
  doubted(changed, rate) {
    if (!this.kin || !changed.length) return [0, 0];
    const { key, own, usual, alike, most } = this.kin, peak = rate(key, usual);
    const doubt = max(peak, alike) <= most * min(peak, alike) ? 1 : 2;
    const [chip, links] = [true, false].map((of) => changed.some((each) => CHIP.test(each.key) === of));
    return [chip ? doubt : 0, links || (chip && !own) ? doubt : 0];
  }

  // The bytes that may be used, on the stage whose caches are full first.
  usable() {
    const { limits, counted, dp, parts } = this, { rule, reserve, block } = limits;
    if (!rule) return limits.physical * limits.share;
    const rooms = limits.stages.map(({ weights, activations, overhead }) => {
      const [usable, taken] = RULES[rule](limits, weights, activations, overhead);
      return { usable: usable - reserve, caches: usable - reserve - taken };
    });
    if (!counted) return rooms[limits.tightest].usable;
    const tokens = rooms.map(({ caches }, i) => min(UNLIMITED, block * dp * largestThat((n) => counted(dp, 1, block * n - 1)[i] / parts <= caches)));
    return rooms[tokens.indexOf(min(...tokens))].usable;
  }

  // The phase that runs for so many new tokens after cached ones.
  phase(fresh, context) {
    if (this.phases.step) return this.phases.step;
    return fresh === 1 || (fresh <= this.drafts && context > 0) ? this.phases.decode : this.phases.prefill;
  }

  timing(batch, fresh, context) {
    return this.timings(batch, fresh, [context])[0];
  }

  // The same at several contexts.
  timings(batch, fresh, contexts) {
    const alike = contexts.every((context) => this.phase(fresh, context) === this.phase(fresh, contexts[0]));
    const found = alike ? this.stepping(batch, fresh, contexts) : contexts.flatMap((context) => this.stepping(batch, fresh, [context]));
    return found.map((stages) => timing(stages, this.parts));
  }

  // Seconds of a micro-batch on each stage, at several contexts of one phase.
  stepping(batch, fresh, contexts) {
    const phase = this.phase(fresh, contexts[0]), { late } = phase, others = known(phase, batch / this.parts, fresh);
    return late.many ? late.many(contexts, others) : contexts.map((context) => late(context, ...others));
  }

  // The sums of periods and intervals over decode steps from one context to another.
  decoding(batch, first, count) {
    const simple = this.stages === 1 && this.parts === 1;
    let period = 0, interval = 0;
    for (let from = first; from < first + count; from += BLOCK) {
      const contexts = Array.from({ length: min(BLOCK, first + count - from) }, (_, i) => from + i);
      for (const found of this.stepping(batch, 1, contexts)) {
        const step = simple ? { period: found[0], interval: found[0] } : timing(found, this.parts);
        period += step.period;
        interval += step.interval;
      }
    }
    return { period, interval };
  }

  chunks(batch, prompt) {
    return chunks(batch, prompt, this.budget, this.lanes);
  }

  reading(batch, prompt) {
    const steps = this.chunks(batch, prompt);
    const seconds = steps.map(({ prompts, fresh, cached, times }) =>
      times * sum(this.timings(prompts, fresh, cached).map(({ interval }) => interval)));
    const { prompts, fresh, cached } = steps.at(-1), end = this.timing(prompts, fresh, cached.at(-1));
    const whole = sum(seconds), way = end.step - end.interval;
    return { time: whole + way, mean: mean(steps, seconds) + way, interval: whole };
  }

  // The figures of requests, as `llmir.workload` has them.
  request({ batch, prompt, generate }) {
    const reading = this.reading(batch, prompt), later = generate - 1;
    const decoding = later ? this.decoding(batch, prompt, later) : { period: 0, interval: 0 };
    const tpot_s = later ? decoding.period / later : null, ttft_s = reading.time, e2e_s = ttft_s + later * (tpot_s ?? 0), tokens = batch * generate;
    return {
      ttft_s, ttft_mean_s: reading.mean, tpot_s, e2e_s,
      output_tokens_per_s: e2e_s ? tokens / e2e_s : Infinity,
      busy_output_tokens_per_s: tokens / (reading.interval + decoding.interval),
    };
  }

  // The steps that stand for a request: the largest that reads prompts, and the last that decodes.
  steps({ batch, prompt, generate }) {
    const most = largest(this.chunks(batch, prompt));
    const read = this.step(most.prompts, most.fresh, most.cached.at(-1));
    return { prefill: read, decode: generate > 1 ? this.step(batch, 1, prompt + generate - 2) : null };
  }

  step(batch, fresh, context) {
    const at = [batch / this.parts, fresh, context], phase = this.phase(fresh, context), { parts } = this;
    const n = this.stages, found = apart(phase.figures(...at), phase.counts), seconds = found.parts;
    const whole = seconds.slice(-n);
    const { step } = timing(whole, parts), ideal = timing(found.ideal, parts);
    const ops = phase.rows.map((row) => this.op(row, found.times, found.amounts, n * step));
    const added = phase.added.filter(([, , place]) => seconds[place])
      .map(([name, stage, place]) => this.extra(name, stage, parts, seconds[place], n * step));
    const overheads = whole.map((_, i) => sum(added.filter(({ stage }) => stage === i).map(({ time_s }) => time_s)));
    const bubbles = n > 1
      ? whole.map((time, i) => this.extra("bubble", i, 1, max(step - parts * time, 0), n * step))
      : [];
    return {
      phase, batch, fresh, context, at, ops, extras: [...added, ...bubbles], overheads,
      time_s: step, ideal_time_s: ideal.step, stages: whole,
      error: this.error(ops), moments: found.moments, memory: stages(found.memory),
    };
  }

  op(row, times, amounts, step) {
    const { priced, amounts: first, bases, repeat } = row;
    const [time_s, bound, ideal_time_s, which] = times.slice(priced, priced + PRICED);
    const [basis, error, lent, beyond] = bases[this.doubts[Number(row.sends)]][which];
    const found = {
      row, name: row.name, stage: row.stage, repeat, time_s, ideal_time_s, basis, error, lent, beyond, which,
      bound: this.names.bounds[bound], total_s: repeat * time_s, share: step ? (repeat * time_s) / step : NaN,
    };
    this.names.amounts.forEach((name, i) => (found[name] = amounts[first + i]));
    const moved = (found.bytes = found.read_bytes + found.write_bytes);
    found.intensity = moved ? found.flops / moved : NaN;
    return found;
  }

  // A row that is no op.
  extra(name, stage, repeat, time_s, step) {
    const bound = name === "bubble" ? "bubble" : "overhead", total_s = repeat * time_s;
    const none = { flops: 0, bytes: 0, read_bytes: 0, write_bytes: 0, comm_bytes: 0, intensity: NaN };
    return {
      row: null, name: this.prefix[stage] + name, stage, repeat, time_s, total_s, bound,
      ideal_time_s: 0, share: step ? total_s / step : NaN, error: name === "bubble" ? null : this.hostError, ...none,
    };
  }

  // The mean relative error of a step of these ops, by those that it is known of.
  error(ops) {
    let own = 0, others = 0, beyond = 0, whole = 0;
    for (const op of ops) {
      if (op.error === null) continue;
      const lent = min(op.lent, op.error), added = min(op.beyond, lent);
      own += op.share * Math.sqrt(op.error ** 2 - lent ** 2);
      others += op.share * Math.sqrt(lent ** 2 - added ** 2);
      beyond += op.share * added;
      whole += op.share;
    }
    if (!ops.some((op) => op.error !== null)) return null;
    return whole ? Math.hypot(max(Math.hypot(own / whole, others / whole), this.hostError ?? 0), beyond / whole) : NaN;
  }

  // The most bytes that a rank holds, and of what.
  peak(batch, prompt, generate) {
    const each = floor(batch / this.parts);
    return this.limits.rule ? this.pooled(each, prompt, prompt + generate - 2) : this.stepped(each, prompt, generate);
  }

  pooled(sequences, prompt, last) {
    const { limits } = this, { sequences: usual, grows, dp } = limits;
    const asked = max(usual, Math.ceil((sequences * this.parts) / dp));
    const held = this.held(sequences, prompt, last);
    let found = null;
    limits.stages.forEach((stage, i) => {
      const sampled = asked > usual ? grows.each[i] * asked + grows.fixed[i] : 0;
      const activations = max(stage.activations, sampled);
      const [usable, taken] = RULES[limits.rule](limits, stage.weights, activations, stage.overhead);
      const short = held[i] - (usable - limits.reserve - taken);
      const bytes = Math.ceil(this.capacity_bytes + short), { weights, overhead } = stage;
      if (!found || short > found.short) found = { short, bytes, weights, caches: held[i], activations, overhead, stage: i };
    });
    return found;
  }

  stepped(sequences, prompt, generate) {
    const { parts } = this, chunk = largest(this.chunks(sequences * parts, prompt));
    const ends = [[floor(chunk.prompts / parts), chunk.fresh, chunk.cached.at(-1)]];
    for (const context of this.contexts(prompt, generate)) ends.push([sequences, 1, context]);
    const last = prompt + max(generate - 2, 0);
    let found = null;
    for (const [count, fresh, context] of ends) {
      const { memory } = this.phase(fresh, context), others = sequences - count;
      const more = others > 0 ? stages(memory(others, 1, last)) : null;
      stages(memory(count, fresh, context)).forEach(({ weights, caches, activations }, i) => {
        const kept = caches + (more ? more[i].caches : 0), bytes = Math.trunc(weights + kept + activations);
        if (!found || bytes > found.bytes) found = { bytes, weights, caches: kept, activations, overhead: 0, stage: i };
      });
    }
    return found;
  }

  // The contexts of the decode steps that may hold most.
  contexts(prompt, generate) {
    if (generate === 1) return [];
    const last = prompt + generate - 2;
    if (!this.falls) return [last];
    const key = `${prompt} ${generate}`;
    if (this.known?.key !== key) {
      const { memory } = this.phase(1, last), all = (context) => stages(memory(1, 1, context)).map(total);
      this.known = { key, found: [...new Set([last, ...heaviest(max(prompt, last - CHUNK), last + 1, all)])] };
    }
    return this.known.found;
  }

  // What a request takes of memory, whether it fits, and the largest batch that does.
  memory({ batch, prompt, generate }) {
    const peak = this.peak(batch, prompt, generate), capacity = this.capacity_bytes, { parts } = this;
    const most = largestThat((n) => this.peak(n * parts, prompt, generate).bytes <= capacity);
    return { ...peak, capacity, fits: peak.bytes <= capacity, largest: min(most >= UNLIMITED ? most : most * parts, floor(UNLIMITED / parts) * parts) };
  }
}

// Rates of the chip and of its memory; all others are of links.
const CHIP = /^(matrix|vector|memory)_/;

// Of physical bytes what may be used, and what of that is taken.
const RULES = {
  physical: ({ physical, share }, ...taken) => [share * physical, sum(taken)],
  static({ physical, share }, weights, activations, overhead) {
    const free = physical - overhead;
    return [share * free, weights + max(0, activations - (1 - share) * free)];
  },
  free({ physical, share }, ...taken) {
    const held = sum(taken);
    return [min(physical, held + share * (physical - held)), held];
  },
};

const stages = (bytes) => Array.from({ length: bytes.length / 3 }, (_, i) => ({ weights: bytes[3 * i], caches: bytes[3 * i + 1], activations: bytes[3 * i + 2] }));

// All that a stage holds.
export const total = ({ weights, caches, activations }) => weights + caches + activations;

// The first context of some in which each stage holds most, as `held` has its bytes.
function heaviest(from, end, held) {
  const most = [];
  for (let context = from; context < end; context++) {
    held(context).forEach((bytes, i) => {
      if (!most[i] || bytes > most[i].bytes) most[i] = { bytes, context };
    });
  }
  return most.map(({ context }) => context);
}

function largestThat(fits) {
  let low = 0, high = 1;
  while (high < UNLIMITED && fits(high)) [low, high] = [high, 2 * high];
  if (high >= UNLIMITED) return UNLIMITED;
  while (high - low > 1) {
    const middle = floor((low + high) / 2);
    if (fits(middle)) low = middle;
    else high = middle;
  }
  return low;
}

// The steps that read prompts: together as far as a budget goes, longer ones in chunks of it.
function chunks(prompts, fresh, budget, lanes) {
  const found = [], most = budget ?? prompts * fresh, wide = min(lanes, prompts);
  let cached = 0, rest = fresh;
  const whole = floor(fresh / most);
  const add = (cached, fresh, together) => {
    const full = floor(prompts / together), left = prompts % together;
    if (full) found.push({ prompts: together, fresh, cached, times: full });
    if (left) found.push({ prompts: left, fresh, cached, times: 1 });
  };
  if (whole && fresh > most) {
    add(Array.from({ length: whole }, (_, i) => i * most), most, wide);
    [rest, cached] = [fresh % most, whole * most];
  }
  if (rest) add([cached], rest, floor(most / rest) * wide);
  return found;
}

function largest(steps) {
  const size = ({ prompts, fresh }) => prompts * fresh;
  return steps.reduce((best, step) =>
    size(step) > size(best) || (size(step) === size(best) && step.cached.at(-1) > best.cached.at(-1)) ? step : best);
}

// When a prompt is read on average.
function mean(steps, seconds) {
  const start = steps[0].cached[0];
  if (steps.some(({ cached }) => cached.at(-1) !== start)) {
    const turns = sum(steps.filter(({ cached }) => cached[0] === start).map(({ times }) => times));
    return (sum(seconds) * (turns + 1)) / (2 * turns);
  }
  let at = 0, waited = 0, all = 0;
  steps.forEach(({ prompts, times }, i) => {
    waited += prompts * (times * at + (seconds[i] * (times + 1)) / 2);
    at += seconds[i];
    all += prompts * times;
  });
  return waited / all;
}
