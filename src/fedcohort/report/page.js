"use strict";
// The page's controls. Only the selected run and panel are drawn.

const byId = (id) => document.getElementById(id);
const view = {
  run: 0, panel: 0, cluster: 0, smoothed: true, log: false, hidden: new Set(), choices: {}, theme: {},
  clientDesign: null, clientSeed: 0,
};
const DARK = matchMedia("(prefers-color-scheme: dark)");
const COARSE = matchMedia("(pointer: coarse)").matches;
const PRINT_WIDTH = 640;
const HINT = `${COARSE ? "Tap" : "Point at"} the plot for its values.`;
const MOST_BANDS = 8;
const MOST_AT_FIRST = 8;
const FIGURES = [...document.querySelectorAll("figure[data-plot]")];
const near = new Set(); // figures in sight, or nearly so
let revision = 0;

const currentPanel = () => DATA.runs[view.run].panels[view.panel];
const isDark = () => (document.documentElement.dataset.theme || (DARK.matches ? "dark" : "light")) === "dark";

// Read the colours that the browser uses for the current theme.
function readTheme() {
  const probe = document.body.appendChild(document.createElement("span"));
  for (const name of ["page", "text", "quiet", "line", "grid"]) {
    probe.style.color = `var(--${name})`;
    view.theme[name] = getComputedStyle(probe).color;
  }
  probe.remove();
}

function themed(layout) {
  const { text, quiet, line, grid } = view.theme;
  const axis = { gridcolor: grid, linecolor: line, zerolinecolor: line, color: quiet, fixedrange: false };
  const full = {
    autosize: true, showlegend: false, margin: { l: 56, r: 20, t: 10, b: 44 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
    // A new number each time: without it Plotly skips plots that did not change, and loses the
    // ranges of their axes.
    datarevision: ++revision, hovermode: "closest",
    // On a touch screen, dragging scrolls the page and must not zoom a plot.
    dragmode: COARSE ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: text },
    ...layout,
  };
  for (const name of Object.keys(layout)) {
    if (!/^[xy]axis/.test(name)) continue;
    // Only the margin that an axis needs for its own labels: else ticks and margins chase each other.
    full[name] = { ...axis, automargin: name[0] === "x" ? "height" : "width", ...layout[name] };
  }
  return full;
}

