/** The page: choose a model and a puzzle, and watch the model solve it. */
import { $, ask, draw, listen, make, post, say, trying } from "./common.js";
import * as editor from "./editor.js";
import * as inside from "./inside.js";
import * as player from "./player.js";
import * as task from "./task.js";

const NO_MODEL = "no checkpoint can be used: train a model first (make demo), or start the viewer with its folder";
const NO_LIST = {
  data: "no data set with puzzles of this kind and size was found",
  records: "no evaluation of this model has records: run evaluate.py with save_records=true",
};
// `chosen`: a puzzle of a data set; null: use the puzzle in the editor.
const state = { found: null, chosen: null, tab: "own", page: 0, pages: 1, asking: null, listing: 0, soon: 0, thought: null };

function model() {
  const chosen = state.found?.models[+$("model").value];
  if (!chosen || chosen.error) throw new Error(chosen?.error || NO_MODEL);
  return chosen;
}

/** Return the name of a model, with the step of its newest checkpoint. */
function label(one) {
  if (one.error) return `${one.name}: ${one.error}`;
  const step = one.train_step === null ? "" : `, step ${one.train_step.toLocaleString("en")}`;
  return `${one.name}${step} (${one.kind})`;
}

const option = (textContent, value, disabled = false) => make("option", { textContent, value, disabled });

function soon(action) {
  clearTimeout(state.soon);
  state.soon = setTimeout(action, 250);
}

// The puzzle

function wanted() {
  if (state.chosen) return state.chosen;
  if (state.tab !== "own") throw new Error("choose a puzzle from the list");
  if (model().board.hint) return { text: editor.text() };
  throw new Error("choose a puzzle from a data set");
}

/** Cancel the request that is running; its later events are dropped. */
function begin() {
  state.asking?.abort();
  inside.forget();
  $("board").removeAttribute("aria-busy");
  return state.asking = new AbortController();
}

/** Draw the puzzle that is chosen or typed. */
async function preview() {
  const asking = begin();
  player.reset();
  draw($("pairs"), "");
  $("demonstrations").hidden = true;
  $("puzzle").textContent = "";
  const puzzle = wanted(), answer = await ask("board", { model: +$("model").value, puzzle });
  if (state.asking !== asking) return;
  player.reset([{ title: "the puzzle", verdict: "", words: [], svg: answer.svg }]);
  $("puzzle").textContent = answer.label;
  draw($("pairs"), answer.pairs.join(""), 0.5);
  $("demonstrations").hidden = !answer.pairs.length;
  if (answer.note) say(answer.note);
  keepAddress();
}

/** Draw the puzzle while it is typed; mistakes in it are shown only by Solve. */
function typed() {
  say("");
  state.chosen = null;
  begin();
  player.reset();
  soon(() => preview().catch(() => {}));
}

const another = trying(async () => {
  const asking = begin(), seed = Math.floor(Math.random() * 2 ** 31);
  const found = await ask("example", { model: +$("model").value, seed });
  if (state.asking !== asking) return;
  state.chosen = !model().board.hint ? { data: found.data, row: found.row } : null;
  if (!state.chosen) editor.fill(found.text);
  await preview();
});

// The address: the part after # opens this model and puzzle again

function keepAddress() {
  const link = new URLSearchParams({ model: model().name });
  if (state.chosen) {
    link.set("data", state.found.data[state.chosen.data].name);
    link.set("row", state.chosen.row);
  } else if (model().board.hint) link.set("puzzle", editor.text());
  history.replaceState(null, "", `#${link}`);
}

/** Open the model and the puzzle of the address; return whether it names a model. */
async function openAddress() {
  const link = new URLSearchParams(location.hash.slice(1)), { models, data } = state.found;
  if (!link.has("model")) return false;
  const number = models.findIndex((one) => one.name === link.get("model") && !one.error);
  if (number < 0) throw new Error(`this viewer does not have the model of this link: ${link.get("model")}`);
  $("model").value = number;
  state.tab = "own";
  useModel();
  if (link.has("data")) {
    const set = data.findIndex((one) => one.name === link.get("data"));
    if (set < 0) throw new Error(`this viewer does not have the data set of this link: ${link.get("data")}`);
    state.chosen = { data: set, row: +link.get("row") || 0 };
    const text = (await ask("board", { model: number, puzzle: state.chosen })).text;
    if (text) editor.fill(text);
  } else if (link.has("puzzle")) editor.fill(link.get("puzzle"));
  await (link.has("data") || link.has("puzzle") ? preview() : another());
  return true;
}

