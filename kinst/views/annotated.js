"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);
const panes = { source: byId("source"), code: byId("code"), flow: byId("flow") };
const order = ["source", "code", "flow"];
let shown = 0; // number of the shown function
let rows = { source: [], code: [] }; // elements of a pane, in order
let lineAt = new Map(); // number of a line of source -> its index in rows.source
let at = { source: 0, code: 0, flow: 0 }; // the selection in each pane; in flow a block's number
let focus = "code";
const trail = []; // places from which branches were followed
let matches = [], match = -1;
let view = null; // the visible part of the graph: x, y, width, height

function element(name, kind, text) {
  const made = document.createElement(name);
  if (kind) made.className = kind;
  if (text !== undefined) made.textContent = text;
  return made;
}

function fileOf(row) {
  return row.file === undefined ? data[shown].file : data[shown].files[row.file];
}

// An instruction's line and the calls around it: FILE:LINE in FUNCTION(), in ...
function placeOf(one) {
  const source = data[shown].source;
  let k = lineAt.get(one.line), depth = source[k].depth;
  let text = fileOf(source[k]) + ":" + source[k].line;
  for (; k >= 0 && depth > 0; k--) {
    if (source[k].inlined === undefined || source[k].depth !== depth - 1) continue;
    text += "  in " + source[k].inlined + "()";
    depth--;
  }
  return text;
}

function sourceRow(one, k) {
  const row = element("div", "row " + (one.inlined ? "inlined" : one.heat || "bare"));
  row.append(element("span", "count", one.count || ""), element("span", "share", one.share || ""));
  row.append(element("span", "line", one.inlined ? "" : one.line || "?"));
  row.append(element("span", "depth", "│ ".repeat(one.depth)));
  const text = element("span", "text");
  if (one.inlined) text.append("┌ " + one.inlined + "() inlined");
  else {
    // A long line continues in the next row, with the same indentation.
    const indent = one.text.length - one.text.trimStart().length;
    text.style.setProperty("--indent", indent);
    if (one.file !== undefined) text.append(element("span", "file", fileOf(one) + " "));
    text.append(one.text.trimStart());
  }
  row.append(text);
  row.addEventListener("click", () => choose("source", k));
  return row;
}

function codeRow(one, k, before) {
  const first = before && before.block !== one.block ? " first" : "";
  const row = element("div", "row " + one.heat + first);
  row.append(element("span", "count", one.count), element("span", "share", one.share || ""));
  if (data[shown].measure) row.append(element("span", "measure", one.measure || ""));
  row.append(element("span", "at", one.at));
  row.append(element("span", "depth", "│ ".repeat(one.depth || 0)));
  const text = element("span", "text", one.text);
  if (one.taken) text.append(element("span", "note", "taken " + one.taken));
  if (one.reason) text.append(element("span", "note", "not planted: " + one.reason));
  row.append(text);
  row.addEventListener("click", () => choose("code", k));
  row.addEventListener("dblclick", follow);
  return row;
}

// The names of the columns, which stay visible.
function headOf(...columns) {
  const row = element("div", "row head");
  for (const [kind, name] of columns) row.append(element("span", kind, name));
  return row;
}

function longest(texts, least) {
  return Math.max(least, ...texts.map((text) => (text || "").length));
}

function show(number) {
  shown = (number + data.length) % data.length;
  const one = data[shown];
  byId("functions").value = shown;
  const times = one.entered === null ? "?" : one.entered.toLocaleString("en");
  const known = one.source.some((row) => row.line);
  panes.source.classList.toggle("unknown", !known);
  byId("figures").textContent = (known ? one.spot + " · " : "") + "entered " + times + " times · " +
    one.ran.toLocaleString("en") + " instructions ran";
  const widths = document.documentElement.style;
  widths.setProperty("--counts", longest([...one.source, ...one.code].map((row) => row.count), 5));
  widths.setProperty("--measures", Math.min(34, longest(
    [one.measure, ...one.code.map((row) => row.measure)], 6)));
  widths.setProperty("--offsets", longest(one.code.map((row) => row.at), 4));
  legend(one);
  byId("odd").hidden = !one.odd.length;
  byId("odd").textContent = "does not add up: " + one.odd.join("; ");
  rows.source = one.source.map(sourceRow);
  rows.code = one.code.map((row, k) => codeRow(row, k, one.code[k - 1]));
  panes.source.replaceChildren(headOf(["count", "count"], ["share", "share"], ["line", "line"],
    ["text", "source"]), ...rows.source);
  const measure = one.measure ? [["measure", one.measure]] : [];
  panes.code.replaceChildren(headOf(["count", "count"], ["share", "share"], ...measure,
    ["at", "at"], ["text", "instruction"]), ...rows.code);
  lineAt = new Map(one.source.map((row, k) => [row.id, k]));
  for (const graph of panes.flow.children) {
    graph.style.display = +graph.dataset.function === shown ? "block" : "none";
  }
  trail.length = 0;
  zoomReadable();
  search();
  choose("code", 0);
}

