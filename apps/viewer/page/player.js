/** The player: it shows the steps of a solution one after the other. */
import { $, draw, make } from "./common.js";

const MOST_PAUSES = 40;  // With more steps than this, play faster.
const state = { frames: [], at: 0, timer: 0, thinking: false, settled: null, skips: false, summary: "" };

let onShow = () => {};
/** Call a function with each step that is shown; 0 is the puzzle. */
export function watch(shown) { onShow = shown; }

const last = () => state.frames.length - 1;

/** Return the step at which playing stops: where the answer settles, or after that the last step. */
function goal() {
  return state.settled !== null && state.at < state.settled ? state.settled : last();
}

function pause() {
  const chosen = +$("speed").value;
  return Math.max(40, Math.min(chosen, MOST_PAUSES * chosen / (state.settled || last() || 1)));
}

/** Show a puzzle without an answer, or nothing. */
export function reset(frames = []) {
  stop();
  Object.assign(state, { frames, thinking: false, settled: null, skips: false, summary: "" });
  show(0);
}

export function begin() {
  reset(state.frames.slice(0, 1));  // The board stays until the first step is there.
  Object.assign(state, { frames: [], thinking: true });
  play();
}

export function add(frame) {
  state.frames.push(frame);
  if (state.frames.length === 1) return show(0);
  if (state.skips) show(last()); else update();
}

/** Show the frames of the chain that answers; `same`: they are the frames added before. */
export function finish({ done, settled, summary }, same) {
  const place = same || !state.timer ? Math.round(state.at * (done.length - 1) / Math.max(1, last())) : 0;
  Object.assign(state, { frames: done, thinking: false, settled, summary });
  show(state.skips ? settled : place);
  if (state.skips) stop();
}

export function stop() {
  clearTimeout(state.timer);
  state.timer = 0;
  $("play").textContent = "Play";
}

export function play() {
  if (state.timer) return stop();
  if (!state.thinking) {
    if (last() < 1) return;
    if (state.at >= last()) show(0);
  }
  $("play").textContent = "Stop";
  state.timer = setTimeout(advance, pause());
}

function advance() {
  const end = goal();
  if (state.at < end) show(state.at + 1);
  if (!state.thinking && state.at >= end) return stop();
  state.timer = setTimeout(advance, pause());
}

export function goTo(at) { stop(); state.skips = false; show(at); }

export function step(by) { goTo(state.at + by); }

export function skip() {
  stop();
  state.skips = true;
  show(state.settled ?? last());
}

function show(at) {
  state.at = Math.max(0, Math.min(last(), at));
  draw($("board"), state.frames[state.at]?.svg ?? "");
  onShow(state.at);
  update();
}

function update() {
  const frame = state.frames[state.at];
  $("verdict").textContent = frame?.verdict || frame?.title || "";
  $("words").textContent = frame?.verdict ? [frame.title, ...frame.words, ...later()].join(", ") : "";
  $("summary").textContent = state.summary;
  $("step").max = Math.max(0, last()); $("step").value = state.at;
  $("place").textContent = last() > 0 ? `${state.at} / ${last()}` : "";
  $("play").disabled = $("skip").disabled = $("step").disabled = last() < 1 && !state.thinking;
  $("back").disabled = state.at < 1;
  $("on").disabled = state.at >= last();
  $("save").hidden = last() < 1 || state.thinking;
  drawBars();
}

/** Return a note on the step from which the answer stays the same. */
function later() {
  const rest = last() - state.settled;
  if (state.settled === null || state.at !== state.settled || rest < 1) return [];
  return [`settled: the ${rest === 1 ? "step" : `${rest} steps`} after it keep${rest === 1 ? "s" : ""} this answer`];
}

/** Draw a bar for each step: how sure the model is. */
function drawBars() {
  const sure = state.frames.slice(1).map((frame) => frame.q);
  $("sure").hidden = !sure.some((q) => q !== undefined);
  $("bars").replaceChildren(...sure.map((q, number) => {
    const bar = make("li", { className: number + 1 === state.at ? "here" : "" });
    bar.style.setProperty("--q", q ?? 0);
    return bar;
  }));
}
