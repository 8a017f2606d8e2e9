// Functions that came as lists of numbers: they are worked through here, so that no code travels.

const WORDS = [
  ["add", 2], ["subtract", 2], ["multiply", 2], ["divide", 2], ["minimum", 2], ["maximum", 2], ["where", 3],
  ["ceil", 1], ["floor", 1], ["ceildiv", 2], ["floor_divide", 2], ["less", 2], ["less_equal", 2], ["equal", 2],
  ["not_equal", 2], ["logical_and", 2], ["logical_or", 2], ["logical_xor", 2], ["negative", 1], ["absolute", 1],
  ["power", 2], ["sqrt", 1], ["cbrt", 1], ["hypot", 2], ["expm1", 1],
];
const NUMBERS = new Map(WORDS.map(([word], i) => [word, i]));
const WIDE = 128;  // as many values at once, so that going through a list costs little beside its arithmetic
const { ceil, floor } = Math;

// The functions of lists, by number, for what is told of the outside: each of its inputs in order, and gives its outputs.
export function functionsOf({ words, outside, lists }) {
  const numbers = words.map((word) => NUMBERS.get(word)), parsed = [];
  for (const list of lists) parsed.push(listed(list, numbers, parsed));
  return (told) => {
    const values = outer(outside, numbers, told), made = [];
    for (const list of parsed) made.push({ ...list, made, held: new Map(), constants: list.constants.map((own) => (Array.isArray(own) ? values[own[0]] : Number(own))) });
    return Object.fromEntries(made.map((list, i) => [i, called(list)]));
  };
}

// A list as a function; `many` gives it of several first inputs.
function called(list) {
  const run = (...inputs) => {
    const values = placed(list, 1);
    values.set(inputs);
    worked(list, 1);
    return Array.from(list.outputs, (place) => values[place]);
  };
  const some = (firsts, others) => {
    const wide = 2 ** ceil(Math.log2(firsts.length)), values = placed(list, wide);
    values.fill(firsts.at(-1), 0, wide);
    values.set(firsts);
    others.forEach((value, i) => values.fill(value, (i + 1) * wide, (i + 2) * wide));
    worked(list, wide);
    const found = [], { outputs } = list;
    for (let lane = 0; lane < firsts.length; lane++) {
      const row = (found[lane] = []);
      for (let i = 0; i < outputs.length; i++) row[i] = values[outputs[i] * wide + lane];
    }
    return found;
  };
  run.many = (firsts, others) => {
    const found = [];
    for (let at = 0; at < firsts.length; at += WIDE) found.push(...some(firsts.slice(at, at + WIDE), others));
    return found;
  };
  return run;
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

// The places of a list's values, so many of each.
function placed({ held, count, inputs, constants }, wide) {
  if (!held.has(wide)) {
    const values = new Float64Array(count * wide);
    constants.forEach((constant, i) => values.fill(constant, (inputs + i) * wide, (inputs + i + 1) * wide));
    held.set(wide, values);
  }
  return held.get(wide);
}

// The values of the outside, for what is told.
function outer(outside, numbers, told) {
  const values = [];
  for (const made of outside) {
    if (Array.isArray(made)) values.push(single(numbers[made[0]], ...made.slice(1).map((place) => values[place])));
    else values.push(typeof made === "object" ? told[made.told] : Number(made));
  }
  return values;
}

// What a word makes of numbers.
function single(word, ...of) {
  const values = Float64Array.from([...of, 0]);
  worked({ start: of.length, code: [word, ...of.keys()], held: new Map([[1, values]]), made: [] }, 1);
  return values.at(-1);
}

// Fills the values of a list, so many of each, whose inputs are there. None calls itself, so that each has its own places.
function worked({ start, code, held, made }, wide) {
  const v = held.get(wide);
  for (let at = 0, to = start * wide; at < code.length; to += wide) {
    const word = code[at++];
    if (word < 0) {
      const other = made[~word], own = placed(other, wide);
      for (let i = 0; i < other.inputs * wide; i += wide) {
        const from = code[at++] * wide;
        for (let j = 0; j < wide; j++) own[i + j] = v[from + j];
      }
      worked(other, wide);
      const from = other.outputs[0] * wide;
      for (let j = 0; j < wide; j++) v[to + j] = own[from + j];
      continue;
    }
    const many = WORDS[word][1], a = code[at] * wide, b = many > 1 ? code[at + 1] * wide : a, c = many > 2 ? code[at + 2] * wide : a;
    at += many;
    switch (word) {
      case 0: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] + v[b + j]; break;
      case 1: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] - v[b + j]; break;
      case 2: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] * v[b + j]; break;
      case 3: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] / v[b + j]; break;
      case 4: for (let j = 0; j < wide; j++) v[to + j] = v[b + j] < v[a + j] ? v[b + j] : v[a + j]; break;
      case 5: for (let j = 0; j < wide; j++) v[to + j] = v[b + j] > v[a + j] ? v[b + j] : v[a + j]; break;
      case 6: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] ? v[b + j] : v[c + j]; break;
      case 7: for (let j = 0; j < wide; j++) v[to + j] = ceil(v[a + j]); break;
      case 8: for (let j = 0; j < wide; j++) v[to + j] = floor(v[a + j]); break;
      case 9: for (let j = 0; j < wide; j++) v[to + j] = ceil(v[a + j] / v[b + j]); break;
      case 10: for (let j = 0; j < wide; j++) v[to + j] = floor(v[a + j] / v[b + j]); break;
      case 11: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] < v[b + j] ? 1 : 0; break;
      case 12: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] <= v[b + j] ? 1 : 0; break;
      case 13: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] === v[b + j] ? 1 : 0; break;
      case 14: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] !== v[b + j] ? 1 : 0; break;
      case 15: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] && v[b + j]; break;
      case 16: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] || v[b + j]; break;
      case 17: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] !== v[b + j] ? 1 : 0; break;
      case 18: for (let j = 0; j < wide; j++) v[to + j] = -v[a + j]; break;
      case 19: for (let j = 0; j < wide; j++) v[to + j] = Math.abs(v[a + j]); break;
      case 20: for (let j = 0; j < wide; j++) v[to + j] = v[a + j] ** v[b + j]; break;
      case 21: for (let j = 0; j < wide; j++) v[to + j] = Math.sqrt(v[a + j]); break;
      case 22: for (let j = 0; j < wide; j++) v[to + j] = Math.cbrt(v[a + j]); break;
      case 23: for (let j = 0; j < wide; j++) v[to + j] = Math.hypot(v[a + j], v[b + j]); break;
      default: for (let j = 0; j < wide; j++) v[to + j] = Math.expm1(v[a + j]);
    }
  }
}
