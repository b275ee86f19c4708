// The list: live runs, grouped by the tool call of the parent that asked for them, and the history by pages.

import { ask, query } from "./api.js";
import { clock, confirmed, h, say, short, some, span, sync, tell } from "./dom.js";
import { isOpen, state, watch } from "./live.js";

const SHOWN = 300;
const PAGE = 50;
const KEPT = 200;
const ENDED = ["completed", "error", "aborted"];
const STATUSES = ["", ...ENDED, "interrupted", "running", "starting"];

/** What may be done to all runs that are chosen: its button, its words, and the statuses of those that it can be done to. */
const VERBS = {
  cancel: { name: "Cancel all", done: "cancelled", reach: ["interrupted", "running", "starting"], more: " What waits for them is cancelled with them." },
  retry: { name: "Try all again", done: "tried again", reach: ["error", "interrupted"], more: "" },
  clear: { name: "Clear all", done: "cleared", reach: STATUSES.filter(Boolean), more: " Their children's storage and what these had asked for are deleted with them, for good." },
};

/** The name of a run for a person. */
export const title = (run) => run.display?.name ?? short(run.agent_type);

/** A row of a list, which opens the run. */
export function row(run) {
  const element = h("a.row", { href: `#/runs/${encodeURIComponent(run.run_id)}` },
    h("span.state"), h("span.name"), h("span.said"), h("span.bar", {}, h("progress", { max: "1", "aria-label": "progress" })), h("span.when"));
  const item = h("li", {}, element);
  update(item, run);
  return item;
}

/** Show a run in its row. */
export function update(item, run) {
  const [status, name, said, bar, when] = item.firstElementChild.children;
  const word = run.undoing ? "undoing" : run.status;
  status.className = `state ${word}`;
  say(status, word);
  const marks = run.milestones ?? [], key = `${title(run)} ${run.run_id} ${run.attempt} ${marks.length} ${run.progress?.phase} ${isOpen(run)}`;
  if (name.dataset.key !== key) {
    name.dataset.key = key;
    name.replaceChildren(h("b", {}, title(run)), " ", h("span.faint.mono", {}, run.run_id.slice(0, 20)), " ",
      ...(run.attempt > 1 ? [h("span.chip.again", {}, `attempt ${run.attempt}`)] : []),
      ...(isOpen(run) && run.progress?.phase ? [h("span.chip", {}, run.progress.phase)] : []),
      ...marks.slice(-3).map((mark) => h("span.chip.mark", {}, mark.name ?? mark)));
  }
  say(said, isOpen(run) ? (run.undoing ? run.outcome?.error : run.progress?.message) ?? "" : run.outcome?.error || run.outcome?.summary || "");
  const fraction = run.status === "completed" ? 1 : run.progress?.fraction;
  bar.firstElementChild.hidden = !isOpen(run) || fraction === undefined;
  if (fraction !== undefined) bar.firstElementChild.value = fraction;
  say(when, run.completed_at_ms ? span(run.completed_at_ms - run.started_at_ms) : clock(run.started_at_ms));
}

/** Do something to all runs that a wish chooses, or count them, part by part. `soFar` is told after each part. */
async function throughAll(wish, soFar = () => {}) {
  const sum = { found: 0, hit: 0, others: 0, already: 0, gone: 0, refused: 0, sample: [] };
  for (let on = {}; on;) {
    const told = await ask("api/runs/bulk", { method: "POST", body: { ...wish, ...on } });
    for (const name of ["found", "hit", "others", "already", "gone"]) sum[name] += told[name];
    sum.refused += Object.values(told.refused).reduce((all, each) => all + each, 0);
    sum.sample = sum.sample.concat(told.sample).slice(0, 5);
    on = told.next === null ? null : { before: told.next, began_ms: told.began_ms };
    soFar(sum);
  }
  return sum;
}

/** What became of runs, in words. */
function reported(sum, done) {
  const rest = [[sum.others, "others with them"], [sum.already, "so already"], [sum.gone, "gone by then, or not chosen any more"], [sum.refused, "refused"]];
  const more = rest.filter(([count]) => count).map(([count, words]) => `${count.toLocaleString()} ${words}`);
  return `${some(sum.hit, "run")} ${sum.hit === 1 ? "was" : "were"} ${done}${more.length ? `; ${more.join("; ")}` : ""}.`;
}

/** Runs by the tool call that asked for them. */
function groups(runs) {
  const found = new Map();
  for (const run of runs) {
    const key = `${run.parent ?? ""}\n${run.parent_tool_call_id ?? ""}`;
    if (!found.has(key)) found.set(key, { key, parent: run.parent, call: run.parent_tool_call_id, runs: [] });
    found.get(key).runs.push(run);
  }
  return [...found.values()];
}

const byOrder = (one, two) => (one.display_order ?? 0) - (two.display_order ?? 0) || one.started_at_ms - two.started_at_ms;

function group() {
  return h("section.group", {}, h("h3"), h("ul.rows"));
}