const CONFIG = {
  responsive: true, displaylogo: false, typesetMath: false, displayModeBar: COARSE ? false : "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

// Prepare all plots, and draw those that are in sight or nearly so; the others when they get near.
function draw() {
  const panel = currentPanel();
  filterTable(panel);
  document.body.classList.toggle("many", shown(panel, view).length > MOST_BANDS);
  for (const figure of FIGURES) {
    figure.plot = PLOTS[figure.dataset.plot](panel, view);
    figure.stale = true;
    figure.hidden = !figure.plot;
    if (figure.plot && figure.plot.height) figure.querySelector("div").style.height = `${figure.plot.height}px`;
    readout(figure, HINT);
  }
  for (const section of document.querySelectorAll("main > section")) {
    const figures = [...section.querySelectorAll("figure[data-plot]")];
    const isEmpty = figures.length && figures.every((figure) => figure.hidden);
    section.hidden = Boolean(isEmpty) && !(section.id === "clients" && panel.clients);
  }
  writeContents();
  drawStale(near);
}

// Show the rows of the designs whose boxes are checked.
function filterTable({ designs }) {
  const block = `[data-block=answer][data-run="${view.run}"][data-panel="${view.panel}"]`;
  for (const row of document.querySelectorAll(`${block} .designs tbody tr`)) {
    row.hidden = view.hidden.has(row.cells[0].dataset.value);
  }
  const off = designs.filter(({ label }) => view.hidden.has(label)).length;
  byId("shown").textContent = off ? `${designs.length - off} of ${designs.length} designs shown` : "";
}

function drawStale(figures = FIGURES) {
  for (const figure of figures) {
    if (!figure.stale) continue;
    figure.stale = false;
    const div = figure.querySelector("div");
    if (figure.plot) {
      drawPlot(figure, div, figure.plot);
    } else {
      Plotly.purge(div);
      div.listens = false;
    }
  }
}

function drawPlot(figure, div, plot) {
  div.setAttribute("role", "img");
  div.setAttribute("aria-label", figure.querySelector("h3").textContent);
  for (const trace of plot.traces) trace.hoverinfo ??= "none"; // the readout says it
  Plotly.react(div, plot.traces, themed(plot.layout), CONFIG);
  div.say = plot.say;
  if (div.listens) return;
  div.listens = true; // Plotly keeps listeners until a plot is purged
  div.on("plotly_hover", ({ points }) => {
    const { label } = points[0].data.meta || {};
    readout(figure, div.say(points[0]), label);
    bringForward(label);
  });
  div.on("plotly_unhover", () => {
    readout(figure, HINT);
    bringForward();
  });
}

// Write what the pointer is at above its plot.
function readout(figure, text, label) {
  let line = figure.querySelector(".readout");
  if (!line) {
    line = Object.assign(document.createElement("p"), { className: "readout" });
    figure.querySelector("h3").after(line);
  }
  line.replaceChildren(...(label === undefined ? [] : [lineSample(label)]), text);
}

// Fade the lines of all designs but one; without a label, of none.
function bringForward(label) {
  const others = `.scatterlayer .trace[class*="trace-d"]:not([class*="trace-d${NUMBERS[label]}-"])`;
  const own = `.many .scatterlayer .trace[class*="trace-d${NUMBERS[label]}-"] .fills`;
  byId("forward").textContent = label === undefined ? "" : `${others} { opacity: 0.12 !important; } ${own} { opacity: 1; }`;
}

// Link to every section that is shown.
function writeContents() {
  const titles = [...document.querySelectorAll("main > section:not([hidden]) > h2")];
  byId("contents").replaceChildren(...titles.map((title) =>
    Object.assign(document.createElement("a"), { href: `#${title.id}`, textContent: title.textContent })));
}

function writeNotes() {
  const panel = currentPanel();
  const seeds = panel.seeds.length;
  const half = `${panel.half_life} round${panel.half_life === 1 ? "" : "s"}`;
  byId("smoothed-text").textContent = `smoothed: exponential mean, half-life ${half}`;
  byId("band-note").textContent = seeds > 1
    ? `Lines: mean over ${seeds} seeds. Bands: from the lowest to the highest seed` +
      (panel.designs.length > MOST_BANDS ? `, while at most ${MOST_BANDS} designs are shown or for the one pointed at.` : ".")
    : "One seed: there are no bands.";
  const sizes = (panel.laws && panel.laws.sizes) || [];
  byId("laws-note").textContent = sizes.length === 1 ? `Every client has ${sizes[0]} samples.` : "";
  const { n_clients: n, clients, seed } = panel.federation;
  const some = clients.length < n ? `; ${clients.length} of ${n} clients are drawn` : "";
  byId("federation-note").textContent = `${n} clients with samples, as divided with seed ${seed}${some}.`;
  writeClusterNotes(panel);
  for (const list of document.querySelectorAll(".classes")) {
    list.replaceChildren(...panel.federation.class_samples.map((_, label) => {
      const item = document.createElement("li");
      item.append(square(DATA.classColours[label]), `class ${label}`);
      return item;
    }));
  }
}

function writeClusterNotes(panel) {
  const found = panel.clusters && panel.clusters[view.cluster];
  if (!found) return;
  if (found.map) {
    const { rounds, agreeing, n_clients: n } = found.map;
    byId("clusters-note").textContent =
      `Seed ${found.seed}. Right: each client's own main class. Clients whose distribution's majority has their ` +
      `main class: ${agreeing[0]} of ${n} in round ${rounds[0]}, ${agreeing.at(-1)} in round ${rounds.at(-1)}.`;
  }
  byId("tree-note").textContent =
    `Seed ${found.seed}. Squares: clients in the colour of their main class; grey links join several classes.`;
}

function square(colour) {
  const mark = document.createElement("span");
  mark.className = "square";
  mark.style.background = colour;
  return mark;
}

// A short piece of a design's line: its colour and its dash.
function lineSample(label) {
  const make = (name, values) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(values)) element.setAttribute(key, value);
    return element;
  };
  const sample = make("svg", { class: "swatch", viewBox: "0 0 26 10", "aria-hidden": "true" });
  const dash = DATA.dashLengths[DATA.dashes[label]].map((length) => 3 * length).join(" ");
  sample.append(make("line", {
    x1: 1, y1: 5, x2: 25, y2: 5, stroke: DATA.colours[label], "stroke-width": 3, "stroke-dasharray": dash,
  }));
  return sample;
}

