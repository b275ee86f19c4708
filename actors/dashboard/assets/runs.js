// The list: live runs, grouped by the tool call of the parent that asked for them, and the history by pages.

import { ask, query } from "./api.js";
import { clock, h, say, short, span, sync } from "./dom.js";
import { isOpen, state, watch } from "./live.js";

const SHOWN = 300;
const PAGE = 50;
const KEPT = 200;
const ENDED = ["completed", "error", "aborted"];
const STATUSES = ["", ...ENDED, "interrupted", "running", "starting"];

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
  status.className = `state ${run.status}`;
  say(status, run.status);
  const marks = run.milestones ?? [], key = `${title(run)} ${run.run_id} ${run.attempt} ${marks.length} ${run.progress?.phase} ${isOpen(run)}`;
  if (name.dataset.key !== key) {
    name.dataset.key = key;
    name.replaceChildren(h("b", {}, title(run)), " ", h("span.faint.mono", {}, run.run_id.slice(0, 20)), " ",
      ...(run.attempt > 1 ? [h("span.chip.again", {}, `attempt ${run.attempt}`)] : []),
      ...(isOpen(run) && run.progress?.phase ? [h("span.chip", {}, run.progress.phase)] : []),
      ...marks.slice(-3).map((mark) => h("span.chip.mark", {}, mark.name ?? mark)));
  }
  say(said, isOpen(run) ? run.progress?.message ?? "" : run.outcome?.error || run.outcome?.summary || "");
  const fraction = run.status === "completed" ? 1 : run.progress?.fraction;
  bar.firstElementChild.hidden = !isOpen(run) || fraction === undefined;
  if (fraction !== undefined) bar.firstElementChild.value = fraction;
  say(when, run.completed_at_ms ? span(run.completed_at_ms - run.started_at_ms) : clock(run.started_at_ms));
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
  const status = h("select", { "aria-label": "Status", onchange: () => load(true) }, ...STATUSES.map((each) => h("option", { value: each }, each || "ended")));
  const text = h("input", { type: "search", placeholder: "Part of a run's id, or of an agent's type or name", "aria-label": "Agent type or run id", oninput: () => { clearTimeout(typing); typing = setTimeout(() => load(true), 250); } });
  main.append(h("h1", {}, "Runs"), live, none, more, h("h2", {}, "History ", h("small", {}, "newest first")),
    h("div.tools", {}, text, status), trouble, h("section.group", {}, list), next);
  let runs = [], cursor = null, typing, loading = new AbortController(), resets = state.resets;

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
  drawLive();
  load(true);
  return () => { unwatch(); loading.abort(); clearTimeout(typing); };
}
