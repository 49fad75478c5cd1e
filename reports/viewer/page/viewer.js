"use strict";
const $ = (id) => document.getElementById(id);
const state = { found: null, kind: null, cells: [], size: 9, frames: [], at: 0, timer: 0, chosen: null, page: 0, tab: "own", task: null, asking: null, listing: 0 };
const MAZE_KEYS = { "#": "#", " ": " ", ".": " ", s: "S", g: "G" };
const MAZE_LOOKS = { "#": "wall", " ": "free", S: "start", G: "goal" };
const NO_MODEL = "no checkpoint can be used: train a model first (make demo), or name its folder";
const BOXES = { 4: [2, 2], 6: [2, 3], 9: [3, 3] };

function say(text) { $("message").textContent = text || ""; }

async function ask(name, body) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch("/api/" + name, options);
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

/** Run what may fail; a mistake becomes a sentence on the page. */
function trying(action) {
  return async (...given) => {
    try { say(""); return await action(...given); } catch (error) { say(error.message); }
  };
}

function model() {
  const chosen = state.found?.models[+$("model").value];
  if (!chosen || chosen.error) throw new Error(chosen?.error || NO_MODEL);
  return chosen;
}

function option(text, value, disabled) {
  const made = document.createElement("option");
  made.textContent = text; made.value = value; made.disabled = Boolean(disabled);
  return made;
}

/** Name a model, and the step of its newest checkpoint. */
function label(one) {
  if (one.error) return `${one.name}: ${one.error}`;
  const step = one.train_step === null ? "" : `, step ${one.train_step.toLocaleString("en")}`;
  return `${one.name}${step} (${one.kind})`;
}

// The editor: Sudoku digits or the cells of a maze.

function drawEditor() {
  const kind = model().kind, size = model().size, editor = $("editor");
  const [boxRows, boxColumns] = BOXES[size] || [0, 0];
  $("arc").hidden = kind !== "ARC"; editor.hidden = kind === "ARC";
  $("random").hidden = kind !== "maze";
  $("keys").textContent = kind === "Sudoku" ? "Arrow keys move, digits fill, Backspace clears; paste a whole puzzle as text."
    : kind === "maze" ? "Arrow keys move; # wall, Space or . free, S start, G goal; drag to draw walls; paste rows as text." : "";
  if (kind === "ARC") return;
  // What was typed for one model can be asked of another.
  if (state.kind !== kind || state.cells.length !== size * size) state.cells = Array(size * size).fill(kind === "maze" ? " " : "");
  state.kind = kind; state.size = size;
  editor.style.gridTemplate = `repeat(${size}, minmax(0, 1fr)) / repeat(${size}, minmax(0, 1fr))`;
  editor.replaceChildren();
  for (let row = 0; row < size; row++) {
    const line = document.createElement("div");
    line.setAttribute("role", "row");
    for (let column = 0; column < size; column++) {
      const cell = document.createElement("div");
      cell.setAttribute("role", "gridcell");
      cell.tabIndex = row + column === 0 ? 0 : -1;
      if (kind === "Sudoku" && (column + 1) % boxColumns === 0 && column + 1 < size) cell.classList.add("right");
      if (kind === "Sudoku" && (row + 1) % boxRows === 0 && row + 1 < size) cell.classList.add("below");
      cell.dataset.at = row * size + column;
      line.append(cell);
    }
    editor.append(line);
  }
  state.cells.forEach((_, at) => paint(at));
}

const cellAt = (at) => $("editor").querySelector(`[data-at="${at}"]`);

function paint(at) {
  const cell = cellAt(at), value = state.cells[at], place = `row ${Math.floor(at / state.size) + 1}, column ${at % state.size + 1}`;
  if (model().kind === "maze") {
    cell.classList.remove("wall", "free", "start", "goal");
    cell.classList.add(MAZE_LOOKS[value]);
    cell.textContent = value === "S" || value === "G" ? value : "";
    cell.setAttribute("aria-label", `${place}: ${MAZE_LOOKS[value]}`);
  } else {
    cell.textContent = value;
    cell.setAttribute("aria-label", `${place}: ${value || "empty"}`);
  }
}

function put(at, value) {
  if (value === "S" || value === "G") {
    state.cells.forEach((other, i) => { if (other === value) { state.cells[i] = " "; paint(i); } });
  }
  state.cells[at] = value;
  state.chosen = null;
  paint(at);
}

function move(at) {
  $("editor").querySelectorAll('[tabindex="0"]').forEach((cell) => { cell.tabIndex = -1; });
  cellAt(at).tabIndex = 0;
  cellAt(at).focus();
}

