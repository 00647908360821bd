"use strict";
const frames = [...document.querySelectorAll("#frames > g")];
const byId = (name) => document.getElementById(name);
const letter = +byId("frames").dataset.letter;
const picture = byId("frames").ownerSVGElement;
const whole = frames[0];
let zoomed = whole;

// Frames are as wide as their share of what is shown; labels are cut to fit.
function show(chosen) {
  zoomed = chosen;
  const low = +chosen.dataset.x, size = +chosen.dataset.w;
  const across = 0.974 * picture.getBoundingClientRect().width || 1200;
  for (const g of frames) {
    const start = +g.dataset.x, total = +g.dataset.w;
    const left = Math.max(start, low), right = Math.min(start + total, low + size);
    const share = 100 * (right - left) / size;
    g.style.display = share >= 0.025 ? "" : "none";
    if (share <= 0) continue;
    const [rect, text] = [g.querySelector("rect"), g.querySelector("text")];
    const x = 100 * (left - low) / size + "%";
    rect.setAttribute("x", x);
    rect.setAttribute("width", share + "%");
    text.setAttribute("x", x);
    text.textContent = cut(g.dataset.n, share * across / 100 - 6);
    g.classList.toggle("faded", total > size);
  }
  byId("reset").textContent = chosen === whole ? "" : "whole width";
}

function cut(name, pixels) {
  const letters = Math.floor(pixels / letter);
  if (letters < 3) return "";
  return name.length <= letters ? name : name.slice(0, letters - 1) + "…";
}

// The figures of a frame, below the picture; the end of a long name is cut.
function tell(g) {
  const told = g.querySelector("title").textContent;
  const [name, figures] = [g.dataset.n, told.slice(g.dataset.n.length)];
  const across = picture.getBoundingClientRect().width - 32;
  byId("details").textContent = cut(name, across - 6.7 * figures.length) + figures;
}

function search() {
  const asked = prompt("frames that match this regular expression", "");
  if (asked === null) return;
  let wanted = null;
  try { wanted = asked ? new RegExp(asked) : null; } catch (error) { alert(error.message); return; }
  let covered = 0, end = 0;
  for (const g of frames) {
    const hit = wanted !== null && wanted.test(g.dataset.n);
    g.classList.toggle("match", hit);
    // Callers come before their callees: a match below a matching caller is not counted again.
    if (hit && +g.dataset.x >= end) {
      covered += +g.dataset.w;
      end = +g.dataset.x + +g.dataset.w;
    }
  }
  byId("details").textContent = " ";
  byId("found").textContent = wanted === null ? " "
    : "matched: " + (100 * covered / +whole.dataset.w).toFixed(2) + "%";
}

for (const g of frames) {
  g.addEventListener("click", () => { show(g); tell(g); });
  g.addEventListener("mouseover", () => tell(g));
}
byId("search").textContent = "search";
byId("reset").addEventListener("click", () => show(whole));
byId("search").addEventListener("click", search);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" || ((event.ctrlKey || event.metaKey) && event.key === "f")) {
    event.preventDefault();
    search();
  } else if (event.key === "Escape") show(whole);
});
addEventListener("resize", () => show(zoomed));
show(whole);
