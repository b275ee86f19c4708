// The page: which view is shown, the counts, and the keys.

import { takeToken } from "./api.js";
import { h, say, sync } from "./dom.js";
import { begin, state, watch } from "./live.js";

takeToken();

const VIEWS = {
  runs: () => import("./runs.js"),
  run: () => import("./run.js"),
  asks: () => import("./asks.js"),
  agents: () => import("./agents.js"),
  agent: () => import("./agent.js"),
  hosts: () => import("./hosts.js"),
  figures: () => import("./figures.js"),
};
const main = document.getElementById("main");
let leave = () => {}, entered = 0;

/** The view and its argument from the address: `#/runs`, `#/runs/ID`, `#/agents/ID`, … */
function place() {
  const [name = "runs", ...rest] = location.hash.replace(/^#\/?/, "").split("?")[0].split("/");
  const argument = rest.map(decodeURIComponent).join("/");
  if (argument && name === "runs") return ["run", argument];
  if (argument && name === "agents") return ["agent", argument];
  return [name in VIEWS ? name : "runs", ""];
}

async function enter() {
  const [name, argument] = place(), mine = ++entered;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.getAttribute("href").startsWith(`#/${name.replace(/s$/, "")}`)) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  leave();
  leave = () => {};
  const view = await VIEWS[name]();
  if (mine !== entered) return;
  main.replaceChildren();
  main.known = undefined;
  leave = view.show(main, argument) ?? (() => {});
  document.title = `${main.querySelector("h1")?.textContent ?? "Runs"} · Perdure`;
}

const COUNTED = [["live", ["starting", "running"]], ["interrupted", ["interrupted"]], ["completed", ["completed"]], ["failed", ["error", "aborted"]]];

function counts() {
  const open = state.overview?.asks?.open ?? 0, asked = document.getElementById("asks");
  asked.hidden = open === 0;
  say(asked, open.toLocaleString());
  const runs = state.overview?.runs;
  if (!runs) return;
  const found = COUNTED.map(([name, statuses]) => [name, statuses.reduce((sum, status) => sum + (runs[status] ?? 0), 0)]).filter(([name, count]) => count || name !== "interrupted");
  sync(document.getElementById("counts"), found, ([name]) => name,
    ([name]) => h("div", {}, h("dt", {}, name), h("dd")),
    (element, [, count]) => say(element.lastChild, count.toLocaleString()));
}

function keys(event) {
  if (event.target.matches("input, select, textarea") || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const rows = [...main.querySelectorAll("a.row, article.ask")], at = rows.findIndex((each) => each.contains(document.activeElement));
  const go = { 1: "#/runs", 2: "#/asks", 3: "#/agents", 4: "#/hosts", 5: "#/figures" }[event.key];
  if (go) location.hash = go;
  else if (event.key === "j") rows[Math.min(at + 1, rows.length - 1)]?.focus();
  else if (event.key === "k") rows[Math.max(at - 1, 0)]?.focus();
  else if (event.key === "u") history.back();
  else if (event.key === "/") { event.preventDefault(); main.querySelector("input")?.focus(); }
  else if (event.key === "?") document.getElementById("help").showModal();
}

const line = document.getElementById("line");
begin((how, text) => { line.className = how; say(line, text); });
watch(counts);
addEventListener("hashchange", () => { enter(); main.focus({ preventScroll: true }); scrollTo(0, 0); });
addEventListener("keydown", keys);
enter();
