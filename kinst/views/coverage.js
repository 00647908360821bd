"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);
const panes = { files: byId("files"), source: byId("source") };
const fileRows = [...document.querySelectorAll("tr.file")];
let shown = -1; // number of the shown file
let rows = []; // elements of the source that have a line, in order
let at = -1; // index of the selected row

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

// A line's row: how often it ran, how many of its branches' ways were taken, its text.
function lineRow(file, line, text) {
  const count = file.lines[line], ways = file.branches[line];
  const kind = count === undefined ? "" : !count ? "missed"
    : ways && ways[0] < ways[1] ? "partly" : "hit";
  const row = element("div", "row " + kind);
  row.dataset.line = line;
  row.append(element("span", "count", count === undefined ? "" : count.toLocaleString("en")));
  row.append(element("span", "ways", ways ? ways[0] + "/" + ways[1] : ""));
  row.append(element("span", "line", line));
  const shownText = element("span", "text", text.trimStart());
  shownText.style.setProperty("--indent", text.length - text.trimStart().length);
  row.append(shownText);
  return row;
}

function functionRow(line, name, count) {
  const row = element("div", "row function");
  row.append(element("span", "count", count.toLocaleString("en")), element("span", "ways", ""),
    element("span", "line", ""), element("span", "text", "┌ " + name + "()" +
      (count ? "" : "  never called")));
  return row;
}

function show(number, line) {
  shown = number;
  const file = data.files[number];
  fileRows.forEach((row) => row.classList.toggle("chosen", +row.dataset.file === number));
  const head = element("h1", "", file.path + " ");
  head.append(element("small", "", file.figures));
  const made = [head];
  if (file.note) made.push(element("p", "note", file.note));
  const starts = new Map();
  for (const [start, name, count] of file.functions) {
    starts.set(start, [...(starts.get(start) || []), functionRow(start, name, count)]);
  }
  const least = Math.max(5, ...Object.values(file.lines).map((n) => n.toLocaleString("en").length));
  document.documentElement.style.setProperty("--counts", least);
  let before = 0;
  for (const [first, texts] of file.source) {
    if (before && first > before + 1) made.push(element("div", "row gap", "⋯"));
    texts.forEach((text, k) => {
      made.push(...(starts.get(first + k) || []), lineRow(file, first + k, text));
    });
    before = first + texts.length - 1;
  }
  panes.source.replaceChildren(...made);
  rows = made.filter((row) => row.dataset.line !== undefined);
  rows.forEach((row, k) => row.addEventListener("click", () => choose(k)));
  at = -1;
  // Skip comments at the beginning.
  const code = rows.find((row) => row.matches(".hit, .partly")) ||
    rows.find((row) => row.matches(".missed"));
  panes.source.scrollTop = code ? Math.max(0, code.offsetTop - 90) : 0;
  byId("details").textContent = " ";
  if (line) choose(rows.findIndex((row) => +row.dataset.line === line));
  history.replaceState(null, "", "#" + file.path + (line ? ":" + line : ""));
}

function choose(k) {
  if (!rows[k]) return;
  if (rows[at]) rows[at].classList.remove("chosen");
  at = k;
  rows[k].classList.add("chosen");
  rows[k].scrollIntoView({ block: "center" });
  const file = data.files[shown], line = +rows[k].dataset.line;
  const count = file.lines[line], ways = file.branches[line];
  byId("details").textContent = file.path + ":" + line + "  " +
    (count === undefined ? "no count" : count ? "ran " + count.toLocaleString("en") + " times"
      : "never ran") + (ways ? ", " + ways[0] + " of " + ways[1] + " ways of its branches" : "");
  history.replaceState(null, "", "#" + file.path + ":" + line);
}

// Go to the next group of lines that never ran.
function nextMissed(by) {
  const missed = (k) => rows[k] && rows[k].classList.contains("missed");
  const code = (k) => rows[k] && rows[k].matches(".hit, .partly");
  let k = at < 0 && by < 0 ? rows.length : at;
  while (missed(k) || (rows[k] && !code(k))) k += by;
  for (k += by; k >= 0 && k < rows.length; k += by) if (missed(k)) return choose(k);
}

function step(by) {
  const seen = fileRows.filter((row) => !row.hidden);
  const k = seen.findIndex((row) => +row.dataset.file === shown);
  const next = seen[Math.min(seen.length - 1, Math.max(0, k + by))];
  if (next) show(+next.dataset.file);
  if (next) next.scrollIntoView({ block: "nearest" });
}

function current(pane) {
  for (const name of Object.keys(panes)) panes[name].classList.toggle("current", name === pane);
  for (const button of byId("panes").children) {
    button.classList.toggle("current", button.dataset.pane === pane);
  }
}

for (const row of fileRows) {
  row.addEventListener("click", () => { show(+row.dataset.file); current("source"); });
}
for (const button of byId("panes").children) {
  button.addEventListener("click", () => current(button.dataset.pane));
}
byId("search").addEventListener("input", () => {
  const wanted = byId("search").value.toLowerCase();
  for (const row of fileRows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
});
const keys = {
  n: () => nextMissed(1), N: () => nextMissed(-1), "[": () => step(-1), "]": () => step(1),
  j: () => choose(Math.min(at + 1, rows.length - 1)), k: () => choose(Math.max(at - 1, 0)),
  "/": () => byId("search").focus(),
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target === byId("search")) return;
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
});
// #FILE:LINE selects a line, for links.
const asked = decodeURIComponent(location.hash.slice(1)).match(/^(.+?)(?::(\d+))?$/);
const named = asked ? data.files.findIndex((one) => one.path === asked[1]) : -1;
current(named >= 0 ? "source" : "files");
const seen = (one) => Object.values(one.lines).filter((count) => count).length;
const most = data.files.reduce((best, one, k) => seen(one) > seen(data.files[best]) ? k : best, 0);
if (data.files.length) show(named >= 0 ? named : most, named >= 0 && asked[2] ? +asked[2] : undefined);