function updateGroup(element, { parent, call, runs }) {
  const [head, list] = element.children;
  if (head.dataset.key !== `${parent} ${call} ${runs.length}`) {
    head.dataset.key = `${parent} ${call} ${runs.length}`;
    head.replaceChildren(...(parent ? ["of ", h("a", { href: `#/agents/${encodeURIComponent(parent)}` }, parent)] : ["started by clients"]),
      ...(call ? [" · call ", h("span.mono", {}, call)] : []), ` · ${runs.length}`);
  }
  sync(list, runs.sort(byOrder), (run) => run.run_id, row, update);
}

export function show(main) {
  const live = h("div"), none = h("p.faint", {}, "Nothing is at work."), more = h("p.faint");
  const list = h("ul.rows"), next = h("button", { onclick: () => load(false) }, "Older runs"), trouble = h("p.notice.bad", { role: "alert", hidden: true });
  const status = h("select", { "aria-label": "Status", onchange: () => { reach(); load(true); } }, ...STATUSES.map((each) => h("option", { value: each }, each || "ended")));
  const text = h("input", { type: "search", placeholder: "Part of a run's id, or of an agent's type or name", "aria-label": "Agent type or run id", oninput: () => { clearTimeout(typing); typing = setTimeout(() => load(true), 250); } });
  const notice = h("p.notice", { hidden: true });
  const buttons = Object.fromEntries(Object.entries(VERBS).map(([verb, { name }]) => [verb, h(`button${verb === "retry" ? "" : ".danger"}`, { onclick: () => steer(verb) }, name)]));
  main.append(h("h1", {}, "Runs"), live, none, more, h("h2", {}, "History ", h("small", {}, "newest first")),
    h("div.tools", {}, text, status, ...Object.values(buttons)), notice, trouble, h("section.group", {}, list), next);
  let runs = [], cursor = null, typing, isAtWork = false, loading = new AbortController(), resets = state.resets;

  /** Of the statuses that are listed, those of runs to which this can be done. */
  const within = (verb) => (status.value ? [status.value] : ENDED).filter((each) => VERBS[verb].reach.includes(each));

  function reach() {
    for (const [verb, button] of Object.entries(buttons)) button.disabled = isAtWork || !within(verb).length;
  }

  async function steer(verb) {
    const { name, done, more } = VERBS[verb], q = text.value.trim(), wish = { verb, status: within(verb), ...(q ? { q } : {}) };
    isAtWork = true;
    reach();
    notice.hidden = true;
    try {
      const { found, sample } = await throughAll({ ...wish, dry_run: true });
      if (!found) return tell(notice, `There is no run that would be ${done}.`, true);
      const which = `${sample.join(", ")}${found > sample.length ? ", …" : "."}`;
      if (!(await confirmed(`${some(found, "run")} would be ${done}: ${which}${more}`, name))) return;
      const sum = await throughAll(wish, ({ hit }) => tell(notice, `${hit.toLocaleString()} of ${found.toLocaleString()} …`, true));
      tell(notice, reported(sum, done), !sum.refused);
      await load(true);
    } catch (problem) {
      tell(notice, `${problem.message}. What was done until then stays; the same button goes on with the rest.`, false);
    } finally {
      isAtWork = false;
      reach();
    }
  }

  async function load(anew) {
    if (anew) { runs = []; cursor = null; }
    loading.abort();
    loading = new AbortController();
    try {
      const told = await ask(`api/runs${query({ status: status.value ? [status.value] : ENDED, q: text.value.trim(), before: cursor, limit: PAGE })}`, { signal: loading.signal });
      const known = new Set(runs.map((run) => run.run_id));
      runs = runs.concat(told.runs.filter((run) => !known.has(run.run_id)));
      cursor = told.next;
      next.hidden = !cursor;
      trouble.hidden = true;
      draw();
    } catch (problem) {
      if (problem.name === "AbortError") return;
      trouble.hidden = false;
      say(trouble, `The history could not be read: ${problem.message}`);
    }
  }

  function draw() {
    sync(list, runs, (run) => run.run_id, row, update);
  }

  function drawLive() {
    const found = [...state.runs.values()].filter(isOpen);
    none.hidden = found.length > 0;
    more.hidden = found.length <= SHOWN;
    say(more, `${(found.length - SHOWN).toLocaleString()} more are at work.`);
    sync(live, groups(found.sort(byOrder).slice(0, SHOWN)), (each) => each.key, group, updateGroup);
    const open = !status.value && !text.value;
    if (state.resets !== resets) { resets = state.resets; load(true); return; }
    if (!state.fresh.size && !state.gone.size) return;
    runs = runs.filter((run) => !state.gone.has(run.run_id)).map((run) => ({ ...run, ...state.fresh.get(run.run_id) }));
    if (open) {
      const known = new Set(runs.map((run) => run.run_id));
      const added = [...state.fresh.values()].filter((run) => !isOpen(run) && !known.has(run.run_id) && run.started_at_ms >= (runs[0]?.started_at_ms ?? 0));
      runs = [...added.sort((one, two) => two.started_at_ms - one.started_at_ms), ...runs].slice(0, Math.max(KEPT, runs.length));
    }
    draw();
  }

  const unwatch = watch(drawLive);
  next.hidden = true;
  reach();
  drawLive();
  load(true);
  return () => { unwatch(); loading.abort(); clearTimeout(typing); };
}
