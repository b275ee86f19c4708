// One run: its own timeline as it happens, its children, and what may be done with it.

import { ask, follow, query } from "./api.js";
import { clock, confirmed, h, say, short, shown, some, span, sync, tell } from "./dom.js";
import { questions } from "./asks.js";
import { blank, take } from "./fold.js";
import { state, watch } from "./live.js";
import { row, update } from "./runs.js";

const HARD = new Set(["completed", "error", "aborted", "cleared"]);

function drawn(item) {
  if (item.kind === "note") return h(`li${item.tone ? `.${item.tone}` : ""}`, {}, h("time", {}, clock(item.at)), item.text);
  if (item.kind === "call") return h("li", {}, h("details.call", {}, h("summary", {}, h("b"), " ", h("span.chip")), h("div")));
  return h("li", {}, h(`div.text${item.kind === "reasoning" ? ".thought" : ""}`));
}

function redraw(element, item) {
  if (item.kind === "call") {
    const [head, body] = element.firstElementChild.children, key = `${item.state} ${item.typed.length}`;
    if (element.dataset.key === key) return;
    element.dataset.key = key;
    say(head.children[0], item.name);
    say(head.children[1], item.state);
    const input = item.input === undefined ? item.typed : shown(item.input);
    body.replaceChildren(h("div.faint", {}, "input"), h("pre", {}, input),
      ...(item.output === undefined ? [] : [h("div.faint", {}, item.state === "error" ? "error" : "result"), h("pre", {}, shown(item.output))]));
  } else if (item.kind !== "note") {
    say(element.firstElementChild, item.text);
    element.firstElementChild.classList.toggle("faint", Boolean(item.retracted));
  }
}