// The legend of colours and counts.
function legend(one) {
  const ramp = element("span", "ramp");
  for (let k = 1; k <= 10; k++) {
    const step = element("i", "h" + k);
    step.style.background = "var(--heat)";
    ramp.append(step);
  }
  byId("legend").replaceChildren("count 1", ramp, one.most.toLocaleString("en"));
}

function graph() {
  return panes.flow.querySelector('.graph[data-function="' + shown + '"] svg');
}

function blocks() {
  return [...graph().querySelectorAll(".block")].map((g) => +g.dataset.block).sort((a, b) => a - b);
}

// A line of source and the lines that are inlined below it.
function under(k) {
  const source = data[shown].source, found = [k];
  const depth = source[k].depth;
  for (let n = k + 1; n < source.length; n++) {
    const inner = source[n].depth > depth || (source[n].depth === depth && source[n].inlined);
    if (!inner) break;
    found.push(n);
  }
  return found;
}

function choose(pane, k, quiet) {
  const one = data[shown];
  let code = [], line = -1, block = -1;
  if (pane === "code") {
    code = [k];
    line = lineAt.get(one.code[k].line);
    block = one.code[k].block;
  } else if (pane === "source") {
    line = k;
    const lines = new Set(under(k).map((n) => one.source[n].id));
    code = one.code.flatMap((row, n) => lines.has(row.line) ? [n] : []);
    block = code.length ? one.code[code[0]].block : -1;
  } else {
    block = k;
    code = one.code.flatMap((row, n) => row.block === k ? [n] : []);
    line = lineAt.get(one.code[code[0]].line);
  }
  at[pane] = k;
  if (pane !== "code" && code.length) at.code = code[0];
  if (pane !== "source" && line >= 0) at.source = line;
  if (pane !== "flow" && block >= 0) at.flow = block;
  const inBlocks = new Set(code.map((n) => one.code[n].block));
  rows.code.forEach((row, n) => {
    row.classList.toggle("chosen", code.includes(n) && (pane === "code" || n === code[0]));
    row.classList.toggle("near", code.includes(n) && !(pane === "code" || n === code[0]));
  });
  const lines = new Set(code.map((n) => lineAt.get(one.code[n].line)));
  rows.source.forEach((row, n) => {
    row.classList.toggle("chosen", n === line);
    row.classList.toggle("near", n !== line && pane !== "source" && lines.has(n));
  });
  for (const g of graph().querySelectorAll(".block")) {
    g.classList.toggle("chosen", inBlocks.has(+g.dataset.block));
  }
  for (const g of graph().querySelectorAll(".edge")) {
    g.classList.toggle("near", +g.dataset.from === block || +g.dataset.to === block);
  }
  if (line >= 0) reveal(rows.source[line], panes.source, pane === "source");
  if (code.length) reveal(rows.code[code[0]], panes.code, pane === "code");
  if (block >= 0) revealBlock(block);
  const here = code.length ? one.code[code[0]] : null;
  byId("details").textContent = !here ? "no instructions of this line"
    : here.at + "  " + here.bytes.replace(/../g, "$& ") + " " + placeOf(here) +
      (here.measure ? "  " + one.measure + ": " + here.measure : "");
  if (!quiet) focusOn(pane);
}

