// One run: its own timeline as it happens, its children, and what may be done with it.

import { ask, follow, query } from "./api.js";
import { clock, h, say, short, shown, span, sync } from "./dom.js";
import { blank, take } from "./fold.js";
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
  const trouble = h("p.notice.bad", { role: "alert", hidden: true }), why = h("div");
  const timeline = h("ol.timeline", { "aria-label": "Timeline" }), result = h("div"), children = h("ul.rows"), childrenBox = h("section", { hidden: true }, h("h2", {}, "Its children"), h("div.group", {}, children));
  const button = (name, job, kind = "") => h(`button${kind}`, { onclick: () => act(job) }, name);
  const cancel = button("Cancel", () => ask(`${path}/cancel`, { method: "POST", body: {} }), ".danger");
  const retry = button("Try again", () => ask(`${path}/retry`, { method: "POST", body: {} }));
  const clear = button("Clear", () => ask(path, { method: "DELETE" }), ".danger");
  const explain = button("Explain", explained);
  main.append(h("p", {}, h("a", { href: "#/runs" }, "← Runs")), head, h("div.tools", {}, cancel, retry, clear, explain), trouble, why, bar, marks, facts, result, h("h2", {}, "Timeline"), timeline, childrenBox);
  let number = 0, waiting = false, shownFacts = {}, left = false;

  async function act(job) {
    trouble.hidden = true;
    try {
      await job();
      await facts_();
    } catch (problem) {
      trouble.hidden = false;
      say(trouble, problem.message);
    }
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
    cancel.disabled = HARD.has(status);
    retry.disabled = !["error", "aborted", "interrupted"].includes(status);
    const fraction = run.progress?.fraction;
    bar.hidden = HARD.has(status) || fraction === undefined;
    if (fraction !== undefined) bar.value = fraction;
    const chips = [h(`span.state.${status}`, {}, status), " ", ...(run.attempt > 1 ? [h("span.chip.again", {}, `attempt ${run.attempt}`)] : []), ...(run.progress?.phase ? [h("span.chip", {}, run.progress.phase)] : []), ...run.milestones.map((mark) => h("span.chip.mark", {}, mark)), run.progress?.message ?? ""];
    marks.replaceChildren(...chips);
    const parent = told.parent ?? run.info.parent;
    const rows = [["agent", told.agent_type ?? run.info.agent_type], ["asked by", parent ? h("a", { href: `#/agents/${encodeURIComponent(parent)}` }, parent) : "a client"], ["tool call", told.parent_tool_call_id], ["requested", clock(told.started_at_ms)], ["took", told.completed_at_ms ? span(told.completed_at_ms - told.started_at_ms) : null], ["host", told.host], ["input", told.input_preview]];
    facts.replaceChildren(...rows.filter(([, value]) => value).flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
    result.replaceChildren(...(run.error ? [h("p.notice.bad", {}, run.error)] : []), ...(run.status === "completed" && run.output !== null ? [h("h2", {}, "Output"), h("pre", {}, shown(run.output))] : []));
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
      if (run.status !== lastStatus && HARD.has((lastStatus = run.status)) && run.status !== "cleared") act(async () => {});
    },
    end() { following.close(); },
    refused(problem) { trouble.hidden = false; say(trouble, problem.message); },
  });
  act(async () => {});
  return () => { left = true; following.close(); };
}
