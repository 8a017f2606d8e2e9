// Numbers as people read them: three significant digits, a unit, never an exponent; as llmir's tables have them.

export const { abs, ceil, floor, max, min, round } = Math;

const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"], [1e-12, "ps"]];
const PREFIXES = [[1e24, "Y"], [1e21, "Z"], [1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];

const GROUPED = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const rounded = (x) => Number(x.toPrecision(3));

export function digits(x) {
  if (Number.isNaN(x)) return "–";
  if (!Number.isFinite(x)) return x < 0 ? "-∞" : "∞";
  if (x < 0) return `-${digits(-x)}`;
  if (x < 0.001) return x ? "<0.001" : "0";
  const size = rounded(x), places = max(0, 2 - floor(Math.log10(size)));
  return size < 1000 ? size.toFixed(places) : whole(size);
}

function scaled(x, scales, unit = "") {
  if (!Number.isFinite(x)) return digits(x);
  if (x < 0) return `-${scaled(-x, scales, unit)}`;
  const whole = scales.find(([scale]) => scale === 1)[1] + unit;
  if (!x) return `0 ${whole}`.trimEnd();
  const size = rounded(x);
  const [scale, symbol] = scales.find(([s]) => size >= s * (1 - 1e-9)) ?? scales.at(-1);
  const counted = size < 1000 && symbol !== "s" && Number.isInteger(x);
  return `${counted ? x : digits(x / scale)} ${symbol}${unit}`.trimEnd();
}

export const time = (seconds) => scaled(seconds, TIMES);
export const bytes = (n) => scaled(n, PREFIXES, "B");
export const flops = (n) => scaled(n, PREFIXES, "FLOP");
export const rate = (n, unit) => scaled(n, PREFIXES, unit);
export const whole = (n) => GROUPED.format(n);

// A power of ten with its prefix, for axes.
export function tick(x) {
  const [scale, symbol] = PREFIXES.find(([s]) => x >= s * (1 - 1e-9)) ?? [1, ""];
  const size = x / scale;
  return `${size < 0.01 ? size : rounded(size)}${symbol ? ` ${symbol}` : ""}`;
}

// Tokens on an axis: 4k.
export const tokens = (n) => (n >= 1000 ? `${rounded(n / 1000)}k` : `${n}`);
// 1,024 of them as users say it.
export const kilo = (n) => (n % 1024 ? tokens(n) : `${n / 1024}k`);

export function percent(x) {
  if (!Number.isFinite(x)) return digits(x);
  if (!x) return "0%";
  const of = 100 * x;
  if (abs(of) < 0.1) return "<0.1%";
  return abs(of) < 9.95 ? `${of.toFixed(1)}%` : `${of.toFixed(0)}%`;
}

// The error that is known of a time; in words where nothing was measured.
export const within = (error) => (error === null || error === undefined ? "roofline" : `± ${percent(error)}`);

export const ratio = (now, then) => (then ? `${digits(now / then)}×` : "–");
