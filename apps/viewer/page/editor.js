/** The grid into which a Sudoku or a maze is typed or drawn. */
import { $, make } from "./common.js";

const MAZE_KEYS = { "#": "#", " ": " ", ".": " ", s: "S", g: "G" };
const MAZE_LOOKS = { "#": "wall", " ": "free", S: "start", G: "goal" };
const MAZE_BUTTONS = { "#": "Wall", " ": "Free", S: "Start", G: "Goal" };
const BOXES = { 4: [2, 2], 6: [2, 3], 9: [3, 3] };
const HINTS = {
  Sudoku: "Arrow keys move, digits fill, Backspace clears; paste a whole puzzle as text.",
  maze: "Arrow keys move; # wall, Space or . free, S start, G goal; drag to draw walls; paste rows as text.",
  ARC: "",
};
const state = { kind: "", size: 0, cells: [], at: 0, pen: null, changed: () => {} };
const grid = $("editor");

const isMaze = () => state.kind === "maze";
const cellAt = (at) => grid.querySelector(`[data-at="${at}"]`);

export function onChange(changed) { state.changed = changed; }

/** Show an editor for puzzles of a kind and size; what was typed stays where it still fits. */
export function open(kind, size) {
  const fits = state.kind === kind && state.size === size;
  Object.assign(state, { kind, size });
  $("arc").hidden = kind !== "ARC";
  $("drawn").hidden = kind === "ARC";
  $("keys").textContent = HINTS[kind];
  if (kind === "ARC" || fits) return;
  Object.assign(state, { cells: Array(size * size).fill(isMaze() ? " " : ""), at: 0 });
  grid.style.setProperty("--size", size);
  grid.classList.toggle("maze", isMaze());
  grid.replaceChildren(...Array.from({ length: size }, (_, row) => drawRow(row * size)));
  state.cells.forEach((_, at) => paint(at));
  drawKeypad();
}

function drawRow(first) {
  const row = make("div", { role: "row" });
  for (let at = first; at < first + state.size; at++) {
    const cell = make("div", { role: "gridcell", tabIndex: at === state.at ? 0 : -1, className: edges(at) });
    cell.dataset.at = at;
    row.append(cell);
  }
  return row;
}

/** Name the sides of a cell at which a box of a Sudoku ends. */
function edges(at) {
  const [boxRows, boxColumns] = BOXES[state.size] || [0, 0], row = Math.floor(at / state.size) + 1, column = at % state.size + 1;
  if (isMaze()) return "";
  return [column % boxColumns === 0 && column < state.size && "right", row % boxRows === 0 && row < state.size && "below"].filter(Boolean).join(" ");
}

function drawKeypad() {
  const keys = isMaze() ? Object.keys(MAZE_BUTTONS) : [...Array.from({ length: state.size }, (_, digit) => String(digit + 1)), ""];
  $("keypad").replaceChildren(...keys.map((value) => {
    const textContent = isMaze() ? MAZE_BUTTONS[value] : value || "⌫", ariaLabel = value || isMaze() ? textContent : "clear the cell";
    const button = make("button", { textContent, ariaLabel, tabIndex: -1 });  // Keys do the same.
    button.onpointerdown = (event) => event.preventDefault();  // The cell keeps the focus.
    button.onclick = () => { put(state.at, value); move(state.at); state.changed(); };
    return button;
  }));
}

function paint(at) {
  const cell = cellAt(at), value = state.cells[at];
  const place = `row ${Math.floor(at / state.size) + 1}, column ${at % state.size + 1}`;
  if (isMaze()) cell.className = MAZE_LOOKS[value];
  cell.textContent = isMaze() && !/[SG]/.test(value) ? "" : value;
  cell.setAttribute("aria-label", `${place}: ${isMaze() ? MAZE_LOOKS[value] : value || "empty"}`);
}

function put(at, value) {
  if (value === "S" || value === "G") {
    state.cells.forEach((other, i) => { if (other === value) { state.cells[i] = " "; paint(i); } });
  }
  state.cells[at] = value;
  paint(at);
}

function move(at) {
  cellAt(state.at).tabIndex = -1;
  state.at = at;
  cellAt(at).tabIndex = 0;
  cellAt(at).focus();
}

function moved(at, key) {
  const size = state.size, row = Math.floor(at / size), column = at % size;
  return { ArrowLeft: column > 0 ? at - 1 : at, ArrowRight: column < size - 1 ? at + 1 : at,
    ArrowUp: row > 0 ? at - size : at, ArrowDown: row < size - 1 ? at + size : at }[key];
}

/** Return what a key writes into a cell; undefined: nothing. */
function written(key) {
  if (isMaze()) return MAZE_KEYS[key.toLowerCase()];
  if (["0", ".", " "].includes(key)) return "";
  return /^[1-9]$/.test(key) && +key <= state.size ? key : undefined;
}

grid.onkeydown = (event) => {
  const at = +event.target.dataset.at;
  if (Number.isNaN(at) || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = moved(at, event.key), clears = event.key === "Backspace" || event.key === "Delete";
  const value = clears ? (isMaze() ? " " : "") : written(event.key);
  if (to === undefined && value === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  if (to !== undefined) return move(to);
  put(at, value);
  if (!clears) move(Math.min(at + 1, state.size ** 2 - 1));
  state.changed();
};

grid.onpointerdown = (event) => {
  const at = +event.target.dataset.at;
  if (Number.isNaN(at)) return;
  event.preventDefault();
  move(at);
  if (!isMaze()) return;
  state.pen = state.cells[at] === "#" ? " " : "#";
  put(at, state.pen);
};
grid.onpointermove = (event) => {
  const at = +(document.elementFromPoint(event.clientX, event.clientY)?.dataset.at ?? NaN);
  if (state.pen && !Number.isNaN(at)) put(at, state.pen);
};
document.addEventListener("pointerup", () => {
  if (state.pen) state.changed();
  state.pen = null;
});

export function text() {
  if (!isMaze()) return state.cells.map((value) => value || ".").join("");
  return Array.from({ length: state.size }, (_, row) => state.cells.slice(row * state.size, (row + 1) * state.size).join("")).join("\n");
}

function symbolsOf(typed) {
  if (!isMaze()) return [...typed].filter((symbol) => /[0-9.]/.test(symbol)).map((symbol) => (/[1-9]/.test(symbol) ? symbol : ""));
  const lines = typed.replace(/\r/g, "").replace(/^\n+|\n+$/g, "").split("\n");
  const found = lines.length > 1 ? lines.flatMap((line) => [...line.padEnd(state.size)]) : [...lines[0]];
  return found.map((symbol) => (symbol === "." ? " " : symbol));
}

/** Fill the whole grid; a text of another size or with unknown symbols is refused. */
export function fill(typed) {
  const found = symbolsOf(typed), size = state.size;
  if (found.length !== size * size) throw new Error(`${found.length} cells; the model reads ${size * size}`);
  const unknown = found.find((symbol) => (isMaze() ? !(symbol in MAZE_LOOKS) : +symbol > size));
  if (unknown !== undefined) throw new Error(`a cell is "${unknown}", which is not accepted here`);
  found.forEach((value, at) => { state.cells[at] = value; paint(at); });
}

/** Whether nothing is typed; of ARC nothing ever is. */
export const isEmpty = () => state.kind === "ARC" || state.cells.every((value) => !value.trim());

export function clear() { state.cells.forEach((_, at) => put(at, isMaze() ? " " : "")); }
