"use strict";
// The page's controls. Only the selected run and panel are drawn.

const byId = (id) => document.getElementById(id);
const view = { run: 0, panel: 0, cluster: 0, rolling: true, log: false, hidden: new Set(), theme: {} };
const DARK = matchMedia("(prefers-color-scheme: dark)");
const COARSE = matchMedia("(pointer: coarse)").matches;
const PRINT_WIDTH = 640;

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
  const { page, text, quiet, line, grid } = view.theme;
  const axis = { gridcolor: grid, linecolor: line, zerolinecolor: line, color: quiet, automargin: true, fixedrange: false };
  const full = {
    autosize: true, showlegend: false, margin: { l: 56, r: 12, t: 10, b: 44 },
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: getComputedStyle(document.body).fontFamily, size: 12, color: text },
    hoverlabel: { bgcolor: page, bordercolor: line, font: { color: text }, namelength: -1 },
    // On a touch screen, dragging scrolls the page and must not zoom a plot.
    dragmode: COARSE ? false : "zoom",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: text },
    ...layout,
  };
  for (const name of Object.keys(layout)) {
    if (/^[xy]axis/.test(name)) full[name] = { ...axis, ...layout[name] };
  }
  return full;
}

const CONFIG = {
  responsive: true, displaylogo: false, typesetMath: false, displayModeBar: COARSE ? false : "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

function draw() {
  const panel = currentPanel();
  for (const figure of document.querySelectorAll("figure[data-plot]")) {
    const plot = PLOTS[figure.dataset.plot](panel, view);
    figure.hidden = !plot;
    figure.closest("section").hidden = false; // Plotly measures the plot while drawing it
    const div = figure.querySelector("div");
    if (plot) {
      div.setAttribute("role", "img");
      div.setAttribute("aria-label", figure.querySelector("h3").textContent);
      Plotly.react(div, plot.traces, themed(plot.layout), CONFIG);
    } else {
      Plotly.purge(div);
    }
  }
  for (const section of document.querySelectorAll("section")) {
    const figures = [...section.querySelectorAll("figure[data-plot]")];
    if (figures.length) section.hidden = figures.every((figure) => figure.hidden);
  }
}

function writeNotes() {
  const panel = currentPanel();
  const seeds = panel.seeds.length;
  byId("rolling-text").textContent = `rolling mean of ${panel.window} round${panel.window === 1 ? "" : "s"}`;
  byId("band-note").textContent = seeds > 1
    ? `Lines: mean over ${seeds} seeds. Bands: from the lowest to the highest seed.`
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
      item.append(swatch(DATA.classColours[label]), `class ${label}`);
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

function swatch(colour) {
  const mark = document.createElement("span");
  mark.className = "swatch";
  mark.style.background = colour;
  return mark;
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
  const boxes = panel.designs.map(({ label }) => {
    const line = document.createElement("label");
    const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: !view.hidden.has(label) });
    box.addEventListener("change", () => {
      box.checked ? view.hidden.delete(label) : view.hidden.add(label);
      draw();
    });
    line.append(box, swatch(DATA.colours[label]), label);
    return line;
  });
  const designs = byId("designs");
  designs.replaceChildren(designs.firstElementChild, ...boxes);
  designs.hidden = boxes.length < 1;
}

function showSelected() {
  for (const block of document.querySelectorAll("[data-block]")) {
    const { run, panel, block: kind } = block.dataset;
    block.hidden = Number(run) !== view.run || (kind === "answer" && Number(panel) !== view.panel);
  }
  view.cluster = Math.min(view.cluster, Math.max(0, (currentPanel().clusters || []).length - 1));
  writeControls();
  writeNotes();
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
choose("rolling", () => { view.rolling = true; draw(); });
choose("raw", () => { view.rolling = false; draw(); });
choose("log", (box) => { view.log = box.checked; draw(); });
byId("controls").addEventListener("submit", (event) => event.preventDefault());
byId("theme").addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  setTheme();
});
DARK.addEventListener("change", setTheme);
addEventListener("beforeprint", () => printed(true));
addEventListener("afterprint", () => printed(false));

readTheme();
showSelected();
byId("theme").textContent = isDark() ? "Light" : "Dark";
byId("theme").setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
