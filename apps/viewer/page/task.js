/** A new ARC task: paste or draw it, let a model learn it, and see the guesses with the views that voted for them. */
import { $, draw, listen, make, say, trying } from "./common.js";

const MOST = 30;
const blank = (rows = 3, columns = 3) => Array.from({ length: rows }, () => Array(columns).fill(0));
const state = { task: { train: [{ input: blank(), output: blank() }], test: [{ input: blank() }] }, colour: 1, colours: [], asking: null, losses: [] };

/** Show the task in these colours, and offer the models that read ARC tasks. */
export function open({ models, colours }) {
  state.colours = colours;
  const able = models.map((one, at) => ({ ...one, at })).filter((one) => one.kind === "ARC");
  const option = (textContent, value) => make("option", { textContent, value });
  const kept = $("teacher").value;
  $("teacher").replaceChildren(option("scratch", ""), ...able.map((one) => option(one.name, one.at)));
  if (able.some((one) => String(one.at) === kept)) $("teacher").value = kept;
  $("palette").replaceChildren(...colours.map((fill, colour) => {
    const button = make("button", { ariaLabel: `colour ${colour}`, ariaPressed: String(colour === state.colour) });
    button.style.setProperty("--fill", fill);
    button.onclick = () => { state.colour = colour; open({ models, colours }); };
    return button;
  }));
  show();
}

/** End the learning that goes on. */
export function stop() { state.asking?.abort(); }

function show() {
  const pairs = state.task.train.map((pair, at) => row(`pair ${at + 1}`, pair, ["input", "output"]));
  const tests = state.task.test.map((pair, at) => row(`test input ${at + 1}`, pair, ["input"]));
  $("grids").replaceChildren(...pairs, ...tests);
  write();
}

function write() { $("json").value = JSON.stringify({ train: state.task.train, test: state.task.test.map(({ input }) => ({ input })) }); }

function row(name, pair, sides) {
  return make("div", { className: "row" }, ...sides.map((side) => {
    const grid = pair[side], label = `${name}${sides.length > 1 ? `, ${side}` : ""}`;
    const size = (value, name, resized) => {
      const input = make("input", { type: "number", min: 1, max: MOST, value, ariaLabel: `${name} of ${label}` });
      input.onchange = () => { pair[side] = resized(Math.min(MOST, Math.max(1, Math.round(+input.value) || 1))); show(); };
      return input;
    };
    const rows = size(grid.length, "rows", (wanted) => Array.from({ length: wanted }, (_, at) => grid[at] || Array(grid[0].length).fill(0)));
    const columns = size(grid[0].length, "columns", (wanted) => grid.map((own) => Array.from({ length: wanted }, (_, at) => own[at] || 0)));
    return make("figure", {}, make("figcaption", {}, `${label} `, rows, " x ", columns), painted(grid, label));
  }));
}

/** Return a grid whose cells take the chosen colour where the pointer is pressed. */
function painted(grid, label) {
  const place = make("div", { className: "grid", role: "group", ariaLabel: label });
  place.style.setProperty("--columns", grid[0].length);
  grid.forEach((cells, r) => cells.forEach((colour, c) => {
    const cell = make("button", { ariaLabel: `row ${r + 1}, column ${c + 1}: ${colour}` });
    const paint = (to) => {
      grid[r][c] = to;
      cell.style.setProperty("--fill", state.colours[to]);
      cell.ariaLabel = `row ${r + 1}, column ${c + 1}: ${to}`;
    };
    paint(colour);
    cell.onclick = (event) => { if (!event.detail) { paint(state.colour); write(); } };  // A key.
    cell.onpointerdown = (event) => { event.preventDefault(); paint(state.colour); write(); };
    cell.onpointerenter = (event) => { if (event.buttons) { paint(state.colour); write(); } };
    place.append(cell);
  }));
  return place;
}

/** Take a pasted task; the server checks it once more. */
function read() {
  const found = JSON.parse($("json").value), isGrid = (grid) => Array.isArray(grid) && grid.length && grid.every((own) =>
    Array.isArray(own) && own.length === grid[0].length && own.length && own.every((cell) => state.colours[cell]));
  const holds = (pairs, ...sides) => Array.isArray(pairs) && pairs.length && pairs.every((pair) => sides.every((side) => isGrid(pair?.[side])));
  if (!holds(found.train, "input", "output") || !holds(found.test, "input")) throw new Error("this is no ARC task: see docs/arc.md");
  state.task = found;
  show();
}

const learn = trying(async () => {
  const from = $("teacher").value, model = from === "" ? null : +from;
  const body = { task: JSON.parse($("json").value), model, minutes: +$("minutes").value };
  stop();
  const asking = state.asking = new AbortController();
  Object.assign(state, { losses: [] });
  $("guesses").replaceChildren();
  $("progress").textContent = "starting ...";
  $("losses").setAttribute("hidden", "");
  try {
    await listen("adapt", body, asking.signal, (event) => { if (state.asking === asking) happened(event); });
  } catch (error) {
    $("progress").textContent = "";
    throw error;
  }
});

function happened({ error, step, loss, guesses }) {
  if (error) throw new Error(error);
  if (loss !== undefined) {
    state.losses.push(loss);
    $("progress").textContent = `step ${step.toLocaleString("en")}, loss ${loss.toPrecision(3)}`;
    plot();
  }
  guesses?.forEach((two, at) => {
    const figures = two.map(({ svg, votes }) => {
      const picture = make("div");
      draw(picture, svg, 0.7);
      return make("figure", {}, picture, make("figcaption", { className: "hint", textContent: votes }));
    });
    $("guesses").append(make("h2", { textContent: `Guesses for test input ${at + 1}` }), make("div", { className: "row" }, ...figures));
  });
}

/** Draw the losses on a logarithmic scale. */
function plot() {
  const last = state.losses.length - 1 || 1, logs = state.losses.map((loss) => Math.log10(Math.max(loss, 1e-4)));
  const low = Math.min(...logs, -1), high = Math.max(...logs, 0);
  const points = logs.map((log, at) => `${(320 * at) / last},${4 + (112 * (high - log)) / (high - low)}`);
  $("losses").removeAttribute("hidden");
  $("losses").innerHTML = `<polyline points="${points.join(" ")}"/>`;
}

const change = (pairs, made, least) => () => {
  if (made) state.task[pairs].push(made());
  else if (state.task[pairs].length > least) state.task[pairs].pop();
  show();
};
$("more-pairs").onclick = change("train", () => ({ input: blank(), output: blank() }));
$("fewer-pairs").onclick = change("train", null, 1);
$("more-tests").onclick = change("test", () => ({ input: blank() }));
$("fewer-tests").onclick = change("test", null, 1);
$("json").onchange = trying(read);
$("adapt").onclick = learn;
