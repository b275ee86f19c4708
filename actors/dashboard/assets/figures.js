// Figures over the last minutes, as this page has seen them.

import { h, say } from "./dom.js";
import { state, watch } from "./live.js";

const SPAN_MS = 5 * 60_000;
const OVER_MS = 5000; // over which a rate is taken
const SVG = "http://www.w3.org/2000/svg";

const FIGURES = [
  { name: "runs ended per second", unit: "/s", value: rate((point) => point.ended) },
  { name: "runs at work", unit: "", value: (point) => point.live },
  { name: "a commit takes", unit: " ms", value: commitTime },
  { name: "recoveries per minute", unit: "/min", value: rate((point) => point.recoveries * 60) },
];

/** How fast a count grows, a second. */
function rate(count) {
  return (point, before) => (before && point.at > before.at ? Math.max(0, (count(point) - count(before)) / ((point.at - before.at) / 1000)) : null);
}

/** How long a commit took on average. A new supervisor counts from the beginning. */
function commitTime(point, before) {
  const count = before && point.pid === before.pid ? point.commits - before.commits : 0;
  return count > 0 ? (point.commitMs - before.commitMs) / count : null;
}

function figure({ name }) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("viewBox", "0 0 300 90");
  drawing.setAttribute("preserveAspectRatio", "none");
  drawing.setAttribute("role", "img");
  drawing.setAttribute("aria-label", name);
  for (const kind of ["area", "stroke"]) {
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("class", kind);
    drawing.append(path);
  }
  return h("figure", {}, h("figcaption", {}, h("span", {}, name), h("b")), drawing);
}

function draw(element, { unit, value }) {
  const now = Date.now(), points = [];
  for (let at = 1, before = 0; at < state.history.length; at += 1) {
    while (state.history[at].at - state.history[before + 1].at >= OVER_MS) before += 1;
    const found = value(state.history[at], state.history[before]);
    if (found !== null && state.history[at].at > now - SPAN_MS) points.push([300 - ((now - state.history[at].at) / SPAN_MS) * 300, found]);
  }
  const most = Math.max(1e-9, ...points.map(([, y]) => y));
  const line = points.map(([x, y], at) => `${at ? "L" : "M"}${x.toFixed(1)} ${(86 - (y / most) * 80).toFixed(1)}`).join("");
  const [area, stroke] = element.querySelectorAll("path");
  stroke.setAttribute("d", line);
  area.setAttribute("d", points.length ? `${line}L${points.at(-1)[0].toFixed(1)} 90L${points[0][0].toFixed(1)} 90Z` : "");
  const newest = points.at(-1)?.[1];
  say(element.querySelector("b"), newest === undefined ? "–" : `${newest.toLocaleString([], { maximumFractionDigits: newest < 10 ? 1 : 0 })}${unit} · most ${most.toLocaleString([], { maximumFractionDigits: most < 10 ? 1 : 0 })}`);
}

export function show(main) {
  const drawn = FIGURES.map((each) => [figure(each), each]);
  main.append(h("h1", {}, "Figures ", h("small", {}, "the last five minutes, since this page was opened")), h("div.plots", {}, ...drawn.map(([element]) => element)));
  const all = () => drawn.forEach(([element, each]) => draw(element, each));
  all();
  return watch(all);
}
