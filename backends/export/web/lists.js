// Functions that came as lists of numbers: they are worked through here, so that no code travels.

const WORDS = [
  ["add", 2], ["subtract", 2], ["multiply", 2], ["divide", 2], ["minimum", 2], ["maximum", 2], ["where", 3],
  ["ceil", 1], ["floor", 1], ["ceildiv", 2], ["floor_divide", 2], ["less", 2], ["less_equal", 2], ["equal", 2],
  ["not_equal", 2], ["logical_and", 2], ["logical_or", 2], ["logical_xor", 2], ["negative", 1], ["absolute", 1],
  ["power", 2], ["sqrt", 1], ["cbrt", 1], ["hypot", 2], ["expm1", 1],
];
const NUMBERS = new Map(WORDS.map(([word], i) => [word, i]));
const { ceil, floor } = Math;

// The functions of lists, by number, for what is told of the outside: each of its inputs in order, and gives its outputs.
export function functionsOf({ words, outside, lists }) {
  const numbers = words.map((word) => NUMBERS.get(word)), parsed = [];
  for (const list of lists) parsed.push(listed(list, numbers, parsed));
  return (told) => {
    const values = outer(outside, numbers, told), made = [];
    for (const list of parsed) made.push(filled(list, values, made));
    return Object.fromEntries(made.map((list, i) => [i, (...inputs) => {
      list.values.set(inputs);
      worked(list);
      return Array.from(list.outputs, (place) => list.values[place]);
    }]));
  };
}

// A list in arrays that are quick to go through; `others` are those that it may call.
function listed([inputs, constants, done, outputs], numbers, others) {
  const code = Int32Array.from(done), start = inputs + constants.length;
  let count = start;
  for (let at = 0; at < code.length; count++) {
    const own = code[at] < 0 ? others[~code[at]].inputs : WORDS[(code[at] = numbers[code[at]])][1];
    at += 1 + own;
  }
  return { inputs, constants, start, count, code, outputs: Int32Array.from(outputs) };
}

// The same with a place for its values.
function filled(list, outside, made) {
  const values = new Float64Array(list.count);
  values.set(list.constants.map((constant) => (Array.isArray(constant) ? outside[constant[0]] : Number(constant))), list.inputs);
  return { ...list, values, made };
}

// The values of the outside, for what is told.
function outer(outside, numbers, told) {
  const values = [];
  for (const made of outside) {
    if (Array.isArray(made)) values.push(once(numbers[made[0]], ...made.slice(1).map((place) => values[place])));
    else values.push(typeof made === "object" ? told[made.told] : Number(made));
  }
  return values;
}

// What a function gives once.
function once(word, ...of) {
  const values = new Float64Array([...of, 0]);
  worked({ start: of.length, code: [word, ...of.keys()], values, made: [] });
  return values.at(-1);
}

// Fills the values of a list, whose inputs are there. None calls itself, so that each has one set of values.
function worked({ start, code, values: v, made }) {
  for (let at = 0, to = start; at < code.length; to++) {
    const word = code[at++];
    if (word < 0) {
      const other = made[~word];
      for (let i = 0; i < other.inputs; i++) other.values[i] = v[code[at++]];
      worked(other);
      v[to] = other.values[other.outputs[0]];
      continue;
    }
    const a = v[code[at++]], b = WORDS[word][1] > 1 ? v[code[at++]] : 0;
    switch (word) {
      case 0: v[to] = a + b; break;
      case 1: v[to] = a - b; break;
      case 2: v[to] = a * b; break;
      case 3: v[to] = a / b; break;
      case 4: v[to] = b < a ? b : a; break;
      case 5: v[to] = b > a ? b : a; break;
      case 6: v[to] = a ? b : v[code[at]]; at++; break;
      case 7: v[to] = ceil(a); break;
      case 8: v[to] = floor(a); break;
      case 9: v[to] = ceil(a / b); break;
      case 10: v[to] = floor(a / b); break;
      case 11: v[to] = a < b; break;
      case 12: v[to] = a <= b; break;
      case 13: v[to] = a === b; break;
      case 14: v[to] = a !== b; break;
      case 15: v[to] = a && b; break;
      case 16: v[to] = a || b; break;
      case 17: v[to] = a !== b; break;
      case 18: v[to] = -a; break;
      case 19: v[to] = Math.abs(a); break;
      case 20: v[to] = a ** b; break;
      case 21: v[to] = Math.sqrt(a); break;
      case 22: v[to] = Math.cbrt(a); break;
      case 23: v[to] = Math.hypot(a, b); break;
      default: v[to] = Math.expm1(a);
    }
  }
}
