// Values of tables and axes, by the kind that they are of.
import { bytes, digits, flops, percent, rate, tick, time, whole } from "./format.js";

const KINDS = {
  text: (text) => text, time, bytes, flops, percent, whole, digits,
  rate: (n) => rate(n, "B/s"), usd: (n) => `$${digits(n)}`, flag: (yes) => (yes ? "✓ yes" : "✗ no"), yes: (yes) => (yes ? "yes" : "no"),
  met: (share) => `${(Math.floor(1000 * share) / 10).toFixed(1)}%`,  // rounded down: where some are late it is no 100%
};

export const NUMERIC = new Set(["time", "bytes", "flops", "percent", "whole", "digits", "rate", "usd", "met"]);

export const shown = (kind, value) => (value === null || value === undefined ? "–" : KINDS[kind](value));

// Marks of an axis.
export const ticked = (kind) => ({ time: (s) => (s ? time(s).replace(/\.0+ /, " ") : "0"), percent: (x) => (x ? percent(x) : "0"), bytes: (n) => (n ? bytes(n) : "0") })[kind] ?? ((n) => (n ? tick(n) : "0"));

// A scale over some values: in powers where they span many, else from 0; and the marks that have room.
export function scaled(values, { log, room, least = 0 }) {
  const all = values.filter((n) => n !== null && Number.isFinite(n)), low = Math.min(...all), high = Math.max(...all, least);
  if (log ?? (low > 0 && high / low > 60)) {
    const scale = d3.scaleLog([low / 1.1, high * 1.1], [0, 1]), [from, to] = scale.domain(), found = [];
    for (let power = Math.floor(Math.log10(from)); power <= Math.log10(to); power++) {
      for (const n of [1, 2, 5]) if (n * 10 ** power >= from && n * 10 ** power <= to) found.push(n * 10 ** power);
    }
    const marks = found.length > room ? found.filter((n) => Number.isInteger(Number(Math.log10(n).toFixed(6)))) : found;
    const every = Math.ceil(marks.length / room);
    return { scale, ticks: (marks.length ? marks : [low, high]).filter((_, i) => i % every === 0) };
  }
  const scale = d3.scaleLinear([Math.min(0, low), high * 1.08 || 1], [0, 1]);
  return { scale, ticks: scale.ticks(Math.min(room, 6)) };
}