function reveal(row, pane, itself) {
  if (!pane.clientHeight) return;
  const top = row.offsetTop, low = top + row.offsetHeight;
  if (top >= pane.scrollTop + 24 && low <= pane.scrollTop + pane.clientHeight - 24) return;
  pane.scrollTop = itself && Math.abs(top - pane.scrollTop) < 2 * pane.clientHeight
    ? (top < pane.scrollTop + 24 ? top - 40 : low - pane.clientHeight + 40)
    : top - pane.clientHeight / 3;
}

function focusOn(pane) {
  focus = pane;
  current();
  panes[pane].focus({ preventScroll: true });
}

// A narrow window shows only the pane with the focus.
function current() {
  const hidden = !panes.flow.clientWidth;
  for (const name of order) panes[name].classList.toggle("current", name === focus);
  for (const button of byId("panes").children) {
    button.classList.toggle("current", button.dataset.pane === focus);
  }
  if (hidden && panes.flow.clientWidth) {
    zoomReadable();
    revealBlock(at.flow);
  }
  const row = focus === "flow" ? null : rows[focus][at[focus]];
  if (row) reveal(row, panes[focus], false);
}

// The visible part of the flow graph.
function setView(x, y, width, height) {
  view = { x, y, width, height };
  graph().setAttribute("viewBox", [x, y, width, height].join(" "));
}

// At first large enough to read, around the first block of the function.
function zoomReadable() {
  const svg = graph(), wide = +svg.dataset.width;
  const width = Math.max(0.8 * panes.flow.clientWidth, Math.min(wide, 1.1 * panes.flow.clientWidth));
  const rect = svg.querySelector(".block rect");
  const middle = rect ? +rect.getAttribute("x") + +rect.getAttribute("width") / 2 : wide / 2;
  setView(wide <= width ? (wide - width) / 2 : middle - width / 2, 0, width,
    width * panes.flow.clientHeight / Math.max(1, panes.flow.clientWidth));
}

function wholeGraph() {
  const svg = graph();
  const ratio = panes.flow.clientWidth / Math.max(1, panes.flow.clientHeight);
  const wide = +svg.dataset.width, high = +svg.dataset.height;
  const width = Math.max(wide, high * ratio);
  setView((wide - width) / 2, 0, width, width / ratio);
}

function zoom(factor, x, y) {
  const cx = x === undefined ? view.x + view.width / 2 : x;
  const cy = y === undefined ? view.y + view.height / 2 : y;
  setView(cx - (cx - view.x) * factor, cy - (cy - view.y) * factor,
    view.width * factor, view.height * factor);
}

function revealBlock(block) {
  const rect = graph().querySelector('.block[data-block="' + block + '"] rect');
  if (!rect) return;
  const [x, y, w, h] = ["x", "y", "width", "height"].map((name) => +rect.getAttribute(name));
  let left = view.x, top = view.y;
  if (x < view.x || x + w > view.x + view.width) left = x + w / 2 - view.width / 2;
  if (y < view.y || y + h > view.y + view.height) top = y + h / 2 - view.height / 2;
  if (left !== view.x || top !== view.y) setView(left, top, view.width, view.height);
}

function seen(row) {
  return row.offsetParent !== null;
}

function step(by) {
  if (focus === "flow") {
    const all = blocks();
    const k = Math.min(all.length - 1, Math.max(0, all.indexOf(at.flow) + by));
    choose("flow", all[k]);
    return;
  }
  const here = rows[focus], forward = by > 0;
  let k = at[focus], last = k;
  for (let left = Math.abs(by); left > 0;) {
    k += forward ? 1 : -1;
    if (k < 0 || k >= here.length) break;
    if (seen(here[k])) { last = k; left--; }
  }
  choose(focus, last);
}

function follow() {
  const here = data[shown].code[at.code];
  if (here.target === undefined) return;
  trail.push(at.code);
  choose("code", here.target);
}

function hottest() {
  const heat = (n) => +(data[shown].code[n].heat.slice(1)) || 0;
  const firsts = data[shown].code.flatMap((row, n, all) =>
    !n || all[n - 1].block !== row.block ? [n] : []);
  const most = Math.max(...firsts.map(heat));
  const hot = firsts.filter((n) => heat(n) === most);
  choose("code", hot.find((n) => n > at.code) ?? hot[0]);
}

