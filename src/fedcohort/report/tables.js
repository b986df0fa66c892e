"use strict";
// Tables that can be sorted and downloaded, and the table of clients.

// Missing values come last in both directions.
function compareValues(one, other, up) {
  const isMissing = (value) => value === null || value === undefined || value === "";
  if (isMissing(one) || isMissing(other)) return isMissing(one) - isMissing(other);
  const order = typeof one === "number" && typeof other === "number"
    ? one - other
    : String(one).localeCompare(String(other), undefined, { numeric: true });
  return up ? order : -order;
}

// Turn the headings into buttons. `act` gets the number of the column and the direction.
function makeSortable(table, act) {
  for (const [at, heading] of [...table.tHead.rows[0].cells].entries()) {
    const button = Object.assign(document.createElement("button"), { type: "button" });
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      markSorted(table, at, up);
      act(at, up);
    });
  }
}

function markSorted(table, at, up) {
  for (const heading of table.tHead.rows[0].cells) heading.removeAttribute("aria-sort");
  table.tHead.rows[0].cells[at].setAttribute("aria-sort", up ? "ascending" : "descending");
}

function sortRows(table, at, up) {
  const valueOf = (row) => {
    const text = row.cells[at].dataset.value;
    return text === undefined || text.trim() === "" || Number.isNaN(Number(text)) ? text : Number(text);
  };
  const rows = [...table.tBodies[0].rows];
  rows.sort((one, other) => compareValues(valueOf(one), valueOf(other), up));
  table.tBodies[0].append(...rows);
}

const csvCell = (value) => {
  const text = value === null || value === undefined ? "" : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

// Rows are objects with the same keys, which become the headings.
function csvText(rows) {
  const lines = [Object.keys(rows[0]), ...rows.map((row) => Object.values(row))];
  return lines.map((line) => `${line.map(csvCell).join(",")}\r\n`).join("");
}

function download(name, rows) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([csvText(rows)], { type: "text/csv" }));
  link.download = `${name.replace(/[^A-Za-z0-9._-]+/g, "-")}.csv`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const PAGE_ROWS = 20;
const share = (value, total) => (total ? value / total : null);

// Every column: heading, key, and how to write a value with the column's decimals.
const CLIENT_COLUMNS = [
  ["client", "client", String],
  ["samples", "samples", String],
  ["main class", "main_class", String],
  ["rounds drawn", "rounds_drawn", String],
  ["mean weight", "mean_weight", (value, decimals) => `${(100 * value).toFixed(decimals)} %`],
  ["share of samples", "share", (value, decimals) => `${(100 * value).toFixed(decimals)} %`],
  ["loss", "loss", (value, decimals) => value.toFixed(decimals)],
  ["accuracy", "accuracy", (value) => `${(100 * value).toFixed(1)} %`],
];

// Return the rows of a design and seed, as objects; `panel.clients` holds columns.
function clientRows(panel, at, label) {
  const { designs, samples, main } = panel.clients.seeds[at];
  const own = designs[label];
  const total = samples.reduce((sum, value) => sum + value, 0);
  return own.drawn.map((drawn, place) => {
    const client = own.client ? own.client[place] : place;
    return {
      client, samples: samples[client], main_class: main[client] < 0 ? null : main[client],
      rounds_drawn: drawn, mean_weight: own.weight[place], share: share(samples[client], total),
      loss: own.loss[place], accuracy: own.accuracy[place],
    };
  });
}

// The number of decimals that shows the smallest value with three digits.
function decimalsOf(values) {
  const sizes = values.filter((value) => Number.isFinite(value) && value !== 0).map(Math.abs);
  if (!sizes.length) return 0;
  return Math.min(8, Math.max(0, 2 - Math.floor(Math.log10(Math.min(...sizes)))));
}

// The worst served come first: by accuracy, else by loss, else by how often they were drawn.
function defaultOrder(rows) {
  const has = (key) => rows.some((row) => row[key] !== null);
  if (has("accuracy")) return { key: "accuracy", up: true };
  return has("loss") ? { key: "loss", up: false } : { key: "rounds_drawn", up: true };
}

// The decimals of each column of a report's clients.
function clientDecimals(rows) {
  const values = (key) => rows.map((row) => row[key]);
  const ofShares = Math.min(3, decimalsOf(values("share").map((value) => 100 * value)));
  return { loss: decimalsOf(values("loss")), mean_weight: ofShares, share: ofShares };
}

const ClientTable = {
  rows: [], columns: [], order: null, first: null, page: 0, search: "",
  isFound: (row, wanted) => String(row.client).startsWith(wanted),

  // `columns` are headings, keys and how to write a value with its decimals; `first` is the order
  // before the reader chooses one.
  show(rows, columns, decimals, first) {
    Object.assign(this, { rows, decimals, first, page: 0 });
    const order = this.order || first;
    // A column without any number is left out; the note says why.
    this.columns = columns.filter(([, key]) => this.rows.some((row) => row[key] !== null));
    const column = this.columns.findIndex(([, key]) => key === order.key);
    this.writeHead();
    if (column >= 0) markSorted(document.getElementById("client-table"), column, order.up);
    this.write(order);
  },

  writeHead() {
    const table = document.getElementById("client-table");
    table.replaceChildren();
    const row = table.createTHead().insertRow();
    for (const [heading] of this.columns) {
      row.append(Object.assign(document.createElement("th"), { textContent: heading, scope: "col" }));
    }
    table.createTBody();
    makeSortable(table, (column, up) => {
      this.order = { key: this.columns[column][1], up };
      this.page = 0;
      this.write(this.order);
    });
  },

  found() {
    const wanted = this.search.trim();
    return wanted ? this.rows.filter((row) => this.isFound(row, wanted)) : [...this.rows];
  },

  write(order = this.order || this.first) {
    const rows = this.found().sort((one, other) =>
      compareValues(one[order.key], other[order.key], order.up) || compareValues(one.client, other.client, true));
    this.page = Math.min(this.page, Math.max(0, Math.ceil(rows.length / PAGE_ROWS) - 1));
    const first = this.page * PAGE_ROWS;
    const some = rows.slice(first, first + PAGE_ROWS);
    document.getElementById("client-table").tBodies[0].replaceChildren(...some.map((row) => this.line(row)));
    document.getElementById("clients-shown").textContent = rows.length
      ? `${first + 1} to ${first + some.length} of ${rows.length} client${rows.length === 1 ? "" : "s"}`
      : "No client fits.";
    document.getElementById("clients-back").disabled = this.page === 0;
    document.getElementById("clients-next").disabled = first + PAGE_ROWS >= rows.length;
  },

  line(row) {
    const line = document.createElement("tr");
    for (const [heading, key, write] of this.columns) {
      const cell = document.createElement(key === "client" ? "th" : "td");
      if (key === "client") cell.scope = "row";
      cell.dataset.label = heading;
      const value = row[key];
      cell.textContent = value === null ? "\u2013" : write(value, this.decimals[key]);
      line.append(cell);
    }
    return line;
  },

  turn(pages) {
    this.page += pages;
    this.write();
  },
};
