/** The editor: a grid to type or draw a puzzle. The server describes its look (dataset/kinds/base.py). */
import { $, make } from "./common.js";

// `keyed`: the looks of the tokens that can be typed; `blank`: the look of an open cell; `cells`: the look of each cell.
const state = { board: {}, size: 0, anySize: false, keyed: [], blank: null, cells: [], at: 0, pen: null, changed: () => {} };
const grid = $("editor");

const isWritten = () => state.board.cells === "written";
const cellAt = (at) => grid.querySelector(`[data-at="${at}"]`);

export function onChange(changed) { state.changed = changed; }

/** Return the look of a cell in an empty puzzle. */
function blankAt(at) {
  const { empty } = state.board, token = empty.length === state.size ** 2 ? empty[at] : state.board.open;
  return state.keyed.find((one) => one.token === token);
}

/** Show an editor for this kind of board; the typed puzzle stays if the board is the same. With `anySize` the model reads other sizes, too. */
export function open(board, size, anySize) {
  const fits = JSON.stringify(state.board) === JSON.stringify(board) && (anySize || state.size === size);
  const keyed = board.tokens.filter((one) => one.keys.length), blank = keyed.find((one) => one.token === board.open);
  $("drawn").hidden = !board.hint;
  $("keys").textContent = board.hint;
  state.anySize = anySize;
  if (fits) return;
  Object.assign(state, { board, keyed, blank });
  resize(board.hint ? size : 0);
  drawKeypad();
}

/** Show an empty puzzle of `size` rows. */
function resize(size) {
  Object.assign(state, { size, at: 0 });
  state.cells = Array.from({ length: size * size }, (_, at) => blankAt(at));
  grid.style.setProperty("--size", size);
  grid.className = state.board.cells;
  grid.replaceChildren(...Array.from({ length: size }, (_, row) => drawRow(row * size)));
  state.cells.forEach((_, at) => paint(at));
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
    button.onclick = () => { put(state.at, clears ? blankAt(state.at) : one); move(state.at); state.changed(); };
    return button;
  }));
}

/** Whether a colour, #RRGGBB, needs a light letter. */
function isDark(fill) { return fill.length === 7 && [1, 3, 5].reduce((sum, i) => sum + parseInt(fill.slice(i, i + 2), 16), 0) < 380; }

function paint(at) {
  const cell = cellAt(at), one = state.cells[at];
  cell.className = [!isWritten() && one.name, ...edges(at)].filter(Boolean).join(" ");
  cell.style.setProperty("--fill", one.fill);
  cell.style.setProperty("--letter", isDark(one.fill) ? "#fff" : "#000");
  cell.textContent = isWritten() && one !== state.blank ? one.text : one.letter;
  cell.setAttribute("aria-label", `row ${Math.floor(at / state.size) + 1}, column ${at % state.size + 1}: ${one.name}`);
}

function put(at, one) {
  if (one.once) state.cells.forEach((other, i) => { if (other === one) { state.cells[i] = blankAt(i); paint(i); } });
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
  const one = clears ? blankAt(at) : written(event.key);
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

/** Return the rows of a puzzle with so many cells; 0: the model does not read it. */
function rowsOf(cells) {
  const rows = Math.sqrt(cells), isSquare = Number.isInteger(rows) && rows > 1;
  return (state.anySize ? isSquare : rows === state.size) ? rows : 0;
}

/**
 * Return the symbols of a text, cell by cell. A written board without spaces may have frames: a dash is one beside a +, or
 * in a line of dashes and bars. Others have one line a row.
 */
function symbolsOf(typed) {
  const hasSpaces = state.keyed.some((one) => one.text === " ");
  if (isWritten() && !hasSpaces) {
    const cellsOf = (text) => [...text.replace(/-*\+[-+]*|[\s|=\u2500-\u257f]/g, "")], all = cellsOf(typed);
    return rowsOf(all.length) ? all : cellsOf(typed.replace(/^[-|\s]+$/gm, ""));
  }
  const lines = typed.replace(/\r/g, "").replace(/^\n+|\n+$/g, "").split("\n");
  const width = Math.max(lines.length, ...lines.map((line) => line.length));
  return lines.length > 1 ? lines.flatMap((line) => [...line.padEnd(width)]) : [...lines[0]];
}

/** Fill the whole grid; throw an error if the size or a symbol is wrong. */
export function fill(typed) {
  const symbols = symbolsOf(typed), found = symbols.map(written), rows = rowsOf(found.length);
  if (!rows) throw new Error(`${found.length} cells; the model reads ${state.anySize ? "squares" : state.size ** 2}`);
  const unknown = found.indexOf(undefined);
  if (unknown >= 0) throw new Error(`"${symbols[unknown]}" is not accepted in a cell`);
  if (rows !== state.size) resize(rows);
  found.forEach((one, at) => { state.cells[at] = one; paint(at); });
}

/** Whether all cells are blank. */
export const isEmpty = () => state.cells.every((one, at) => one === blankAt(at));

export function clear() { state.cells.forEach((_, at) => put(at, blankAt(at))); }
