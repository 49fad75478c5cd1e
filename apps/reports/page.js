"use strict";

// The page's only script: it unpacks plotly, draws the figures, and sorts tables. It never makes
// markup or code from the text of a run.

const PALETTES = {
  light: {
    text: "#17212b", muted: "#5b6875", grid: "#e3e8ee", card: "#ffffff", bad: "#c2272d",
    curves: ["#1d64d8", "#d9730d", "#13795b", "#8a3ffc", "#c2272d", "#0e8a9b", "#b83280", "#6b7a0f", "#7a5230", "#5b6875"],
    wrong: [[0, "#eef2f7"], [0.5, "#f0a36b"], [1, "#b3261e"]],
  },
  dark: {
    text: "#e6ebf0", muted: "#97a5b3", grid: "#2c3742", card: "#182028", bad: "#ff7b72",
    curves: ["#6ea8ff", "#f2a65a", "#4cc38a", "#b795ff", "#ff7b72", "#4dd0e1", "#f58bc4", "#c3d14b", "#d0a37a", "#97a5b3"],
    wrong: [[0, "#202a34"], [0.5, "#c9743c"], [1, "#ff8a80"]],
  },
};
const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
const PRINTED = { width: 312, height: 250 };
const isCoarse = matchMedia("(pointer: coarse)").matches;
const prefersDark = matchMedia("(prefers-color-scheme: dark)");
const figures = JSON.parse(document.getElementById("figures").textContent);
const places = figures.map((_, number) => document.getElementById(`plot-${number}`));

// Replaces names of colours by colours of the palette.
function coloured(value, palette, isColour = false) {
  if (Array.isArray(value)) return value.map((one) => coloured(one, palette, isColour));
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(
      Object.entries(value).map(([key, one]) => [key, coloured(one, palette, /color/.test(key))]),
    );
  }
  if (!isColour || typeof value !== "string" || value[0] !== "@") return value;
  const name = value.slice(1);
  return /^[0-9]$/.test(name) ? palette.curves[Number(name)] : (palette[name] ?? palette.text);
}

function laidOut(figure, palette, isPrinted) {
  const own = coloured(figure.layout, palette);
  const axis = {
    gridcolor: palette.grid, linecolor: palette.grid, zerolinecolor: palette.grid, automargin: true,
    tickfont: { color: palette.muted },
  };
  const layout = {
    font: { family: FONT, size: isPrinted ? 10 : 12, color: palette.text },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    height: isPrinted ? PRINTED.height : 320,
    margin: { l: 50, r: 12, t: 10, b: 40 },
    showlegend: figure.data.filter((trace) => trace.showlegend !== false).length > 1,
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: isPrinted ? 9 : 11.5 } },
    modebar: { bgcolor: palette.card, color: palette.muted, activecolor: palette.text },
    hovermode: "x unified",
    hoverlabel: { bgcolor: palette.card, bordercolor: palette.grid, font: { color: palette.text }, namelength: -1 },
    // On a touch screen, moving a finger over a figure scrolls the page.
    dragmode: isCoarse ? false : "zoom",
    ...own,
    xaxis: { ...axis, ...own.xaxis },
    yaxis: { ...axis, ...own.yaxis },
  };
  if (!isPrinted) return { ...layout, autosize: true };
  return { ...layout, width: PRINTED.width, autosize: false };
}

async function draw(name, isPrinted = false) {
  for (const swatch of document.querySelectorAll("[data-colour]")) {
    swatch.style.background = coloured(swatch.dataset.colour, PALETTES[name], true);
  }
  const config = {
    responsive: true, displaylogo: false, displayModeBar: !isCoarse,
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "zoomIn2d", "zoomOut2d", "resetScale2d"]],
  };
  // All at once, because printing does not wait.
  await Promise.all(figures.map((figure, number) => {
    const place = places[number];
    place.querySelector(".unplotted")?.remove();
    const data = coloured(figure.data, PALETTES[name]);
    return Plotly.react(place, data, laidOut(figure, PALETTES[name], isPrinted), config);
  }));
  document.documentElement.dataset.drawn = name;
}

async function unpacked(id) {
  const packed = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function start() {
  if (!figures.length) return;
  const script = document.createElement("script");
  script.textContent = await unpacked("library");
  document.head.append(script);
  const chosen = () => (prefersDark.matches ? "dark" : "light");
  await draw(chosen());
  prefersDark.addEventListener("change", () => draw(chosen()));
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details:not([open])")];
    opened.forEach((one) => { one.open = true; });
    draw("light", true);
  });
  addEventListener("afterprint", () => {
    opened.forEach((one) => { one.open = false; });
    draw(chosen());
  });
}

// Tables: a click, Enter or the space bar on a heading sorts by it; a second one reverses the order.
function sortBy(table, heading) {
  const column = [...heading.parentElement.children].indexOf(heading);
  const descending = heading.getAttribute("aria-sort") === "ascending"
    || (!heading.hasAttribute("aria-sort") && heading.classList.contains("n"));
  for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", descending ? "descending" : "ascending");
  const body = table.tBodies[0];
  const keys = new Map([...body.rows].map((row) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    return [row, text === "" || text === "–" ? null : isNaN(text) ? text : Number(text)];
  }));
  const order = (a, b) => {
    const [x, y] = [keys.get(a), keys.get(b)];
    if (x === null || y === null) return (x === null) - (y === null); // Missing values come last.
    const least = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return descending ? -least : least;
  };
  body.append(...[...body.rows].sort(order));
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const heading of table.tHead.rows[0].cells) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => sortBy(table, heading));
  }
}

start().catch((error) => { document.documentElement.dataset.failed = String(error); });
