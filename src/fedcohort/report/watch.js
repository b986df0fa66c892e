"use strict";
// `fedcohort watch`: ask the server for the state of the run, and load the page again when it has
// changed. What the reader has chosen stays chosen. WATCHED is the version of this page.

const ASK_EVERY = 3000; // milliseconds
const banner = Object.assign(document.createElement("p"), { className: "watch" });
banner.setAttribute("role", "status");
document.body.prepend(banner);

// The page that waits for a run has no controls; that of an audit keeps its own.
const hasRun = document.getElementById("data") !== null;
const isAudit = document.getElementById("presence") !== null;

function keepView() {
  if (isAudit) {
    const { search, order, page } = ClientTable;
    const dark = document.documentElement.dataset.theme;
    sessionStorage.setItem("audit", JSON.stringify({ search, order, page, dark, scroll: scrollY }));
    return;
  }
  const { theme, hidden, choices, ...rest } = view;
  sessionStorage.setItem("view", JSON.stringify({
    ...rest, choices: Object.entries(choices).map(([labels, off]) => [labels, [...off]]), scroll: scrollY, dark: document.documentElement.dataset.theme,
    search: ClientTable.search, order: ClientTable.order, page: ClientTable.page,
    sorted: sortedTables().map((table) => sortOf(table)),
  }));
}

const sortedTables = () => [...document.querySelectorAll("table.sortable")];

function sortOf(table) {
  const headings = [...table.tHead.rows[0].cells];
  const at = headings.findIndex((heading) => heading.hasAttribute("aria-sort"));
  return [at, headings[at].getAttribute("aria-sort") === "ascending"];
}

function restoreAudit() {
  const kept = JSON.parse(sessionStorage.getItem("audit") || "null");
  if (!kept) return;
  const { search, order, page, dark, scroll } = kept;
  if (dark) document.documentElement.dataset.theme = dark;
  byId("client-search").value = search;
  Object.assign(ClientTable, { search, order });
  if (data.presence) ClientTable.turn(page);
  setTheme();
  scrollTo(0, scroll);
}

function restoreView() {
  const kept = JSON.parse(sessionStorage.getItem("view") || "null");
  if (!kept) return;
  const { choices, scroll, dark, search, order, page, sorted, ...rest } = kept;
  Object.assign(view, rest);
  for (const [labels, off] of choices) view.choices[labels] = new Set(off);
  const panels = (DATA.runs[view.run] || DATA.runs[0]).panels;
  view.panel = Math.min(view.panel, panels.length - 1);
  byId(view.smoothed ? "smoothed" : "raw").checked = true;
  byId("log").checked = view.log;
  byId("client-search").value = search;
  Object.assign(ClientTable, { search, order });
  if (dark) document.documentElement.dataset.theme = dark;
  for (const [number, table] of sortedTables().entries()) {
    const [at, up] = sorted[number] || [1, true];
    if (at < 0 || at >= table.tHead.rows[0].cells.length) continue;
    markSorted(table, at, up);
    sortRows(table, at, up);
  }
  readTheme();
  showSelected();
  if (currentPanel().clients) ClientTable.turn(page);
  scrollTo(0, scroll);
}

async function ask() {
  try {
    const { version, text } = await (await fetch("state", { cache: "no-store" })).json();
    if (version !== WATCHED) {
      if (hasRun) keepView();
      location.reload();
      return;
    }
    banner.textContent = text;
  } catch {
    banner.textContent = "fedcohort watch has ended. The page shows the last state that it saw.";
  }
  setTimeout(ask, ASK_EVERY);
}

if (isAudit) restoreAudit();
else if (hasRun) restoreView();
ask();
