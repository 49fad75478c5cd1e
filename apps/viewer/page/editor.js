/** The editor: a grid to type or draw a puzzle. The server describes its look (dataset/kinds/base.py). */
import { $, make } from "./common.js";

// `keyed`: the looks of the tokens that can be typed; `blank`: the look of a cleared cell; `cells`: the look of each cell.
const state = { board: {}, size: 0, keyed: [], blank: null, cells: [], at: 0, pen: null, changed: () => {} };
const grid = $("editor");

const isWritten = () => state.board.cells === "written";
const cellAt = (at) => grid.querySelector(`[data-at="${at}"]`);

export function onChange(changed) { state.changed = changed; }

/** Show an editor for this kind of board; the typed puzzle stays if the board is the same. */
export function open(board, size) {
  const fits = JSON.stringify(state.board) === JSON.stringify(board) && state.size === size;
  const keyed = board.tokens.filter((one) => one.keys.length), blank = keyed.find((one) => one.token === board.open);
  $("drawn").hidden = !board.hint;
  $("keys").textContent = board.hint;
  if (fits) return;
  Object.assign(state, { board, size, keyed, blank, cells: [], at: 0 });
  if (!board.hint) return;
  state.cells = Array(size * size).fill(blank);
  grid.style.setProperty("--size", size);
  grid.className = board.cells;
  grid.replaceChildren(...Array.from({ length: size }, (_, row) => drawRow(row * size)));
  state.cells.forEach((_, at) => paint(at));
  drawKeypad();
}

function drawRow(first) {
  const row = make("div", { role: "row" });
  for (let at = first; at < first + state.size; at++) {
    const cell = make("div", { role: "gridcell", tabIndex: at === state.at ? 0 : -1 });
    cell.dataset.at = at;
    row.append(cell);
  }
  return row;
}

/** Return the sides of a cell where a box ends. */
function edges(at) {
  const [boxRows, boxColumns] = state.board.box || [state.size, state.size], row = Math.floor(at / state.size) + 1, column = at % state.size + 1;
  return [column % boxColumns === 0 && column < state.size && "right", row % boxRows === 0 && row < state.size && "below"];
}

function drawKeypad() {
  $("keypad").replaceChildren(...state.keyed.map((one) => {
    const clears = isWritten() && one === state.blank, name = one.name[0].toUpperCase() + one.name.slice(1);
    const textContent = clears ? "⌫" : isWritten() ? one.text : name;
    const button = make("button", { textContent, ariaLabel: clears ? "clear the cell" : textContent, tabIndex: -1 });  // Keys do the same.
    button.onpointerdown = (event) => event.preventDefault();  // The cell keeps the focus.
    button.onclick = () => { put(state.at, one); move(state.at); state.changed(); };
    return button;
  }));
}

function paint(at) {
  const cell = cellAt(at), one = state.cells[at];
  cell.className = [!isWritten() && one.name, ...edges(at)].filter(Boolean).join(" ");
  cell.style.setProperty("--fill", one.fill);
  cell.textContent = isWritten() && one !== state.blank ? one.text : one.letter;
  cell.setAttribute("aria-label", `row ${Math.floor(at / state.size) + 1}, column ${at % state.size + 1}: ${one.name}`);
}

function put(at, one) {
  if (one.once) state.cells.forEach((other, i) => { if (other === one) { state.cells[i] = state.blank; paint(i); } });
  state.cells[at] = one;
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

/** Return the look that a key writes into a cell; undefined: none. */
function written(key) {
  return state.keyed.find((one) => one.keys.some((own) => own.toLowerCase() === key.toLowerCase()));
}

grid.onkeydown = (event) => {
  const at = +event.target.dataset.at;
  if (Number.isNaN(at) || event.ctrlKey || event.metaKey || event.altKey) return;
  const to = moved(at, event.key), clears = event.key === "Backspace" || event.key === "Delete";
  const one = clears ? state.blank : written(event.key);
  if (to === undefined && one === undefined) return;
  event.preventDefault();
  event.stopPropagation();
  if (to !== undefined) return move(to);
  put(at, one);
  if (!clears) move(Math.min(at + 1, state.size ** 2 - 1));
  state.changed();
};

grid.onpointerdown = (event) => {
  const at = +event.target.dataset.at, pen = state.keyed.find((one) => one.token === state.board.pen);
  if (Number.isNaN(at)) return;
  event.preventDefault();
  move(at);
  if (!pen) return;
  state.pen = state.cells[at] === pen ? state.blank : pen;
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
  const rows = Array.from({ length: state.size }, (_, row) => state.cells.slice(row * state.size, (row + 1) * state.size));
  return rows.map((row) => row.map((one) => one.text).join("")).join(isWritten() ? "" : "\n");
}

/** Return the symbols of a text, cell by cell. A written board without spaces may have frames, others have one line a row. */
function symbolsOf(typed) {
  const hasSpaces = state.keyed.some((one) => one.text === " ");
  if (isWritten() && !hasSpaces) return [...typed].filter((symbol) => !/[\s|=+\-\u2500-\u257f]/.test(symbol));
  const lines = typed.replace(/\r/g, "").replace(/^\n+|\n+$/g, "").split("\n");
  return lines.length > 1 ? lines.flatMap((line) => [...line.padEnd(state.size)]) : [...lines[0]];
}

/** Fill the whole grid; throw an error if the size or a symbol is wrong. */
export function fill(typed) {
  const symbols = symbolsOf(typed), size = state.size, found = symbols.map(written);
  if (found.length !== size * size) throw new Error(`${found.length} cells; the model reads ${size * size}`);
  const unknown = found.indexOf(undefined);
  if (unknown >= 0) throw new Error(`"${symbols[unknown]}" is not accepted in a cell`);
  found.forEach((one, at) => { state.cells[at] = one; paint(at); });
}

/** Whether all cells are blank. */
export const isEmpty = () => state.cells.every((one) => one === state.blank);

export function clear() { state.cells.forEach((_, at) => put(at, state.blank)); }
