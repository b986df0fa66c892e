"use strict";
// One function per plot. It takes a panel's data and the view, and returns traces, a layout and
// `say`, which describes the point under the pointer; or null if there is nothing to draw. `view`
// has: smoothed, log, hidden (designs), cluster, theme.

const DATA = JSON.parse(document.getElementById("data").textContent);
// The number of each design, for classes in the plots.
const NUMBERS = Object.fromEntries(Object.keys(DATA.colours).map((label, at) => [label, at]));

// Plotly interprets some HTML in texts. Escape texts that come from the user.
const plainText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

const number = (value) => (value === null || value === undefined ? "\u2013" : String(Number(value.toPrecision(4))));
const perCent = (value) => (value === null || value === undefined ? "\u2013" : `${(100 * value).toFixed(1)} %`);

const faded = (colour, alpha) => {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
};

const shown = (panel, view) => panel.designs.filter((design) => !view.hidden.has(design.label));

const lineOf = (label, more = {}) => ({
  color: DATA.colours[label], dash: DATA.dashes[label], width: 2, ...more,
});

// A trace of a design. Its uid becomes a class of its lines, by which they are brought forward.
const ofDesign = (label, part, more) => ({
  type: "scatter", uid: `-d${NUMBERS[label]}-${part}`, meta: { label, part }, ...more,
});

// Draw a mean with its band. The band's edges have no line and nothing to say.
function bandTraces(label, band) {
  const colour = DATA.colours[label];
  const mean = ofDesign(label, "mean", {
    mode: band.x.length > 1 ? "lines" : "markers", name: plainText(label),
    x: band.x, y: band.mean, line: lineOf(label), marker: { color: colour },
  });
  if (!band.low) return [mean];
  mean.customdata = band.x.map((_, at) => [band.low[at], band.high[at]]);
  const edge = { mode: "lines", x: band.x, line: { width: 0 }, hoverinfo: "skip" };
  return [
    ofDesign(label, "low", { ...edge, y: band.low }),
    ofDesign(label, "high", { ...edge, y: band.high, fill: "tonexty", fillcolor: faded(colour, 0.16) }),
    mean,
  ];
}

// Describe a point of a mean: its value and, with several seeds, the lowest and highest.
function sayBand(point, write) {
  const ends = point.customdata ? ` (${write(point.customdata[0])} to ${write(point.customdata[1])})` : "";
  return `${write(point.y)}${ends}`;
}

function curvePlot(column, title, { write = number, ...yaxis } = {}) {
  return (panel, view) => {
    const kind = view.smoothed ? "smoothed" : "raw";
    if (!panel.designs.some((design) => design.curves[column].raw.x.length)) return null;
    const type = column === "loss" && view.log ? "log" : "linear";
    return {
      traces: shown(panel, view).flatMap((design) => bandTraces(design.label, design.curves[column][kind])),
      layout: { yaxis: { title: { text: title }, type, ...yaxis }, xaxis: { title: { text: "rounds" } } },
      say: (point) => `${point.data.meta.label}, round ${point.x}: ${sayBand(point, write)}`,
    };
  };
}

// Draw the smoothed loss against the cost so far.
function costPlot(cost) {
  return (panel, view) => {
    if (!panel.designs.some((design) => design.costs[cost])) return null;
    const [title, factor] = panel.axes[cost];
    const designs = shown(panel, view).filter((design) => design.costs[cost]);
    const scaled = (band) => ({ ...band, x: band.x.map((value) => factor * value) });
    const unit = title.slice(title.lastIndexOf("(") + 1, -1);
    return {
      traces: designs.flatMap((design) => bandTraces(design.label, scaled(design.costs[cost]))),
      layout: {
        xaxis: { title: { text: title }, type: "log" },
        yaxis: { title: { text: "training loss" }, type: view.log ? "log" : "linear" },
      },
      say: (point) =>
        `${point.data.meta.label}, after ${number(point.x)} ${unit}: ${sayBand(point, number)}`,
    };
  };
}

function neededPlot(panel, view) {
  if (!panel.designs.some((design) => design.needed.x.length)) return null;
  return {
    traces: shown(panel, view).flatMap((design) => bandTraces(design.label, design.needed)),
    layout: {
      xaxis: { title: { text: "target loss" }, autorange: "reversed", type: view.log ? "log" : "linear" },
      yaxis: { title: { text: "rounds" }, rangemode: "tozero" },
    },
    say: (point) =>
      `${point.data.meta.label}, to a loss of ${number(point.x)}: ${sayBand(point, number)} rounds`,
  };
}

// Draw the clients' accuracies against the share of clients that have at most this accuracy.
function servedPlot(panel, view) {
  if (!panel.served || !panel.designs.some(({ label }) => panel.served[label].x.length)) return null;
  return {
    traces: shown(panel, view).flatMap(({ label }) => bandTraces(label, panel.served[label])),
    layout: {
      xaxis: { title: { text: "share of the clients" }, tickformat: ".0%" },
      yaxis: { title: { text: "test accuracy" }, tickformat: ".0%" },
    },
    say: (point) =>
      `${point.data.meta.label}: ${perCent(point.x)} of the clients have at most ${sayBand(point, perCent)}`,
  };
}

