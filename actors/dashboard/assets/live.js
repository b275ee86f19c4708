// What happens now, in the whole runtime: counts, hosts, live runs. One line to the gateway; whoever is interested is told once a frame.
//
// `runs` are those that have not ended; `fresh` are those that have changed since the last frame, `gone` those that were cleared. `ended` and
// `recoveries` count what this page has seen.

import { follow } from "./api.js";

const OPEN = new Set(["starting", "running", "interrupted"]); // an interrupted run is not live, and a late result repairs it
const KEPT_MS = 15 * 60_000;

export const state = { overview: null, runs: new Map(), history: [], isUp: false, recoveries: 0, ended: 0, resets: 0, fresh: new Map(), gone: new Set() };
const listeners = new Set();
let told = false;

/** Be told of changes, at most once a frame. Returns the way to end it. */
export function watch(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function changed() {
  if (told) return;
  told = true;
  const tell = () => {
    told = false;
    for (const listener of [...listeners]) listener();
    state.fresh.clear();
    state.gone.clear();
  };
  if (document.visibilityState === "visible") requestAnimationFrame(tell); else setTimeout(tell, 250);
}

/** Whether a run may still change by itself. */
export const isOpen = (run) => OPEN.has(run.status);

function takeRun(run) {
  const before = state.runs.get(run.run_id);
  if (before && run.attempt > before.attempt) state.recoveries += run.attempt - before.attempt;
  if (isOpen(run)) state.runs.set(run.run_id, { ...before, ...run });
  else {
    state.ended += 1;
    state.runs.delete(run.run_id);
  }
  state.fresh.set(run.run_id, run);
}

function takeCounts(told) {
  state.overview = { ...state.overview, ...told };
  const now = Date.now();
  const count = (...names) => names.reduce((sum, name) => sum + (told.runs?.[name] ?? 0), 0);
  state.history.push({ at: now, ended: state.ended, live: count("running", "starting"), recoveries: state.recoveries, ...commits(told.supervisor) });
  while (state.history[0].at < now - KEPT_MS) state.history.shift();
}

/** The commits of the supervisor's life: how many, and how long they took together. */
function commits(supervisor) {
  return { pid: supervisor?.pid, commits: supervisor?.commits ?? 0, commitMs: supervisor?.commit_ms ?? 0 };
}

/** Begin. */
export function begin(line) {
  follow("api/live", {
    up() { state.isUp = true; line("up", "live"); },
    down() { state.isUp = false; line("down", "the line is lost; trying again"); },
    refused(problem) { line("down", problem.status === 401 ? "a token is needed: open /?token=…" : problem.message); },
    overview(told) {
      state.runs = new Map(told.live.map((run) => [run.run_id, run]));
      takeCounts(told);
      changed();
    },
    counts(told) { takeCounts(told); changed(); },
    runs(told) {
      for (const run of told.runs) takeRun(run);
      for (const id of told.gone) { state.runs.delete(id); state.gone.add(id); }
      changed();
    },
    state(told) { line(told.supervisor === "silent" ? "down" : "up", told.supervisor === "silent" ? "the supervisor is silent; it is started again" : "live"); },
    reset() { state.resets += 1; changed(); },
  });
}