function editorKey(event) {
  const at = +event.target.dataset.at, size = state.size;
  if (Number.isNaN(at) || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = Math.floor(at / size), column = at % size;
  const to = { ArrowLeft: column > 0 && at - 1, ArrowRight: column < size - 1 && at + 1,
    ArrowUp: row > 0 && at - size, ArrowDown: row < size - 1 && at + size }[event.key];
  if (event.key.startsWith("Arrow")) {
    event.preventDefault();
    if (to !== false) move(to);
    return;
  }
  const isMaze = model().kind === "maze", next = Math.min(at + 1, size * size - 1);
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  if (event.key === "Backspace" || event.key === "Delete") put(at, isMaze ? " " : "");
  else if (isMaze && key in MAZE_KEYS) { put(at, MAZE_KEYS[key]); move(next); }
  else if (!isMaze && (/^[1-9]$/.test(key) && +key <= size)) { put(at, key); move(next); }
  else if (!isMaze && ["0", ".", " "].includes(key)) { put(at, ""); move(next); }
  else return;
  event.preventDefault();
  event.stopPropagation();
}

function ownText() {
  if (model().kind === "maze") {
    return Array.from({ length: state.size }, (_, row) => state.cells.slice(row * state.size, (row + 1) * state.size).join("")).join("\n");
  }
  return state.cells.map((value) => value || ".").join("");
}

function fill(text) {
  const isMaze = model().kind === "maze", size = state.size;
  let found = [...text];
  if (isMaze) {
    const lines = text.replace(/\r/g, "").replace(/^\n+|\n+$/g, "").split("\n");
    found = lines.length > 1 ? lines.flatMap((line) => [...line.padEnd(size)]) : [...lines[0]];
    found = found.map((symbol) => (symbol === "." ? " " : symbol));
  } else {
    found = found.filter((symbol) => /[0-9.]/.test(symbol)).map((symbol) => (/[1-9]/.test(symbol) ? symbol : ""));
  }
  if (found.length !== size * size) throw new Error(`${found.length} cells; the model reads ${size * size}`);
  const unknown = found.find((symbol) => (isMaze ? !(symbol in MAZE_LOOKS) : +symbol > size));
  if (unknown !== undefined) throw new Error(`a cell is "${unknown}", which is not accepted here`);
  found.forEach((value, at) => { state.cells[at] = value; paint(at); });
  state.chosen = null;
}

// Data sets, and what evaluations recorded.

function showTab(tab) {
  if (tab !== state.tab) { end(); state.chosen = null; }  // The board shows what the tab is about.
  clearTimeout(state.soon);
  state.tab = tab; state.page = 0; state.listing += 1;
  document.querySelectorAll("#tabs button").forEach((button) => {
    button.setAttribute("aria-selected", String(button.dataset.tab === tab));
    button.tabIndex = button.dataset.tab === tab ? 0 : -1;
  });
  $("own").hidden = tab !== "own"; $("browse").hidden = tab === "own";
  if (tab === "own") return;
  $("which-label").textContent = tab === "data" ? "Data set" : "Evaluation";
  const listed = state.found[tab];
  $("which").replaceChildren(...listed.map((one, number) => option(one.error ? `${one.name}: ${one.error}` : one.name, number, one.error)));
  $("rows").replaceChildren(); $("filters").replaceChildren();
  if (!listed.length) {
    say(tab === "data" ? "no data set was found" : "no evaluation has records: run evaluate.py with save_records=true");
    return;
  }
  const fitting = listed.findIndex((one) => !one.error && (!one.kind || one.kind === model().kind));
  $("which").value = Math.max(0, fitting);
  listRows(true);
}

function addFilter(label, input) {
  const made = document.createElement("label");
  made.append(`${label} `, ...input);
  $("filters").append(made);
}

function number(id, value) {
  const input = document.createElement("input");
  input.type = "number"; input.step = "any"; input.id = id; input.placeholder = value;
  input.oninput = listSoon;
  return input;
}

/** List again when nobody has typed for a moment. */
function listSoon() {
  clearTimeout(state.soon);
  state.soon = setTimeout(() => { state.page = 0; listRows(false); }, 250);
}

function drawFilters(bounds) {
  $("filters").replaceChildren();
  if (state.tab === "records") {
    const wrong = document.createElement("input");
    wrong.type = "checkbox"; wrong.id = "wrong-only"; wrong.checked = true;
    wrong.oninput = listSoon;
    addFilter("wrong ones only", [wrong]);
  } else {
    const text = document.createElement("input");
    text.id = "text"; text.oninput = listSoon;
    if (state.found.data[+$("which").value].kind === "ARC") addFilter("name contains", [text]);
  }
  for (const [name, [low, high]] of Object.entries(bounds)) {
    if (low === high) continue;
    addFilter(name, [number(`low-${name}`, low), " to ", number(`high-${name}`, high)]);
  }
}

const listRows = trying(async (isNew) => {
  const listing = ++state.listing, bounds = {};
  if (!isNew) {
    document.querySelectorAll("[id^='low-']").forEach((low) => {
      const high = $(`high-${low.id.slice(4)}`);
      if (low.value || high.value) bounds[low.id.slice(4)] = [+(low.value || low.placeholder), +(high.value || high.placeholder)];
    });
  }
  const answer = await ask("rows", { of: state.tab, number: +$("which").value, page: state.page, bounds,
    text: isNew ? "" : $("text")?.value || "", wrong_only: isNew ? true : $("wrong-only")?.checked ?? true });
  if (listing !== state.listing) return;  // Something else was asked for since.
  if (isNew) drawFilters(answer.bounds);
  const pages = Math.max(1, Math.ceil(answer.total / answer.per_page));
  $("pages").textContent = `${answer.total} puzzles, page ${state.page + 1} of ${pages}`;
  $("before").disabled = state.page === 0; $("after").disabled = state.page + 1 >= pages;
  $("rows").replaceChildren(...answer.rows.map((row) => {
    const item = document.createElement("li"), button = document.createElement("button");
    button.textContent = row.words;
    if (state.chosen?.data === answer.data && state.chosen.row === row.row) button.setAttribute("aria-current", "true");
    button.onclick = trying(async () => {
      document.querySelectorAll(".rows [aria-current]").forEach((one) => one.removeAttribute("aria-current"));
      button.setAttribute("aria-current", "true");
      state.chosen = { data: answer.data, row: row.row };
      await preview(state.chosen);
    });
    item.append(button);
    return item;
  }));
});

async function preview(puzzle) {
  const asking = begin();
  const answer = await ask("board", { model: +$("model").value, puzzle });
  if (state.asking !== asking) return;
  setFrames([{ title: answer.name || "the puzzle", words: [], svg: answer.svg }]);
  if (answer.note) say(answer.note);
}

// Thinking: a line of JSON for each step, of the model with a number.

/** End what is under way, and empty the board. */
function end() {
  state.asking?.abort();
  state.asking = null;
  stop(); setFrames([]);
  $("verdict").textContent = "";
  $("board").removeAttribute("aria-busy");
}

/** Begin something that ends when the next begins; what comes later of an older one is dropped. */
function begin() {
  end();
  return state.asking = new AbortController();
}

function wanted() {
  if (state.tab !== "own") {
    if (!state.chosen) throw new Error("choose a puzzle of the list");
    return state.chosen;
  }
  if (model().kind === "ARC") {
    if (!state.task) throw new Error("load an ARC task, or choose one of a data set");
    return { task: state.task.content, task_name: state.task.name, test_input: Math.max(0, +$("test-input").value - 1) };
  }
  return { text: ownText() };
}

const solve = trying(async () => {
  const body = { model: +$("model").value, puzzle: wanted(), breadth: +$("breadth").value || 1, compare: $("compare").checked };
  if (model().searches) body.rounds = +$("rounds").value || 200;
  else if ($("depth").value) body.depth = +$("depth").value;
  const asking = begin();
  $("verdict").textContent = "thinking ..."; $("board").setAttribute("aria-busy", "true");
  try {
    const response = await fetch("/api/think", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal: asking.signal });
    if (!response.ok) throw new Error((await response.json()).error);
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", part; !(part = await reader.read()).done && state.asking === asking;) {
      const lines = (rest + part.value).split("\n");
      rest = lines.pop();
      lines.forEach((line) => happened(JSON.parse(line), body.model));
    }
  } catch (error) {
    if (state.asking !== asking) return;
    $("verdict").textContent = "";
    throw error;
  } finally {
    if (state.asking === asking) $("board").removeAttribute("aria-busy");
  }
});

