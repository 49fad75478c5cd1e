// The rules of Sudoku. A puzzle is a list of digits, row by row; 0 is an empty cell.
const BOXES = {4: [2, 2], 6: [2, 3], 9: [3, 3]};  // Rows and columns of a box by the grid's side.
export const boxOf = side => BOXES[side], sideOf = puzzle => Math.sqrt(puzzle.length);

// Return the numbers of the row, column and box of each cell.
export function unitsOf(side) {
  const places = Array.from({length: side * side}, (_, i) => [Math.floor(i / side), i % side]);
  const [rows, columns] = BOXES[side];
  return places.map(([r, c]) => [r, c, Math.floor(r / rows) * rows + Math.floor(c / columns)]);
}

// Return for each cell the unit in which its digit stands twice, as in "row 1", or "".
export function clashes(puzzle) {
  const units = unitsOf(sideOf(puzzle));
  return puzzle.map((digit, i) => {
    const kind = [0, 1, 2].find(kind => digit && puzzle.some((other, j) =>
      other === digit && j !== i && units[j][kind] === units[i][kind]));
    return kind === undefined ? "" : `${["row", "column", "box"][kind]} ${units[i][kind] + 1}`;
  });
}

// Return the digits of a text with frames or spaces, or throw an Error that names the mistake.
export function parse(text) {
  // A dash is an empty cell, unless it draws a frame: beside a +, or in a line of dashes and bars.
  const cellsOf = text => text.replace(/-*\+[-+]*|[\s|]/g, "");
  const all = cellsOf(text), isPuzzle = sideOf(all) in BOXES;
  const typed = isPuzzle ? all : cellsOf(text.replace(/^[-|\s]+$/gm, "")), side = sideOf(typed);
  const wrong = [...typed].find(one => !/[0-9._*-]/.test(one) || one > side);
  if (!(side in BOXES)) throw Error(`A puzzle has 16, 36 or 81 cells; this has ${typed.length}`);
  if (wrong) throw Error(`A cell holds a digit from 1 to ${side} or . 0 - _ *, not "${wrong}"`);
  return [...typed].map(one => Number(one) || 0);
}

// Return at most two solutions, or null if the time was too short to tell. A digit in a cell meets
// four needs: its cell's, and its own in three units. The need with the fewest ways comes first.
export function solve(puzzle, seconds = 1.5) {
  const side = sideOf(puzzle), found = [], end = performance.now() + 1000 * seconds;
  const rarer = (one, other) => other.length < one.length ? other : one;
  const all = unitsOf(side).flatMap((units, i) => [...Array(side).keys()].map(k =>
    ({i, k, needs: [i, ...units.map((unit, kind) => ((kind + 1) * side + unit) * side + k)]})));
  (function fill(ways, cells) {
    const byNeed = [], open = cells.filter(digit => !digit).length;
    if (!open) return found.push(cells);
    for (const way of ways) for (const need of way.needs) (byNeed[need] ??= []).push(way);
    const needs = byNeed.filter(Boolean);
    for (const {i, k, needs: met} of needs.length < 4 * open ? [] : needs.reduce(rarer)) {
      if (found.length > 1 || performance.now() > end) return;
      fill(ways.filter(way => met.every((need, n) => way.needs[n] !== need)), cells.with(i, k + 1));
    }
  })(all.filter(({i, k}) => [0, k + 1].includes(puzzle[i])), puzzle.map(() => 0));
  return found.length > 1 || performance.now() < end ? found : null;
}