export function show(main, runId) {
  const path = `api/runs/${encodeURIComponent(runId)}`;
  const run = blank();
  const head = h("h1", {}, runId), facts = h("dl.facts"), bar = h("progress", { max: "1", "aria-label": "progress", hidden: true }), marks = h("p");
  const notice = h("p.notice", { hidden: true }), why = h("div");
  const timeline = h("ol.timeline", { "aria-label": "Timeline" }), result = h("div"), asked = h("section"), children = h("ul.rows"), childrenBox = h("section", { hidden: true }, h("h2", {}, "Its children"), h("div.group", {}, children));
  const button = (name, job, kind = "") => h(`button${kind}`, { onclick: () => act(job) }, name);
  const cancel = button("Cancel", cancelled, ".danger");
  const retry = button("Try again", async () => { await ask(`${path}/retry`, { method: "POST", body: {} }); return "It is tried again."; });
  const clear = button("Clear", cleared, ".danger");
  const explain = button("Explain", explained);
  main.append(h("p", {}, h("a", { href: "#/runs" }, "← Runs")), head, h("div.tools", {}, cancel, retry, clear, explain), notice, why, bar, marks, facts, result, asked, h("h2", {}, "Timeline"), timeline, childrenBox);
  let number = 0, waiting = false, shownFacts = {}, left = false, isGone = false;

  /** Do something, and tell the words that it gives. */
  async function act(job) {
    notice.hidden = true;
    try {
      const words = await job();
      if (words) tell(notice, words, true);
      if (!isGone) await facts_();
    } catch (problem) { tell(notice, problem.message, false); }
  }

  async function cancelled() {
    const live = children.querySelectorAll(".state.running, .state.starting").length;
    const below = live ? `, and with it what its child waits for: ${some(live, "run")} of the child ${live === 1 ? "is" : "are"} live` : "";
    if (!(await confirmed(`This run is aborted for good${below}. Detached runs of the child go on.`, "Cancel it"))) return "";
    const { status } = await ask(`${path}/cancel`, { method: "POST", body: {} });
    if (!HARD.has(status)) return "The run is aborted when its steps are undone.";
    return status === "aborted" ? "The run is aborted." : `The run had ended before (${status}), and stays as it is.`;
  }

  async function cleared() {
    const told = await ask(`${path}/at-stake`), others = told.runs - 1;
    const live = told.live ? ` ${some(told.live, "run")} of these ${told.live === 1 ? "is" : "are"} live and aborted first.` : "";
    const more = [others ? some(others, "run") + " that its child asked for" : "", told.sub_agents ? some(told.sub_agents, "sub-agent") : ""].filter(Boolean).join(" and ");
    if (!(await confirmed(`This run and its child's storage are deleted for good${more ? `, and with them ${more}` : ""}.${live}`, "Clear it"))) return "";
    isGone = true; // whatever is told of the run from here on, it is no problem that it is unknown
    try {
      await ask(path, { method: "DELETE" });
    } catch (problem) { isGone = false; throw problem; }
    for (const each of [cancel, retry, clear, explain]) each.disabled = true;
    return `The run was cleared${others ? `, with ${some(others, "run")} that its child had asked for` : ""}.`;
  }

  async function explained() {
    const told = await ask(`${path}/explain`);
    const lines = Array.isArray(told) ? told : told.lines;
    why.replaceChildren(h("pre", { "aria-label": "Explanation" }, lines.join("\n")));
  }

  async function facts_() {
    shownFacts = await ask(path);
    draw();
    const child = shownFacts.child ?? `${shownFacts.run_id}@${shownFacts.agent_type}`;
    const told = await ask(`api/runs${query({ parent: child, limit: 100 })}`);
    childrenBox.hidden = told.runs.length === 0;
    sync(children, told.runs, (each) => each.run_id, row, update);
  }

  function draw() {
    waiting = false;
    if (left) return;
    const told = shownFacts, status = run.next ? run.status : told.status ?? "starting";
    head.replaceChildren(told.display?.name ?? short(told.agent_type ?? run.info.agent_type), " ", h("small.mono", {}, runId));
    cancel.disabled = isGone || HARD.has(status);
    retry.disabled = isGone || !["error", "aborted", "interrupted"].includes(status);
    const fraction = run.progress?.fraction;
    bar.hidden = HARD.has(status) || fraction === undefined;
    if (fraction !== undefined) bar.value = fraction;
    const word = !HARD.has(status) && (state.runs.get(runId) ?? told).undoing ? "undoing" : status;
    const chips = [h(`span.state.${word}`, {}, word), " ", ...(run.attempt > 1 ? [h("span.chip.again", {}, `attempt ${run.attempt}`)] : []), ...(run.progress?.phase ? [h("span.chip", {}, run.progress.phase)] : []), ...run.milestones.map((mark) => h("span.chip.mark", {}, mark)), run.progress?.message ?? ""];
    marks.replaceChildren(...chips);
    const parent = told.parent ?? run.info.parent;
    const rows = [["agent", told.agent_type ?? run.info.agent_type], ["asked by", parent ? h("a", { href: `#/agents/${encodeURIComponent(parent)}` }, parent) : "a client"], ["tool call", told.parent_tool_call_id], ["requested", clock(told.started_at_ms)], ["took", told.completed_at_ms ? span(told.completed_at_ms - told.started_at_ms) : null], ["host", told.host], ["input", told.input_preview]];
    facts.replaceChildren(...rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    result.replaceChildren(...(run.error && !isGone ? [h("p.notice.bad", {}, run.error)] : []), ...(run.status === "completed" && run.output !== null ? [h("h2", {}, "Output"), h("pre", {}, shown(run.output))] : []));
    sync(timeline, run.items, (item) => (item.key ??= ++number), drawn, redraw);
  }

  function changed() {
    if (!waiting) { waiting = true; requestAnimationFrame(draw); }
  }

  let lastStatus = "";
  const following = follow(`${path}/events`, {
    message(frame) {
      if (!take(run, frame)) return;
      changed();
      if (run.status === lastStatus || !HARD.has((lastStatus = run.status)) || isGone) return;
      if (run.status === "cleared") act(async () => { isGone = true; return "The run was cleared."; });
      else act(async () => {});
    },
    end() { following.close(); },
    refused(problem) { if (!isGone) tell(notice, problem.message, false); },
  });
  act(async () => {});
  const leaveQuestions = questions(asked, runId);
  const unwatch = watch(() => { if (state.fresh.has(runId)) changed(); });
  return () => { left = true; following.close(); leaveQuestions(); unwatch(); };
}
