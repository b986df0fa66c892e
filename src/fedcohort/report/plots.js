"use strict";
// One function per plot. It takes a panel's data and the view, and returns traces and a layout, or
// null if there is nothing to draw. `view` has: rolling, log, hidden (designs), cluster, theme.

const DATA = JSON.parse(document.getElementById("data").textContent);

// Plotly interprets some HTML in texts. Escape texts that come from the user.
const plainText = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;");

const faded = (colour, alpha) => {
  const part = (at) => parseInt(colour.slice(at, at + 2), 16);
  return `rgba(${part(1)}, ${part(3)}, ${part(5)}, ${alpha})`;
};

const shown = (panel, view) => panel.designs.filter((design) => !view.hidden.has(design.label));

const lineOf = (label, more = {}) => ({
  color: DATA.colours[label], dash: DATA.dashes[label], width: 2, ...more,
});

// Draw a mean with its band. The band's edges have no line and no hover text.
function bandTraces(label, band) {
  const colour = DATA.colours[label];
  const mean = {
    type: "scatter", mode: band.x.length > 1 ? "lines" : "markers", name: plainText(label),
    x: band.x, y: band.mean, line: lineOf(label), marker: { color: colour },
    hovertemplate: "%{y:.4g}",
  };
  if (!band.low) return [mean];
  mean.customdata = band.x.map((_, at) => [band.low[at], band.high[at]]);
  mean.hovertemplate = "%{y:.4g} (%{customdata[0]:.4g} to %{customdata[1]:.4g})";
  const edge = { type: "scatter", mode: "lines", x: band.x, line: { width: 0 }, hoverinfo: "skip" };
  return [
    { ...edge, y: band.low },
    { ...edge, y: band.high, fill: "tonexty", fillcolor: faded(colour, 0.16) },
    mean,
  ];
}

function curvePlot(column, title) {
  return (panel, view) => {
    const kind = view.rolling ? "rolling" : "raw";
    const designs = shown(panel, view);
    if (!panel.designs.some((design) => design.curves[column].raw.x.length)) return null;
    const yaxis = { title: { text: title }, type: column === "loss" && view.log ? "log" : "linear" };
    if (column === "accuracy") yaxis.tickformat = ".0%";
    return {
      traces: designs.flatMap((design) => bandTraces(design.label, design.curves[column][kind])),
      layout: {
        hovermode: "x unified", yaxis,
        xaxis: { title: { text: "rounds" }, unifiedhovertitle: { text: "round %{x}" } },
      },
    };
  };
}

// Draw the rolling loss against the cost so far.
function costPlot(cost, title) {
  return (panel, view) => {
    if (!panel.designs.some((design) => design.costs[cost])) return null;
    const designs = shown(panel, view).filter((design) => design.costs[cost]);
    const traces = designs.flatMap((design) => bandTraces(design.label, design.costs[cost]));
    for (const trace of traces) if (trace.name) trace.hovertemplate += " after %{x:.4g}";
    return {
      traces,
      layout: {
        hovermode: "closest",
        xaxis: { title: { text: title }, type: "log" },
        yaxis: { title: { text: "training loss" }, type: view.log ? "log" : "linear" },
      },
    };
  };
}

function neededPlot(panel, view) {
  if (!panel.designs.some((design) => design.needed.x.length)) return null;
  const traces = shown(panel, view).flatMap((design) => bandTraces(design.label, design.needed));
  for (const trace of traces) if (trace.name) trace.hovertemplate += " rounds to %{x:.4g}";
  const type = view.log ? "log" : "linear";
  return {
    traces,
    layout: {
      hovermode: "closest",
      xaxis: { title: { text: "target loss" }, autorange: "reversed", type },
      yaxis: { title: { text: "rounds" }, rangemode: "tozero" },
    },
  };
}

function lawPlot(name, title) {
  return (panel, view) => {
    if (!panel.laws || !panel.laws.sizes.length) return null;
    const { sizes, designs } = panel.laws;
    const alone = sizes.length === 1; // all clients have the same size: show the designs side by side
    const traces = shown(panel, view).flatMap(({ label }) => {
      const colour = DATA.colours[label];
      const base = {
        type: "scatter", name: plainText(label), x: alone ? [plainText(label)] : sizes, cliponaxis: false,
      };
      const mark = alone
        ? { symbol: "line-ew", size: 34, line: { color: colour, width: 3 } }
        : { color: colour, size: 1 };
      return [
        { ...base, y: designs[label][name], mode: alone ? "markers" : "lines", marker: mark,
          line: lineOf(label), hovertemplate: "law: %{y:.4g}" },
        { ...base, y: designs[label][`observed_${name}`], mode: "markers",
          marker: { color: colour, size: 9, symbol: "circle-open", line: { width: 2 } },
          hovertemplate: "observed: %{y:.4g}" },
      ];
    });
    const xaxis = alone
      ? { type: "category" }
      : { title: { text: "client size (samples)" }, rangemode: "tozero" };
    return {
      traces,
      layout: { hovermode: "closest", xaxis, yaxis: { title: { text: title }, rangemode: "tozero" } },
    };
  };
}

