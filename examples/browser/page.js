import {boxOf, clashes, parse, sideOf, solve, unitsOf} from "./rules.js";
import {improve, search} from "./think.js";

const PAUSE = 250;  // Milliseconds between two steps while playing; less if many are waiting.
const EXAMPLES = {
  "4 x 4": "..4...312.1..4..", "6 x 6": "1...32..5.1...3.......654....1...6..",
  easy: "53..7....6..195....98....6.8...6...34..8.3..17...2...6.6....28....419..5....8..79",
  medium: "2.....51..4..1...9...5..7......7.694..6.9.....3..6.2....58.....6.....8.3.82.379.1",
  hard: ".2...6...78.........53.7.6...2.8......37...94.....2.7..3....1.7...49....45.......",
  "very hard": "8..........36......7..9.2...5...7.......457.....1...3...1....68..85...1..9....4..",
  "empty 4 x 4": ".".repeat(16), "empty 6 x 6": ".".repeat(36), "empty 9 x 9": ".".repeat(81),
};
const $ = Object.fromEntries([...document.querySelectorAll("[id]")].map(one => [one.id, one]));
const say = text => { $.status.textContent = text; };
const warn = text => { $.warning.textContent = text; };
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const plural = (number, name) => `${number} ${name}${number === 1 ? "" : "s"}`;
let cells = [], clues = [], solution = null, model = null, models = [];
let thoughts = [], shown = 0, playing = null;  // The present loop of play().

function fill(puzzle) {
  const side = sideOf(puzzle), [rows, columns] = boxOf(side);
  if (puzzle.length !== cells.length) {
    cells = unitsOf(side).map(([row, column], i) => {
      const [cell, input] = ["div", "input"].map(name => document.createElement(name));
      const ends = (place, size) => (place + 1) % size === 0 && place + 1 < side;
      cell.frame = {right: ends(column, columns), below: ends(row, rows)};
      cell.append(input, document.createElement("small"));
      const name = `row ${row + 1}, column ${column + 1}`, tabIndex = i ? -1 : 0;
      Object.assign(input, {inputMode: "numeric", autocomplete: "off", ariaLabel: name, tabIndex});
      return Object.assign(cell, {input, name});
    });
    $.grid.replaceChildren(...cells);
    $.grid.style.setProperty("--side", side);
  }
  clues = puzzle, thoughts = [], solution = null;
  playing = null, $.player.hidden = true;
  show(0);
  const twice = clashes(clues), i = twice.findIndex(Boolean);
  warn(i < 0 ? "" : `Not a valid Sudoku: ${clues[i]} stands twice in ${twice[i]}`);
  if (model) say("");
}

function show(number) {
  shown = number;
  const thought = thoughts[number] ?? {digits: clues}, before = thoughts[number - 1];
  const twice = clashes(thought.digits), columns = boxOf(sideOf(clues))[1];
  cells.forEach((cell, i) => {
    const digit = thought.digits[i], own = thought.left?.[i] ?? [digit], isOpen = own.length !== 1;
    const isFresh = before && `${own}` !== `${before.left?.[i] ?? [before.digits[i]]}`;
    const isWrong = solution ? own[0] !== 0 && !own.includes(solution[i]) : twice[i];
    const is = {cell: true, ...cell.frame, given: clues[i], answer: !clues[i], wrong: isWrong,
      fresh: isFresh, guess: thought.guessed === i};
    cell.className = Object.keys(is).filter(name => is[name]).join(" ");
    cell.style.setProperty("--sure", thought.sure?.[i] ?? 1);
    const places = clues.slice(0, sideOf(clues)).map((_, k) => own.includes(k + 1) ? k + 1 : " ");
    const notes = places.map((one, k) => one + ((k + 1) % columns ? " " : "\n")).join("").trimEnd();
    cell.lastChild.textContent = isOpen ? notes : "";
    const ariaDescription = isOpen ? `candidates ${own.join(" ") || "none"}` : "";
    Object.assign(cell.input, {value: digit || "", ariaDescription});
  });
  if (!thoughts.length) return;
  Object.assign($.step, {max: thoughts.length - 1, value: number});
  $.place.textContent = `${number} / ${thoughts.length - 1}`;
  $.play.textContent = playing ? "Pause" : "Play";
  $.bars.textContent = thoughts.map(({q}) => "▁▂▃▄▅▆▇█"[Math.floor(7.99 * q)] ?? "").join("");
  say(before ? `Step ${number}: ${words(thought, before)}` : "The puzzle");
}

function words({digits, left, struck, failed, guessed, takenBack, q, isLast}, before) {
  const changed = digits.filter((digit, i) => digit !== before.digits[i]).length;
  const first = left ? [struck, "candidate", "struck"] : [changed, "cell", "changed"];
  const parts = [`${plural(...first)} ${first[2]}`];
  if (q !== undefined) parts.push(`${(100 * q).toFixed(1)} % sure that all is right`);
  if (guessed >= 0) parts.push(`guess: ${cells[guessed].name} is ${digits[guessed]}`);
  if (failed) parts.push("contradiction: " + (takenBack < 0 ? "no guess left, so it begins again" :
    `the guess in ${cells[takenBack].name} is taken back`));
  const wrong = digits.filter((digit, i) => !digit || cells[i].matches(".wrong")).length;
  const verdict = wrong ? `Not solved: ${plural(wrong, "cell")} open or wrong` : "Solved";
  return parts.join("; ") + (isLast ? `. ${verdict}` : "");
}