function happened(event, number) {
  if (event.error) throw new Error(event.error);
  if (event.note) say(event.note);
  // Who has gone back to an earlier step stays there.
  const follows = state.at >= state.frames.length - 1;
  if (event.frame) { state.frames.push(event.frame); show(follows ? state.frames.length - 1 : state.at); }
  if (!event.done) return;
  setFrames(event.done, follows ? event.done.length - 1 : state.at);
  $("verdict").textContent = event.verdict;
  // Of a run at work it may be newer by now.
  state.found.models[number].train_step = event.train_step;
  $("model").options[number].textContent = label(state.found.models[number]);
}

function setFrames(frames, at = 0) {
  state.frames = frames;
  show(at);
}

function show(at) {
  const last = Math.max(0, state.frames.length - 1), frame = state.frames[state.at = Math.max(0, Math.min(last, at))];
  $("board").innerHTML = frame?.svg ?? "";  // Drawn by the server, which escapes all text.
  $("words").textContent = frame ? [frame.title, ...frame.words].join(": ") : "";
  $("step").max = last; $("step").value = state.at;
  $("place").textContent = frame ? `${state.at} / ${last}` : "";
  $("play").disabled = last === 0;
}

function stop() { clearInterval(state.timer); state.timer = 0; $("play").textContent = "Play"; }