function lawPlot(name, title) {
  return (panel, view) => {
    if (!panel.laws || !panel.laws.sizes.length) return null;
    const { sizes, designs } = panel.laws;
    const alone = sizes.length === 1; // all clients have the same size: show the designs side by side
    const traces = shown(panel, view).flatMap(({ label }) => {
      const colour = DATA.colours[label];
      const base = { name: plainText(label), x: alone ? [plainText(label)] : sizes, cliponaxis: false };
      const mark = alone
        ? { symbol: "line-ew", size: 34, line: { color: colour, width: 3 } }
        : { color: colour, size: 1 };
      return [
        ofDesign(label, "law", {
          ...base, y: designs[label][name], mode: alone ? "markers" : "lines", marker: mark, line: lineOf(label),
        }),
        ofDesign(label, "observed", {
          ...base, y: designs[label][`observed_${name}`], mode: "markers",
          marker: { color: colour, size: 9, symbol: "circle-open", line: { width: 2 } },
        }),
      ];
    });
    const xaxis = alone
      ? { type: "category" }
      : { title: { text: "client size (samples)" }, rangemode: "tozero" };
    const size = (point) => (alone ? "" : `, ${number(point.x)} samples`);
    return {
      traces,
      layout: { xaxis, yaxis: { title: { text: title }, rangemode: "tozero" } },
      say: (point) => `${point.data.meta.label}${size(point)}, ${point.data.meta.part}: ${number(point.y)}`,
    };
  };
}

function errorPlot(panel, view) {
  if (!panel.designs.some((design) => design.error.x.length)) return null;
  const traces = shown(panel, view).flatMap(({ label, error }) => {
    const base = { name: plainText(label), x: error.x };
    return [
      ofDesign(label, "drawn", { ...base, y: error.squared_error, mode: "markers",
        marker: { color: DATA.colours[label], size: 7, symbol: "circle-open" } }),
      ofDesign(label, "expected", { ...base, y: error.design_variance, mode: "lines", line: lineOf(label) }),
      ofDesign(label, "multinomial", { ...base, y: error.multinomial_variance, mode: "lines",
        line: lineOf(label, { dash: "dot", width: 1.2 }) }),
      ofDesign(label, "noise floor", { ...base, y: error.design_floor, mode: "lines",
        line: lineOf(label, { dash: "dash", width: 1.2 }) }),
    ];
  });
  return {
    traces,
    layout: { xaxis: { title: { text: "rounds" } }, yaxis: { title: { text: "squared error" }, type: "log" } },
    say: (point) =>
      `${point.data.meta.label}, round ${point.x}, ${point.data.meta.part}: ${number(point.y)}`,
  };
}

function secondsPlot(panel, view) {
  if (!panel.designs.length) return null;
  const designs = shown(panel, view).reverse();
  const [title, factor] = panel.axes.seconds;
  // Use greys, because colours stand for designs.
  const parts = [["draw", "#56606c"], ["train", "#929ba6"], ["measure", "#c6ccd3"]];
  const traces = parts.map(([part, colour]) => ({
    type: "bar", orientation: "h", name: part, marker: { color: colour },
    y: designs.map(({ label }) => plainText(label)),
    x: designs.map(({ seconds }) => factor * seconds[`${part}_seconds`]),
  }));
  return {
    traces,
    // Every design needs room for its name.
    height: 110 + 22 * Math.max(designs.length, 6),
    layout: {
      barmode: "stack", showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      xaxis: { title: { text: title } },
      yaxis: { type: "category", dtick: 1 },
    },
    say: (point) =>
      `${designs[point.pointNumber].label}, ${point.data.name}: ${number(point.x)} ${title}`,
  };
}

// Colour scale of a heatmap of classes: n equal steps, and step k is class k.
function classScale(n) {
  const steps = DATA.classColours.slice(0, n);
  return steps.flatMap((colour, at) => [[at / n, colour], [(at + 1) / n, colour]]);
}

function clustersPlot(panel, view) {
  const found = panel.clusters && panel.clusters[view.cluster];
  if (!found || !found.map) return null;
  const { rounds, clients, main, classes, rows, n_classes: n } = found.map;
  const scale = { colorscale: classScale(n), zmin: -0.5, zmax: n - 0.5, showscale: false };
  const y = clients.map((_, at) => at);
  const turned = (matrix) => y.map((at) => matrix.map((row) => (row[at] < 0 ? null : row[at])));
  const info = y.map((at) => rows.map((row) => [clients[at], main[at], row[at] + 1]));
  const base = { type: "heatmap", y, ...scale };
  return {
    traces: [
      { ...base, x: rounds.map(String), z: turned(classes), customdata: info },
      { ...base, x: ["own"], z: y.map((at) => [main[at]]), xaxis: "x2",
        customdata: y.map((at) => [[clients[at], main[at]]]) },
    ],
    say: ({ x, z, customdata: [client, own, row] }) =>
      `client ${client}, main class ${own}` +
      (row === undefined ? "" : `; round ${x}: distribution ${row}, mostly class ${z}`),
    layout: {
      margin: { l: 56, r: 20, t: 30, b: 44 },
      xaxis: { title: { text: "round" }, type: "category", domain: [0, 0.92], showgrid: false, nticks: 10 },
      xaxis2: { type: "category", domain: [0.94, 1], anchor: "y", showgrid: false },
      yaxis: { title: { text: "clients, by main class" }, showticklabels: false, ticks: "", showgrid: false },
    },
  };
}