function fill(select, names, chosen) {
  select.replaceChildren(...names.map((name, at) => new Option(name, at, false, at === chosen)));
  select.closest("label").hidden = names.length < 2;
}

function writeControls() {
  const panel = currentPanel();
  fill(byId("run"), DATA.runs.map((run) => run.name), view.run);
  fill(byId("panel"), DATA.runs[view.run].panels.map((each) => each.label), view.panel);
  fill(byId("cluster"), (panel.clusters || []).map((each) => each.label), view.cluster);
  byId("boxes").replaceChildren(...panel.designs.map(({ label }) => checkBox(label)));
  byId("designs").hidden = panel.designs.length < 1;
  document.querySelector("[data-choose=best]").hidden = panel.designs.length <= MOST_AT_FIRST;
  const claims = Object.values(panel.unbiased || {});
  document.querySelector("[data-choose=unbiased]").hidden = claims.every(Boolean) || !claims.some(Boolean);
  byId("table-csv").hidden = !(panel.table || []).length;
}

function checkBox(label) {
  const line = document.createElement("label");
  const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: !view.hidden.has(label) });
  box.addEventListener("change", () => {
    box.checked ? view.hidden.delete(label) : view.hidden.add(label);
    draw();
  });
  for (const event of ["mouseenter", "focusin"]) line.addEventListener(event, () => bringForward(label));
  for (const event of ["mouseleave", "focusout"]) line.addEventListener(event, () => bringForward());
  line.append(box, lineSample(label), label);
  return line;
}

// The labels of a panel's designs beyond the best at first: those with the highest final losses.
function beyondBest({ table = [] }) {
  const byLoss = [...table].sort((one, other) => compareValues(one.final_loss, other.final_loss, true));
  return new Set(byLoss.slice(MOST_AT_FIRST).map((row) => row.design));
}

// Panels with the same designs share one choice. The first is the best designs.
function recallChoice() {
  const panel = currentPanel();
  view.hidden = view.choices[panel.designs.map((design) => design.label).join("\n")] ??= beyondBest(panel);
}

// Show all designs of the panel, the best, none, or only those that are unbiased.
function chooseDesigns(which) {
  const panel = currentPanel();
  const beyond = beyondBest(panel);
  for (const { label } of panel.designs) {
    const isShown = which === "all" || (which === "unbiased" && panel.unbiased[label] === true) ||
      (which === "best" && !beyond.has(label));
    isShown ? view.hidden.delete(label) : view.hidden.add(label);
  }
  writeControls();
  draw();
}

function writeClients() {
  const panel = currentPanel();
  if (!panel.clients) return;
  const { seeds, rounds, n_clients: n, most, left_out: left } = panel.clients;
  const labels = panel.designs.map((design) => design.label);
  if (!labels.includes(view.clientDesign)) [view.clientDesign] = labels;
  view.clientSeed = Math.min(view.clientSeed, seeds.length - 1);
  fill(byId("client-design"), labels, labels.indexOf(view.clientDesign));
  fill(byId("client-seed"), seeds.map((each) => String(each.seed)), view.clientSeed);
  byId("clients-missing").textContent = panel.clients_note;
  const some = most < n ? ` Only the ${most} worst served of ${n} clients are in this page.` : "";
  const first = left ? ` The page holds the first ${seeds.length} of ${seeds.length + left} seeds.` : "";
  byId("clients-note").textContent =
    `Rounds drawn: in how many of ${rounds} rounds the client answered. Mean weight: over all rounds; an unbiased ` +
    `design gives every client its share of the samples on average. Loss and accuracy: of the last model on the ` +
    `client's own samples.${some}${first}`;
  const rows = clientRows(panel, view.clientSeed, view.clientDesign);
  ClientTable.show(rows, CLIENT_COLUMNS, clientDecimals(rows), defaultOrder(rows));
}

