/** Shared by the other scripts: elements, messages, and requests to the server. */

export const $ = (id) => document.getElementById(id);

export function say(text) { $("message").textContent = text || ""; }

export async function post(name, body, signal) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const response = await fetch("/api/" + name, options);
  if (!response.ok) throw new Error((await response.json()).error);
  return response;
}

export async function ask(name, body) { return (await post(name, body)).json(); }

/** Send a request, and call `happened` with each event of the answer: a line of JSON for each. The last one has `done`, `guesses` or `error`. */
export async function listen(name, body, signal, happened) {
  const reader = (await post(name, body, signal)).body.pipeThrough(new TextDecoderStream()).getReader();
  let last = {};
  for (let rest = "", part; !(part = await reader.read()).done;) {
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    lines.forEach((line) => happened(last = JSON.parse(line)));
  }
  if (!last.done && !last.guesses && !last.error) throw new Error("the viewer ended before it answered");
}

/** Wrap an action: its errors are shown on the page. */
export function trying(action) {
  return async (...given) => {
    try { say(""); return await action(...given); } catch (error) { if (error.name !== "AbortError") say(error.message); }
  };
}

/** Make an element with properties and children. */
export function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

/** Show drawings from the server (their text is escaped), at most `scale` times their own size. */
export function draw(place, svg, scale = 1) {
  place.innerHTML = svg;
  place.querySelectorAll("svg").forEach((one) => { one.style.width = `${scale * one.viewBox.baseVal.width}px`; });
}