// One trace of links per class, mixed classes last. A link is a bracket of four points.
function treePlot(panel, view) {
  const found = panel.clusters && panel.clusters[view.cluster];
  if (!found || !found.tree) return null;
  const { leaves, classes, members, links, n_clients: n } = found.tree;
  const colourOf = (label) => (label < 0 ? view.theme.quiet : DATA.classColours[label]);
  const traces = [...new Set(links.map((link) => link[5]))].sort((a, b) => b - a).map((label) => {
    const own = links.filter((link) => link[5] === label);
    return {
      type: "scatter", mode: "lines", hoverinfo: "skip", line: { color: colourOf(label), width: 1.4 },
      x: own.flatMap(([left, , right]) => [left, left, right, right, null]),
      y: own.flatMap(([, below, , other, top]) => [below, top, top, other, null]),
    };
  });
  traces.push({
    type: "scatter", mode: "markers", x: leaves.map((_, at) => at), y: leaves.map(() => 0),
    marker: { color: classes.map(colourOf), size: 6, symbol: "square" },
    text: leaves.map((leaf, at) =>
      (leaf < n ? `client ${leaf}` : `${members[at]} clients`) +
      (classes[at] < 0 ? ", several classes" : `, class ${classes[at]}`)),
  });
  return {
    traces,
    say: (point) => point.text,
    layout: {
      xaxis: { title: { text: "clients" }, showticklabels: false, showgrid: false, zeroline: false },
      yaxis: { title: { text: "distance" }, rangemode: "tozero" },
    },
  };
}

function sharesPlot(panel) {
  const { clients, samples } = panel.federation;
  if (!clients.length) return null;
  const totals = clients.map((_, at) => samples.reduce((sum, column) => sum + column[at], 0) || 1);
  const traces = samples.map((column, label) => ({
    type: "bar", name: `class ${label}`, marker: { color: DATA.classColours[label], line: { width: 0 } },
    x: clients.map((_, at) => at), y: column.map((count, at) => count / totals[at]),
    customdata: column.map((count, at) => [clients[at], count, totals[at]]),
  }));
  return {
    traces,
    say: ({ data, customdata: [client, count, total] }) =>
      `client ${client}, ${data.name}: ${count} of ${total} samples`,
    layout: {
      barmode: "stack", bargap: 0, margin: { l: 56, r: 20, t: 30, b: 44 },
      xaxis: { title: { text: "clients, by main class" }, showticklabels: false },
      yaxis: { title: { text: "share" }, tickformat: ".0%", range: [0, 1] },
    },
  };
}

function samplesPlot(panel) {
  const counts = panel.federation.class_samples;
  if (!counts.length) return null;
  return {
    traces: [{
      type: "bar", orientation: "h", x: counts, y: counts.map((_, label) => label),
      marker: { color: counts.map((_, label) => DATA.classColours[label]) },
    }],
    say: (point) => `class ${point.y}: ${point.x} samples`,
    layout: {
      xaxis: { title: { text: "samples" } },
      yaxis: { title: { text: "class" }, ...(counts.length <= 20 ? { dtick: 1 } : {}) },
    },
  };
}

// No share is above 100 %: leave room for the width of a line, and no more.
const SHARE = { write: perCent, tickformat: ".0%", rangemode: "nonnegative", autorangeoptions: { clipmax: 1.01 } };
const PLOTS = {
  loss: curvePlot("loss", "training loss"),
  accuracy: curvePlot("accuracy", "test accuracy", SHARE),
  worst_accuracy: curvePlot("worst_accuracy", "test accuracy", SHARE),
  served: servedPlot,
  distinct_classes: curvePlot("distinct_classes", "classes"),
  distinct_share: curvePlot("distinct_share", "share of the draws", SHARE),
  needed: neededPlot,
  bytes: costPlot("bytes"),
  client_seconds: costPlot("client_seconds"),
  simulated_seconds: costPlot("simulated_seconds"),
  inclusion: lawPlot("inclusion", "chance"),
  weight_variance: lawPlot("weight_variance", "variance"),
  clusters: clustersPlot,
  tree: treePlot,
  error: errorPlot,
  seconds: secondsPlot,
  shares: sharesPlot,
  samples: samplesPlot,
};