function showSelected() {
  for (const block of document.querySelectorAll("[data-block]")) {
    const { run, panel, block: kind } = block.dataset;
    block.hidden = Number(run) !== view.run || (kind === "answer" && Number(panel) !== view.panel);
  }
  recallChoice();
  view.cluster = Math.min(view.cluster, Math.max(0, (currentPanel().clusters || []).length - 1));
  writeControls();
  writeNotes();
  writeClients();
  draw();
}

function setTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
  readTheme();
  draw();
}

function printed(begin) {
  const root = document.documentElement;
  if (begin) root.dataset.before = root.dataset.theme || "";
  if (begin) root.dataset.theme = "light";
  else if (root.dataset.before) root.dataset.theme = root.dataset.before;
  else delete root.dataset.theme;
  setTheme();
  drawStale();
  for (const div of document.querySelectorAll("figure:not([hidden]) .js-plotly-plot")) {
    Plotly.relayout(div, begin ? { width: PRINT_WIDTH, autosize: false } : { width: null, autosize: true });
  }
}

function choose(id, act) {
  byId(id).addEventListener("change", (event) => act(event.target));
}

choose("run", (select) => { view.run = Number(select.value); view.panel = 0; showSelected(); });
choose("panel", (select) => { view.panel = Number(select.value); showSelected(); });
choose("cluster", (select) => { view.cluster = Number(select.value); writeNotes(); draw(); });
choose("client-design", (select) => { view.clientDesign = select.selectedOptions[0].text; writeClients(); });
choose("client-seed", (select) => { view.clientSeed = Number(select.value); writeClients(); });
choose("smoothed", () => { view.smoothed = true; draw(); });
choose("raw", () => { view.smoothed = false; draw(); });
choose("log", (box) => { view.log = box.checked; draw(); });
byId("client-search").addEventListener("input", (event) => {
  ClientTable.search = event.target.value;
  ClientTable.write();
});
byId("clients-back").addEventListener("click", () => ClientTable.turn(-1));
byId("clients-next").addEventListener("click", () => ClientTable.turn(1));
byId("table-csv").addEventListener("click", () => download(`designs ${currentPanel().label}`, currentPanel().table));
byId("clients-csv").addEventListener("click", () => {
  const panel = currentPanel();
  download(`clients ${panel.label}`, panel.clients.seeds.flatMap(({ seed }, at) => panel.designs.flatMap(
    ({ label }) => clientRows(panel, at, label).map((row) => ({ panel: panel.label, design: label, seed, ...row })))));
});
for (const button of document.querySelectorAll("[data-choose]")) {
  button.addEventListener("click", () => chooseDesigns(button.dataset.choose));
}
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  setTheme();
});
DARK.addEventListener("change", setTheme);
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));
document.head.append(Object.assign(document.createElement("style"), { id: "forward" }));
new ResizeObserver(() => {
  document.documentElement.style.setProperty("--bar", `${byId("bar").offsetHeight}px`);
}).observe(byId("bar"));
const sight = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) isIntersecting ? near.add(target) : near.delete(target);
  drawStale(near);
}, { rootMargin: "500px" });
for (const figure of FIGURES) sight.observe(figure);
for (const table of document.querySelectorAll("table.sortable")) {
  makeSortable(table, (at, up) => sortRows(table, at, up));
  markSorted(table, 1, true); // written in the order of the final loss
}

readTheme();
showSelected();
byId("theme").textContent = isDark() ? "Light" : "Dark";
byId("theme").setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