function play() {
  if (state.timer || state.frames.length < 2) return stop();
  if (state.at >= state.frames.length - 1) show(0);
  $("play").textContent = "Stop";
  state.timer = setInterval(() => {
    show(state.at + 1);
    if (state.at >= state.frames.length - 1) stop();
  }, Math.max(80, Math.min(600, 12000 / state.frames.length)));
}

function chooseModel() {
  const chosen = model(), searches = Boolean(chosen.searches);
  state.chosen = null;
  end();
  $("board").classList.toggle("wide", chosen.kind === "ARC");
  $("board").classList.toggle("digits", chosen.kind === "Sudoku");
  $("depth-label").hidden = searches; $("rounds-label").hidden = !searches;
  $("depth").placeholder = chosen.steps || "as trained";
  drawEditor();
  showTab(state.tab);
}

function globalKey(event) {
  const typing = /^(INPUT|SELECT)$/.test(event.target.tagName) && event.target.type !== "range" && event.target.type !== "checkbox";
  const onButton = event.target.tagName === "BUTTON", hasSpace = onButton || event.target.type === "checkbox";
  if (event.key === "Enter" && !onButton) { event.preventDefault(); solve(); }
  else if (typing) return;
  else if (event.key === " " && !hasSpace) { event.preventDefault(); play(); }
  else if (event.key === ",") { stop(); show(state.at - 1); }
  else if (event.key === "." && !event.target.dataset?.at) { stop(); show(state.at + 1); }
}

const loadTask = trying(async () => {
  const [file] = $("task").files;
  if (!file) return;
  if (file.size > 900000) throw new Error(`${file.name}: ${file.size} bytes; accepted: at most 900,000`);
  let content;
  try { content = JSON.parse(await file.text()); } catch { throw new Error(`${file.name}: not JSON`); }
  state.task = { name: file.name.replace(/\.json$/, ""), content };
  state.chosen = null;
  await preview(wanted());
});

const start = trying(async () => {
  state.found = await ask("found", {});
  $("model").replaceChildren(...state.found.models.map((one, at) => option(label(one), at, one.error)));
  const usable = state.found.models.findIndex((one) => !one.error);
  if (usable < 0) throw new Error(NO_MODEL);
  $("model").value = usable;
  chooseModel();
});

$("model").onchange = trying(chooseModel);
$("editor").onkeydown = editorKey;
document.onpaste = trying((event) => {
  if (state.tab !== "own" || $("editor").hidden || event.target.tagName === "INPUT") return;
  event.preventDefault();
  fill(event.clipboardData.getData("text"));
});
$("editor").onpointerdown = (event) => {
  const at = +event.target.dataset.at;
  if (Number.isNaN(at)) return;
  move(at);
  if (model().kind === "maze") { state.drawing = state.cells[at] === "#" ? " " : "#"; put(at, state.drawing); event.preventDefault(); }
};
$("editor").onpointerover = (event) => {
  const at = +event.target.dataset.at;
  if (state.drawing && event.buttons && !Number.isNaN(at)) put(at, state.drawing);
};
document.onpointerup = () => { state.drawing = null; };
document.onkeydown = globalKey;
$("clear").onclick = trying(() => { state.task = null; state.cells = []; $("task").value = ""; chooseModel(); });
$("random").onclick = trying(async () => fill((await ask("maze", { model: +$("model").value, seed: Math.floor(Math.random() * 2 ** 31) })).text));
$("task").onchange = loadTask; $("test-input").onchange = loadTask;
$("solve").onclick = solve; $("play").onclick = play;
$("step").oninput = () => { stop(); show(+$("step").value); };
document.querySelectorAll("#tabs button").forEach((button, at, all) => {
  button.onclick = trying(() => showTab(button.dataset.tab));
  button.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { const next = all[(at + step + all.length) % all.length]; next.focus(); next.click(); }
  };
});
$("which").onchange = trying(() => { state.page = 0; return listRows(true); });
$("before").onclick = () => { state.page -= 1; listRows(false); };
$("after").onclick = () => { state.page += 1; listRows(false); };
start();