function errorPlot(panel, view) {
  if (!panel.designs.some((design) => design.error.x.length)) return null;
  const traces = shown(panel, view).flatMap(({ label, error }) => {
    const base = { type: "scatter", name: plainText(label), x: error.x };
    return [
      { ...base, y: error.squared_error, mode: "markers", hovertemplate: "drawn: %{y:.4g}",
        marker: { color: DATA.colours[label], size: 7, symbol: "circle-open" } },
      { ...base, y: error.design_variance, mode: "lines", line: lineOf(label),
        hovertemplate: "expected: %{y:.4g}" },
      { ...base, y: error.multinomial_variance, mode: "lines", hovertemplate: "multinomial: %{y:.4g}",
        line: lineOf(label, { dash: "dot", width: 1.2 }) },
    ];
  });
  return {
    traces,
    layout: {
      hovermode: "closest",
      xaxis: { title: { text: "rounds" } },
      yaxis: { title: { text: "squared error" }, type: "log" },
    },
  };
}

function secondsPlot(panel, view) {
  if (!panel.designs.length) return null;
  const designs = shown(panel, view).reverse();
  // Use greys, because colours stand for designs.
  const parts = [["draw", "#56606c"], ["train", "#929ba6"], ["measure", "#c6ccd3"]];
  const traces = parts.map(([part, colour]) => ({
    type: "bar", orientation: "h", name: part, marker: { color: colour },
    y: designs.map(({ label }) => plainText(label)),
    x: designs.map(({ seconds }) => 1000 * seconds[`${part}_seconds`]),
    hovertemplate: "%{x:.3g} ms",
  }));
  return {
    traces,
    layout: {
      barmode: "stack", hovermode: "y unified", showlegend: true,
      legend: { orientation: "h", y: 1.02, yanchor: "bottom", x: 0, traceorder: "normal" },
      xaxis: { title: { text: "milliseconds a round" } },
      yaxis: { type: "category", automargin: true },
    },
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
  const hint = "client %{customdata[0]}, main class %{customdata[1]}<br>";
  const base = { type: "heatmap", y, ...scale };
  return {
    traces: [
      { ...base, x: rounds.map(String), z: turned(classes), customdata: info,
        hovertemplate: `round %{x}: ${hint}distribution %{customdata[2]}, mostly class %{z}<extra></extra>` },
      { ...base, x: ["own"], z: y.map((at) => [main[at]]), xaxis: "x2",
        customdata: y.map((at) => [[clients[at], main[at]]]), hovertemplate: `${hint}<extra></extra>` },
    ],
    layout: {
      hovermode: "closest", margin: { l: 56, r: 12, t: 30, b: 44 },
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
    hovertemplate: "%{text}<extra></extra>",
  });
  return {
    traces,
    layout: {
      hovermode: "closest",
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
    hovertemplate: "client %{customdata[0]}: %{customdata[1]} of %{customdata[2]} samples",
  }));
  return {
    traces,
    layout: {
      barmode: "stack", bargap: 0, hovermode: "closest", margin: { l: 56, r: 12, t: 30, b: 44 },
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
      hovertemplate: "class %{y}: %{x} samples<extra></extra>",
    }],
    layout: {
      hovermode: "closest", xaxis: { title: { text: "samples" } },
      yaxis: { title: { text: "class" }, ...(counts.length <= 20 ? { dtick: 1 } : {}) },
    },
  };
}

const PLOTS = {
  loss: curvePlot("loss", "training loss"),
  accuracy: curvePlot("accuracy", "test accuracy"),
  distinct_classes: curvePlot("distinct_classes", "classes"),
  distinct_clients: curvePlot("distinct_clients", "clients"),
  needed: neededPlot,
  bytes: costPlot("bytes", "megabytes down and up"),
  client_seconds: costPlot("client_seconds", "client work (hours)"),
  simulated_seconds: costPlot("simulated_seconds", "simulated time (hours)"),
  inclusion: lawPlot("inclusion", "chance"),
  weight_variance: lawPlot("weight_variance", "variance"),
  clusters: clustersPlot,
  tree: treePlot,
  error: errorPlot,
  seconds: secondsPlot,
  shares: sharesPlot,
  samples: samplesPlot,
};