async function start() {
  fill(clues);
  if (!model || $.warning.textContent) return;
  const found = solve(clues);
  if (found?.length === 0) return warn("This puzzle has no solution");
  if (!found) warn("Whether this puzzle has one solution could not be told in time");
  if (found?.length > 1) warn("This puzzle has several solutions");
  else solution = found?.[0] ?? null;
  const mine = thoughts = [{digits: clues}];
  $.player.hidden = false;
  play();
  for await (const thought of (model.searches ? search : improve)(model, clues)) {
    mine.push(thought);
    if (!playing) show(shown);
    await wait(0);
    if (mine !== thoughts) return;  // Before the next step, because its session may be released.
  }
}

// Show the coming steps, one after the other, until the last or a pause.
async function play() {
  for (const mine = playing = {}; mine === playing;) {
    const waiting = thoughts.length - 1 - shown;
    if (waiting) show(shown + 1);
    if (thoughts[shown].isLast) go(shown);
    await wait(waiting ? PAUSE / Math.max(1, waiting / 8) : 10);
  }
}

function go(number) {
  playing = null;
  show(Math.min(Math.max(number, 0), thoughts.length - 1));
}

$.grid.onpaste = event => {
  event.preventDefault();
  const text = event.clipboardData.getData("text").trim();
  if (text.length === 1) return type(event.target, text);
  try {
    choose(parse(text));
    $.example.value = "";
  } catch (error) { warn(error.message); }
};
$.grid.oninput = ({target, data}) => type(target, (data ?? target.value).slice(-1));
function type(input, typed) {
  const i = cells.indexOf(input.parentNode), side = sideOf(clues);
  const digit = /[1-9]/.test(typed) && typed <= side ? Number(typed) : 0;
  $.example.value = "";
  fill(clues.with(i, digit));
  if (digit || !/[^0. ]/.test(typed)) return typed && cells[i + 1]?.input.focus();
  warn(`A cell holds a digit from 1 to ${side}, not "${typed}"`);
}
$.grid.onfocusin = ({target}) => {
  cells.forEach(({input}) => { input.tabIndex = input === target ? 0 : -1; });
  target.select();
};
$.grid.onkeydown = event => {
  const i = cells.indexOf(event.target.parentNode), side = sideOf(clues);
  const move = {ArrowUp: -side, ArrowDown: side, ArrowLeft: -1, ArrowRight: 1}[event.key];
  if (event.key === "Enter") $.form.requestSubmit($.solve);
  if (move) event.preventDefault(), cells[i + move]?.input.focus();
};
$.back.onclick = () => go(shown - 1), $.on.onclick = () => go(shown + 1);
$.step.oninput = () => go(Number($.step.value));
$.play.onclick = () => {
  if (playing) return go(shown);
  if (thoughts[shown].isLast) shown = -1;
  play();
};
$.form.onsubmit = event => {
  event.preventDefault();
  start().catch(error => warn(`The model failed: ${error.message}`));
};
$.example.onchange = () => $.example.value && choose(parse($.example.value));
$.model.onchange = () => load(models[$.model.value]);

// Show a puzzle, and load a model of its size if the present one has another.
function choose(puzzle) {
  const now = models[$.model.value], fits = each => each.seq_len === puzzle.length;
  const found = [now, ...models].find(fits);
  if (!found) throw new Error(`No model here reads ${puzzle.length} cells`);
  fill(puzzle);
  if (found !== now) load(found);
}

async function load(facts) {
  model?.session.release();
  model = null, $.solve.disabled = true, $.model.value = models.indexOf(facts);
  const fits = each => each.length === facts.seq_len;
  fill([clues, ...Object.values(EXAMPLES).map(parse)].find(fits));
  say("Loading the model ...");
  try {
    const ort = await import("./ort.wasm.bundle.min.mjs");
    ort.env.wasm.numThreads = 1;  // More threads need headers that a plain server does not send.
    const session = await ort.InferenceSession.create(facts.file);
    if (models[$.model.value] !== facts || model) return session.release();
    model = {ort, session, facts, searches: session.inputNames.includes("candidates")};
    $.solve.disabled = false, say("");
  } catch (error) {
    say(`${facts.file} cannot be loaded (${error.message}). Pick another model.`);
  }
}

try {
  if (typeof WebAssembly !== "object") throw new Error("this browser has no WebAssembly");
  models = await (await fetch("models.json")).json();
  $.model.append(...models.map(({name, arch}, i) => new Option(`${name} (${arch})`, i)));
  const ours = Object.entries(EXAMPLES).filter(([, text]) =>
    models.some(each => each.seq_len === text.length));
  $.example.append(...ours.map(([name, text]) => new Option(name, text)));
  load(models[0]);
} catch (error) {
  say(`No model can run here: ${error.message}`);
}
