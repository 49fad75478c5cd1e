// The steps of a model, and the search. Tokens are 1 for an empty cell, else digit + 1. The files
// are single steps: scripts/export.py --single-step.
const ROUNDS = 400;  // After as many the search gives up.
const CAUTION = 0.5;  // Factor of the bound for striking at each new start, as in docs/search.md.
const ARRAYS = {int32: Int32Array, bool: Uint8Array, float32: Float32Array};
const logit = p => Math.fround(Math.log(p / (1 - p)));

// Run a step; inputs that are not given are zeros. Return the values of the outputs by name.
async function step({ort, session}, given) {
  const feeds = session.inputMetadata.map(({name, type, shape}) => {
    const dims = shape.map(size => typeof size === "number" ? size : 1);
    const values = given[name] ?? Array(dims.reduce((a, b) => a * b, 1)).fill(0);
    return [name, new ort.Tensor(type, ARRAYS[type].from(values), dims)];
  });
  const outputs = Object.entries(await session.run(Object.fromEntries(feeds)));
  return Object.fromEntries(outputs.map(([name, {data}]) => [name.replace(/^next_/, ""), data]));
}

// Return random starts of the latents if the model wants them: a file without the input `new`.
function starts({session, facts}) {
  const inputs = session.inputMetadata, drawn = inputs.filter(({name}) => /^z_/.test(name));
  const normal = () => Math.sqrt(-2 * Math.log(1 - Math.random())) * Math.cos(2 * Math.PI * Math.random());
  const cut = () => { for (;;) { const one = normal(); if (Math.abs(one) < 2) return one * facts.init_std; } };
  if (inputs.some(({name}) => name === "new")) return {};
  return Object.fromEntries(drawn.map(({name, shape}) => {
    const size = shape.reduce((all, side) => all * (typeof side === "number" ? side : 1), 1);
    return [name, Array.from({length: size}, cut)];
  }));
}

// Yield the answer after each ACT step: its digits, and how sure the model is of each and of all.
export async function* improve(model, clues) {
  const inputs = clues.map(digit => digit + 1), {vocab_size: V, num_steps} = model.facts;
  const top = values => 1 / weigh(values).reduce((sum, weight) => sum + weight);
  for (let number = 1, outputs = starts(model); number <= num_steps; number++) {
    outputs = await step(model, {...outputs, inputs, new: [number === 1]});
    const digits = clues.map((digit, i) => digit || Math.max(outputs.answers[i] - 1, 0));
    const sure = clues.map((digit, i) => digit ? 1 : top(outputs.logits.slice(i * V, i * V + V)));
    yield {digits, sure, q: outputs.q_halt?.[0], isLast: number === num_steps};
  }
}

// Return the likelihood of each token compared with the likeliest.
function weigh(logits) {
  const most = Math.max(...logits);
  return Array.from(logits, one => Math.exp(one - most));
}

// Yield the rounds of one chain of the search, as in apps/lattice/search.py: the digits left in
// each cell, the cell of a guess or of a guess taken back (or -1), and how the round ended.
export async function* search(model, clues, draw = Math.random) {
  const {strike_below, contradiction_above, guess, guess_temperature, vocab_size: V} = model.facts;
  const inputs = clues.map(digit => digit + 1), tokens = Array.from({length: V}, (_, t) => t);
  const first = clues.map((digit, i) => tokens.map(t => digit ? t === inputs[i] : t > 1));
  const count = cell => cell.filter(Boolean).length, guesses = [];
  let before = first, caution = 0, states = {}, isDecided = false;
  for (let round = 1; round <= ROUNDS && !isDecided; round++) {
    states = await step(model, {...states, inputs, candidates: before.flat()});
    const {candidates_logits, contradiction_logits, logits} = states, [u, v] = [draw(), draw()];
    const bound = logit(strike_below * CAUTION ** caution);
    const after = before.map((cell, i) => cell.map((on, t) =>
      on && (clues[i] > 0 || candidates_logits[i * V + t] >= bound)));
    const open = [...after.keys()].filter(i => count(after[i]) > 1);
    const struck = count(before.flat()) - count(after.flat());
    const failed = contradiction_logits[0] > logit(contradiction_above) || !after.every(count);
    isDecided = !open.length && !struck && !failed;
    let next = after, guessed = -1, takenBack = -1;
    if (failed) {
      [takenBack, next] = guesses.pop() ?? [-1, first];
      caution += Number(takenBack < 0), states = {};
    } else if (open.length && (guess === "always" || !struck)) {
      guessed = open[Math.floor(Math.fround(u * open.length))];
      const scores = tokens.map(t => logits[guessed * V + t] / guess_temperature);
      const weights = weigh(scores.map((one, t) => after[guessed][t] ? one : -Infinity));
      let below = v * weights.reduce((sum, weight) => sum + weight);
      const drawn = weights.findIndex(weight => (below -= weight) < 0);
      const token = drawn < 0 ? after[guessed].lastIndexOf(true) : drawn;  // Sums are rounded.
      next = after.with(guessed, tokens.map(t => t === token));
      guesses.push([guessed, after.with(guessed, before[guessed].with(token, false))]);
    }
    const left = next.map(cell => tokens.filter(t => cell[t]).map(t => t - 1));
    const digits = left.map(each => each.length === 1 ? each[0] : 0), isLast = round === ROUNDS;
    yield {digits, left, struck, failed, guessed, takenBack, isLast: isLast || isDecided};
    before = next;
  }
}
