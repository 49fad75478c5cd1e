/** What the other scripts share: elements, messages, and questions to the server. */

export const $ = (id) => document.getElementById(id);

export function say(text) { $("message").textContent = text || ""; }

export async function post(name, body, signal) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body), signal };
  const response = await fetch("/api/" + name, options);
  if (!response.ok) throw new Error((await response.json()).error);
  return response;
}

export async function ask(name, body) { return (await post(name, body)).json(); }

/** Run what may fail; a mistake becomes a sentence on the page. */
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

/** Show drawings of the server, which escapes all text in them, each as large as it is drawn, times `scale`, or smaller. */
export function draw(place, svg, scale = 1) {
  place.innerHTML = svg;
  place.querySelectorAll("svg").forEach((one) => { one.style.width = `${scale * one.viewBox.baseVal.width}px`; });
}
