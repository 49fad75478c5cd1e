/** The part "Look inside": what the model does between the puzzle and its answer. */
import { $, ask, draw, make, trying } from "./common.js";

const WIDE = 320, HIGH = 220, EDGE = 26;
// `body`: the request that was solved; `found`: what the server found for it; `step`: the player's; `chain`: which chain, if there are several.
const state = { body: null, chain: "", found: null, step: 0, map: null, asking: 0 };

const isOpen = () => $("inside").open && !$("inside").hidden;

/** A model that searches has no steps to look into. */
export function useModel({ searches }) {
  $("inside").hidden = Boolean(searches);
  forget();
}

export function forget() {
  state.asking += 1;
  Object.assign(state, { body: null, found: null, map: null });
  $("panels").hidden = true;
}

/** A puzzle has been solved by this request. */
export function solved({ model, puzzle, steps, chains }) {
  forget();
  state.chain = chains > 1 ? " of the first chain" : "";
  state.body = { model, puzzle, ...(steps && { steps }) };
  look();
}

/** The player shows this step; 0 is the puzzle. */
export function showStep(step) {
  state.step = step;
  if (state.found) redraw();
}

const look = trying(async () => {
  if (!isOpen() || !state.body || state.found) return;
  const asking = ++state.asking;
  $("looking").textContent = "looking ...";
  try {
    const found = await ask("inside", state.body);
    if (asking !== state.asking) return;
    state.found = found;
    offer($("latent"), ["the answer", ...Object.keys(found.said)]);
    offer($("of"), found.attention ? ["influence", "attention"] : ["influence"]);
    $("said-panel").hidden = !Object.keys(found.said).length;
    $("panels").hidden = false;
    drawMap();
    redraw();
  } finally { $("looking").textContent = ""; }
});

function offer(select, names) {
  select.replaceChildren(...names.map((name) => make("option", { textContent: name, value: name })));
  select.hidden = names.length < 2;
}

function redraw() {
  const { found } = state;
  $("in-plane").textContent = `shows ${Math.round(100 * found.in_plane)} % of the variance; faint: other tries and other puzzles`;
  drawPaths();
  $("fate").textContent = found.fate + state.chain;
  drawResidual();
  const boards = found.said[$("latent").value];
  draw($("said"), boards && state.step ? boards[state.step - 1] : "");
  $("said-words").textContent = boards ? (state.step ? `after step ${state.step}${state.chain}` : "play to a step") : "the board above";
}

function svg(tag, attributes, textContent = "") {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  Object.entries(attributes).forEach(([name, value]) => made.setAttribute(name, value));
  made.textContent = textContent;
  return made;
}

/** Return a function from a value to a place between two ends. */
function scale(values, from, to) {
  const low = Math.min(...values), size = Math.max(...values) - low || 1;
  return (value) => from + (to - from) * (value - low) / size;
}

function drawPaths() {
  const { paths, tries } = state.found, points = paths.slice(0, 1 + tries).flat();  // Other puzzles may leave the picture.
  const x = scale(points.map((one) => one[0]), EDGE, WIDE - EDGE), y = scale(points.map((one) => one[1]), HIGH - EDGE, EDGE);
  const lines = paths.map((path, number) => svg("polyline", { points: path.map((p) => `${x(p[0])},${y(p[1])}`).join(" "), class: number ? "other" : "own" })).reverse();
  const own = paths[0], every = Math.ceil(own.length / 16);
  const marks = own.flatMap((p, at) => [
    svg("circle", { cx: x(p[0]), cy: y(p[1]), r: at + 1 === state.step ? 6 : 2.5, class: at + 1 === state.step ? "here" : "" }),
    ...(at % every ? [] : [svg("text", { x: x(p[0]) + 5, y: y(p[1]) - 5 }, at + 1)]),
  ]);
  $("path").replaceChildren(...lines, ...marks);
}

function drawResidual() {
  const values = state.found.residual.map((value) => Math.log10(Math.max(value, 1e-7)));
  const low = Math.floor(Math.min(...values)), x = scale([2, values.length + 1], EDGE + 14, WIDE - EDGE), y = scale([low, 0.3], HIGH - EDGE, EDGE);
  const ticks = Array.from({ length: 1 - low }, (_, power) => svg("text", { x: 2, y: y(-power) + 4 }, power ? `1e-${power}` : "1"));
  const rules = Array.from({ length: 1 - low }, (_, power) => svg("line", { x1: EDGE + 14, x2: WIDE - EDGE, y1: y(-power), y2: y(-power) }));
  const points = values.map((value, at) => [x(at + 2), y(value)]);
  const here = points[state.step - 2];
  $("residual").replaceChildren(...rules, ...ticks, svg("polyline", { points: points.join(" "), class: "own" }),
    ...(here ? [svg("circle", { cx: here[0], cy: here[1], r: 5, class: "here" })] : []),
    svg("text", { x: WIDE / 2, y: HIGH - 4, "text-anchor": "middle" }, `ACT steps 2 to ${values.length + 1}`));
}

// Who listens to whom

function drawMap() {
  const size = Math.sqrt(state.map?.length ?? 0), grid = $("map");
  grid.hidden = !size;
  $("legend").hidden = !size;
  grid.style.setProperty("--size", size || 1);
  grid.replaceChildren(...(state.map ?? []).map((_, at) => {
    const place = `row ${Math.floor(at / size) + 1}, column ${at % size + 1}`;
    const cell = make("button", { ariaLabel: place, tabIndex: at ? -1 : 0 });
    cell.onpointerenter = cell.onfocus = () => colour(at);
    cell.onkeydown = (event) => moveFrom(event, at, size);
    return cell;
  }));
}

function moveFrom(event, at, size) {
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowUp: at - size, ArrowDown: at + size }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  $("map").children[to]?.focus();
}

/** Colour the cells that a cell listens to, and those that it tells. */
function colour(at) {
  const { map } = state, most = Math.max(...map[at], ...map.map((row) => row[at])) || 1;
  [...$("map").children].forEach((cell, other) => {
    cell.style.setProperty("--hears", other === at ? 0 : map[at][other] / most);
    cell.style.setProperty("--tells", other === at ? 0 : map[other][at] / most);
    cell.className = other === at ? "here" : "";
  });
}

const measure = trying(async () => {
  if (!state.body) return;
  const asking = ++state.asking, step = state.step || state.found.residual.length + 1;
  $("measure").disabled = true;
  try {
    const { map } = await ask("influence", { ...state.body, step, of: $("of").value });
    if (asking !== state.asking) return;
    state.map = map;
    $("map-words").textContent = `after step ${step}${state.chain}`;
    drawMap();
    colour(0);
  } finally { $("measure").disabled = false; }
});

$("inside").ontoggle = look;
$("latent").onchange = redraw;
$("measure").onclick = measure;