// Lists: data sets and records of evaluations

function showTab(tab) {
  state.tab = tab;
  state.listing += 1;
  clearTimeout(state.soon);
  document.querySelectorAll("#tabs button").forEach((button) => {
    button.setAttribute("aria-selected", String(button.dataset.tab === tab));
    button.tabIndex = button.dataset.tab === tab ? 0 : -1;
  });
  $("own").hidden = tab !== "own";
  $("task").hidden = $("learning").hidden = tab !== "task";
  $("browse").hidden = tab === "own" || tab === "task";
  $("thinking").hidden = tab === "task";
  if (tab === "task") return task.open(state.found);
  if (tab === "own") return;
  $("which-label").textContent = tab === "data" ? "Data set" : "Evaluation";
  $("rows").replaceChildren();
  $("filters").replaceChildren();
  $("pages").textContent = "";
  $("before").disabled = $("after").disabled = true;
  const all = state.found[tab], numbers = model()[tab];
  $("which").replaceChildren(...numbers.map((number) => {
    const { name, error } = all[number];
    return option(error ? `${name}: ${error}` : name, number, Boolean(error));
  }));
  const usable = numbers.find((number) => !all[number].error);
  if (usable === undefined) return say(NO_LIST[tab]);
  $("which").value = usable;
  drawFilters();
  listFirst(true);
}

function drawFilters() {
  const again = () => soon(() => listFirst(false));
  const filter = (text, input) => $("filters").append(make("label", {}, `${text} `, make("input", { ...input, oninput: again })));
  if (state.tab === "records") filter("only wrong answers", { type: "checkbox", id: "wrong-only", checked: true });
  else if (!model().board.hint) filter("name contains", { id: "text" });
}

const listRows = trying(async (isNew) => {
  const listing = ++state.listing;
  const asked = { model: +$("model").value, of: state.tab, number: +$("which").value, page: state.page };
  const filters = { text: $("text")?.value || "", wrong_only: $("wrong-only")?.checked ?? true };
  const answer = await ask("rows", { ...asked, ...filters });
  if (listing !== state.listing) return;  // A newer request has been sent.
  const pages = state.pages = Math.max(1, Math.ceil(answer.total / answer.per_page));
  $("pages").textContent = `${answer.total.toLocaleString("en")} puzzles, page ${state.page + 1} of ${pages}`;
  $("before").disabled = state.page === 0;
  $("after").disabled = state.page + 1 >= pages;
  $("rows").replaceChildren(...answer.rows.map((row) => drawRow(row, answer.data)));
  $("rows").scrollTop = 0;
  if (isNew && !state.chosen) $("rows").querySelector("button")?.click();
});

function listFirst(isNew) {
  Object.assign(state, { page: 0, pages: 1 });
  return listRows(isNew);
}

/** Turn the page of the list; quick clicks stay within it. */
const turn = (by) => () => {
  state.page = Math.max(0, Math.min(state.pages - 1, state.page + by));
  listRows(false);
};

function drawRow({ row, words, svg }, data) {
  const picture = make("span", { className: "small", ariaHidden: "true" }), button = make("button", {}, picture, make("span", { textContent: words }));
  picture.innerHTML = svg;
  if (state.chosen?.data === data && state.chosen.row === row) button.setAttribute("aria-current", "true");
  button.onclick = trying(async () => {
    document.querySelectorAll(".rows [aria-current]").forEach((one) => one.removeAttribute("aria-current"));
    button.setAttribute("aria-current", "true");
    state.chosen = { data, row };
    await preview();
  });
  return make("li", {}, button);
}

// Solving: the server sends a line of JSON for each step

const solve = trying(async () => {
  const body = { model: +$("model").value, puzzle: wanted(), chains: +$("chains").value || 1 };
  if (model().searches) body.rounds = +$("rounds").value || 200;
  else if ($("steps").value) body.steps = +$("steps").value;
  clearTimeout(state.soon);
  const asking = begin();
  player.begin();
  $("board").setAttribute("aria-busy", "true");
  $("verdict").textContent = "thinking ...";
  $("verdict").scrollIntoView({ block: "nearest" });
  try {
    await listen("think", body, asking.signal, (event) => { if (state.asking === asking) happened(event, body); });
  } catch (error) {
    if (state.asking !== asking) return;
    player.reset();
    throw error;
  } finally {
    if (state.asking === asking) $("board").removeAttribute("aria-busy");
  }
});