function search() {
  const asked = byId("search").value;
  let wanted = null;
  try { wanted = asked ? new RegExp(asked, "i") : null; } catch (error) { wanted = null; }
  matches = [];
  match = -1;
  for (const pane of ["source", "code"]) {
    rows[pane].forEach((row, n) => {
      const hit = wanted !== null && wanted.test(row.textContent);
      row.classList.toggle("match", hit);
      if (hit) matches.push([pane, n]);
    });
  }
  byId("found").textContent = asked ? matches.length + " found" : "";
}

function nextMatch(by) {
  if (!matches.length) return;
  match = match < 0 && by < 0 ? matches.length - 1 : (match + by + matches.length) % matches.length;
  byId("found").textContent = match + 1 + " of " + matches.length;
  choose(...matches[match]);
}

const keys = {
  j: () => step(1), k: () => step(-1), ArrowDown: () => step(1), ArrowUp: () => step(-1),
  ArrowRight: () => focusOn(order[(order.indexOf(focus) + 1) % 3]),
  ArrowLeft: () => focusOn(order[(order.indexOf(focus) + 2) % 3]),
  PageDown: () => step(20), PageUp: () => step(-20),
  Home: () => step(-1e6), End: () => step(1e6),
  1: () => focusOn("source"), 2: () => focusOn("code"), 3: () => focusOn("flow"),
  Enter: follow, b: () => { if (trail.length) choose("code", trail.pop()); },
  h: hottest, e: () => document.body.classList.toggle("ran"),
  "/": () => byId("search").focus(), n: () => nextMatch(1), N: () => nextMatch(-1),
  "[": () => show(shown - 1), "]": () => show(shown + 1),
  "+": () => zoom(0.8), "=": () => zoom(0.8), "-": () => zoom(1.25), 0: wholeGraph,
  "?": () => byId("help").showModal(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (event.target === byId("search")) {
    if (event.key === "Enter") { search(); nextMatch(1); }
    else if (event.key === "Escape") { byId("search").value = ""; search(); focusOn(focus); }
    else return;
    event.preventDefault();
    return;
  }
  if (event.target === byId("functions") && event.key !== "[" && event.key !== "]") return;
  const found = keys[event.key];
  if (!found) return;
  event.preventDefault();
  found();
});
for (const name of order) {
  panes[name].addEventListener("focus", () => {
    if (focus === name) return;
    focus = name;
    current();
  });
}
for (const button of byId("panes").children) {
  button.addEventListener("click", () => focusOn(button.dataset.pane));
}
byId("search").addEventListener("input", search);
byId("help-button").addEventListener("click", keys["?"]);
byId("functions").addEventListener("change", (event) => show(+event.target.value));
data.forEach((one, k) => byId("functions").append(new Option(one.name, k)));

panes.flow.addEventListener("click", (event) => {
  const block = event.target.closest(".block");
  if (block) choose("flow", +block.dataset.block);
});
panes.flow.addEventListener("wheel", (event) => {
  event.preventDefault();
  const scale = view.width / panes.flow.clientWidth;
  if (event.ctrlKey) {
    const box = panes.flow.getBoundingClientRect();
    zoom(event.deltaY > 0 ? 1.15 : 0.87, view.x + (event.clientX - box.left) * scale,
      view.y + (event.clientY - box.top) * scale);
  } else setView(view.x + event.deltaX * scale, view.y + event.deltaY * scale, view.width, view.height);
}, { passive: false });
panes.flow.addEventListener("pointermove", (event) => {
  if (event.buttons !== 1) return;
  const scale = view.width / panes.flow.clientWidth;
  setView(view.x - event.movementX * scale, view.y - event.movementY * scale, view.width, view.height);
});
addEventListener("resize", () => { zoomReadable(); revealBlock(at.flow); });

show(0);
// #FUNCTION+OFFSET selects an instruction, for links.
const wanted = decodeURIComponent(location.hash.slice(1)).match(/^(.+?)(\+\d+)?$/);
const named = wanted ? data.findIndex((one) => one.name === wanted[1]) : -1;
if (named >= 0) {
  show(named);
  const row = data[named].code.findIndex((one) => one.at === wanted[2]);
  if (row >= 0) choose("code", row);
}
