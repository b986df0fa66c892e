"use strict";
// The page of an audit: the picture of presence, the table of clients, colours.

const byId = (id) => document.getElementById(id);
const DARK = matchMedia("(prefers-color-scheme: dark)");
const data = JSON.parse(byId("data").textContent);
const root = document.documentElement;
const isDark = () => (root.dataset.theme || (DARK.matches ? "dark" : "light")) === "dark";

// The colour of a CSS variable as [red, green, blue].
function colourOf(name) {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = `var(--${name})`;
  const found = getComputedStyle(probe).color.match(/\d+(\.\d+)?/g).slice(0, 3).map(Number);
  probe.remove();
  return found;
}

const mixed = (one, other, share) => one.map((value, k) => Math.round(value + share * (other[k] - value)));

// Codes: 0 nobody asked, 1 nobody there, 10 all failed ... 20 all answered.
function stateOf(code) {
  if (code === 0) return "not asked";
  if (code === 1) return "not available";
  if (code === 10) return "failed";
  return code === 20 ? "answered" : `${(code - 10) * 10} % answered`;
}

const Presence = {
  show(picture) {
    const { rows, rounds } = picture;
    this.picture = picture;
    this.codes = Uint8Array.from(atob(picture.codes), (letter) => letter.charCodeAt(0));
    const canvas = byId("presence");
    Object.assign(canvas, { width: rounds.length, height: rows.length });
    const pixels = rows.length <= 12 ? 26 : rows.length <= 60 ? 14 : Math.max(2, Math.min(5, 600 / rows.length));
    canvas.style.height = `${Math.round(rows.length * pixels)}px`;
    byId("presence-names").replaceChildren(...(rows.length <= 60 ? rows : []).map((name) =>
      Object.assign(document.createElement("span"), { textContent: name, title: name })));
    byId("presence-axis").replaceChildren(...[rounds[0], picture.lastRound].map((round) =>
      Object.assign(document.createElement("span"), { textContent: `round ${round}` })));
    this.draw();
  },

  colours() {
    const [came, lost, idle, away] = ["came", "lost", "idle", "away"].map(colourOf);
    const found = { 0: idle, 1: away };
    for (let k = 0; k <= 10; k += 1) found[10 + k] = mixed(lost, came, k / 10);
    return found;
  },

  draw() {
    const canvas = byId("presence");
    const context = canvas.getContext("2d");
    const image = context.createImageData(canvas.width, canvas.height);
    const colours = this.colours();
    this.codes.forEach((code, k) => image.data.set([...colours[code], 255], 4 * k));
    context.putImageData(image, 0, 0);
    const seen = [...new Set(this.codes)].sort((one, other) => other - one);
    const ends = seen.filter((code) => code < 2 || code === 10 || code === 20);
    byId("presence-legend").replaceChildren(...ends.map((code) => {
      const line = document.createElement("li");
      const square = Object.assign(document.createElement("span"), { className: "square" });
      square.style.background = `rgb(${colours[code]})`;
      line.append(square, stateOf(code));
      return line;
    }));
  },

  read(event) {
    const { rows, rounds } = this.picture;
    const box = event.target.getBoundingClientRect();
    const at = (value, start, length, n) => Math.max(0, Math.min(n - 1, Math.floor((value - start) / length * n)));
    const column = at(event.clientX, box.left, box.width, rounds.length);
    const row = at(event.clientY, box.top, box.height, rows.length);
    const state = stateOf(this.codes[row * rounds.length + column]);
    byId("presence-readout").textContent = `${rows[row]}, round ${rounds[column]}: ${state}`;
  },
};

const asPercent = (value, decimals) => `${(100 * value).toFixed(decimals)} %`;
const COLUMNS = [
  ["client", "client", String], ["group", "group", String],
  ["size", "size", (value) => value.toLocaleString("en")], ["asked", "asked", String],
  ["expected", "expected", (value) => value.toFixed(1)], ["answered", "answered", String],
  ["failed", "failed", String], ["last answer", "last_answer", String], ["silent", "silent_rounds", String],
  ["share", "share", asPercent], ["intended", "intended_share", asPercent], ["finding", "finding", String],
];

function showClients() {
  const names = Object.keys(data.clients);
  const rowOf = (k) => Object.fromEntries(names.map((name) => [name, data.clients[name][k]]));
  const rows = data.rank.map((rank, k) => ({ ...rowOf(k), rank }));
  const shares = Math.min(3, decimalsOf(rows.map((row) => 100 * row.intended_share)));
  ClientTable.isFound = (row, wanted) => `${row.client} ${row.group || ""} ${row.finding || ""}`.toLowerCase()
    .includes(wanted.toLowerCase());
  ClientTable.show(rows, COLUMNS.filter(([, key]) => names.includes(key)), { share: shares, intended_share: shares }, { key: "rank", up: true });
  byId("client-search").addEventListener("input", (event) => {
    ClientTable.search = event.target.value;
    ClientTable.write();
  });
  byId("clients-back").addEventListener("click", () => ClientTable.turn(-1));
  byId("clients-next").addEventListener("click", () => ClientTable.turn(1));
  byId("clients-csv").addEventListener("click", () => download("clients", rows.map((_, k) => rowOf(k))));
}

function setTheme() {
  byId("theme").textContent = isDark() ? "Light" : "Dark";
  byId("theme").setAttribute("aria-label", `Use ${isDark() ? "light" : "dark"} colours`);
  if (data.presence) Presence.draw();
}

byId("contents").replaceChildren(...[...document.querySelectorAll("main > section:not([hidden]) > h2")].map((title) =>
  Object.assign(document.createElement("a"), { href: `#${title.id}`, textContent: title.textContent })));
byId("theme").addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  setTheme();
});
DARK.addEventListener("change", setTheme);
if (data.presence) {
  byId("presence").addEventListener("pointermove", (event) => Presence.read(event));
  byId("found-only").hidden = !data.found;
  byId("found-only").addEventListener("change", (event) => Presence.show(event.target.checked ? data.found : data.presence));
  Presence.show(data.found || data.presence);
  showClients();
}
setTheme();