function happened(event, body) {
  const { model: number, chains } = body;
  if (event.error) throw new Error(event.error);
  if (event.note) say(event.note);
  if (event.frame) player.add(event.frame);
  if (!event.done) return;
  player.finish(event, chains === 1);
  inside.solved(body);
  state.thought = event.thought;
  // A run that is still going on may have a newer checkpoint by now.
  state.found.models[number].train_step = event.train_step;
  $("model").options[number].textContent = label(state.found.models[number]);
}

const download = trying(async () => {
  const content = await (await post("save", { thought: state.thought })).blob();
  const link = make("a", { href: URL.createObjectURL(content), download: "thinking.gif" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
});

const copyLink = trying(async () => {
  keepAddress();
  await navigator.clipboard.writeText(location.href);
  $("link").textContent = "Copied";
  setTimeout(() => { $("link").textContent = "Copy link"; }, 1500);
});

// The model

/** Show the board, the data sets and the evaluations of the chosen model. */
function useModel() {
  const { board, size, any_size: anySize, searches, steps } = model();
  state.chosen = null;
  begin();
  player.reset();
  document.body.dataset.cells = board.cells;
  inside.useModel(model());
  $("steps-label").hidden = Boolean(searches);
  $("rounds-label").hidden = !searches;
  $("steps").placeholder = steps || "as trained";
  editor.open(board, size, anySize);
  showTab(state.tab);
}

const chooseModel = trying(async () => {
  useModel();
  if (state.tab === "own") await another();
});

const start = trying(async () => {
  state.found = await ask("found", {});
  $("model").replaceChildren(...state.found.models.map((one, at) => option(label(one), at, Boolean(one.error))));
  const usable = state.found.models.findIndex((one) => !one.error);
  if (usable < 0) throw new Error(NO_MODEL);
  $("model").value = usable;
  useModel();
  if (!await openAddress()) await another();
});

// Keys and buttons

function onKey(event) {
  const { tagName, type } = event.target, onButton = /^(BUTTON|SUMMARY)$/.test(tagName);
  const typing = /^(INPUT|SELECT)$/.test(tagName) && type !== "range" && type !== "checkbox";
  if (state.tab === "task") return;
  if (event.key === "Enter" && !onButton) { event.preventDefault(); solve(); }
  else if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
  else if (event.key === " " && !onButton && type !== "checkbox") { event.preventDefault(); player.play(); }
  else if (event.key === ",") player.step(-1);
  else if (event.key === ".") player.step(1);
}

const leaveTab = trying((tab) => {
  if (tab === state.tab) return;
  state.chosen = null;
  showTab(tab);
  task.stop();
  if (tab !== "own") return begin(), player.reset();
  return editor.isEmpty() ? another() : preview().catch(() => {});
});

editor.onChange(typed);
player.watch(inside.showStep);
$("model").onchange = chooseModel;
$("another").onclick = another;
$("clear").onclick = trying(() => { editor.clear(); typed(); });
$("solve").onclick = solve;
$("play").onclick = player.play;
$("back").onclick = () => player.step(-1);
$("on").onclick = () => player.step(1);
$("skip").onclick = player.skip;
$("step").oninput = () => player.goTo(+$("step").value);
$("gif").onclick = download;
$("link").onclick = copyLink;
$("which").onchange = trying(() => listFirst(true));
$("before").onclick = turn(-1);
$("after").onclick = turn(1);
document.onkeydown = onKey;
document.onpaste = trying((event) => {
  if (state.tab !== "own" || !model().board.hint || event.target.tagName === "INPUT") return;
  event.preventDefault();
  editor.fill(event.clipboardData.getData("text"));
  typed();
});
window.onhashchange = trying(openAddress);
document.querySelectorAll("#tabs button").forEach((button, at, all) => {
  button.onclick = () => leaveTab(button.dataset.tab);
  button.onkeydown = (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (step) { const next = all[(at + step + all.length) % all.length]; next.focus(); next.click(); }
  };
});
start();
