// What happens now, in the whole runtime: counts, hosts, live runs. One line to the gateway; whoever is interested is told once a frame.

import { follow } from "./api.js";

const LIVE = new Set(["starting", "running", "interrupted"]);
const KEPT_MS = 15 * 60_000;

export const state = { overview: null, runs: new Map(), history: [], isUp: false, recoveries: 0, ended: 0 };
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
  const tell = () => { told = false; for (const listener of [...listeners]) listener(); };
  if (document.visibilityState === "visible") requestAnimationFrame(tell); else setTimeout(tell, 250);
}

/** Whether a run may still change by itself. */
export const isLive = (run) => LIVE.has(run.status);

function takeRun(run) {
  const before = state.runs.get(run.run_id);
  if (before && run.attempt > before.attempt) state.recoveries += run.attempt - before.attempt;
  if (isLive(run)) state.runs.set(run.run_id, { ...before, ...run });
  else {
    if (before) state.ended += 1;
    state.runs.delete(run.run_id);
  }
  state.newest = run;
}

function takeOverview(overview) {
  state.overview = overview;
  const now = Date.now();
  const done = ["completed", "error", "aborted"].reduce((sum, name) => sum + (overview.runs?.[name] ?? 0), 0);
  state.history.push({ at: now, done, live: (overview.runs?.running ?? 0) + (overview.runs?.starting ?? 0), commit: overview.commit_ms ?? null, recoveries: overview.recoveries ?? state.recoveries });
  while (state.history.length && state.history[0].at < now - KEPT_MS) state.history.shift();
  if (overview.live) {
    const named = new Set(overview.live.map((run) => run.run_id));
    for (const run of overview.live) takeRun(run);
    if (overview.live_is_whole) for (const id of state.runs.keys()) if (!named.has(id)) state.runs.delete(id);
  }
}

/** Begin. */
export function begin(line) {
  follow("api/live", {
    up() { state.isUp = true; line("up", "live"); },
    down() { state.isUp = false; line("down", "the line is lost; trying again"); },
    refused(problem) { line("down", problem.status === 401 ? "a token is needed: open /?token=…" : problem.message); },
    overview(told) { takeOverview(told); changed(); },
    run(told) { takeRun(told); changed(); },
    cleared(told) { state.runs.delete(told.run_id); changed(); },
    reset() { state.runs.clear(); changed(); },
  });
}
