// Folds the numbered events of one run into what a person sees: a timeline, and the state at its head.
//
// Events are applied in the order of their numbers, each once, whatever comes twice or too early: the same rules as those of
// `actors/events/reducer.py`. A new attempt begins with nothing; what the earlier ones wrote stays in the timeline, marked as theirs.

const ENDS = { finished: "completed", error: "error", aborted: "aborted" };

/** A run of which nothing is known yet. */
export function blank() {
  return { next: 0, waiting: new Map(), status: "starting", attempt: 1, progress: null, milestones: [], items: [], calls: new Map(), open: new Map(), info: {}, error: "", summary: "", output: null };
}

/** Take an event. Returns whether anything was applied. */
export function take(run, frame) {
  if (frame.event?.kind === "cleared") { run.status = "cleared"; return true; }
  if (frame.sequence < run.next) return false;
  run.waiting.set(frame.sequence, frame.event);
  let applied = false;
  while (run.waiting.has(run.next)) {
    const event = run.waiting.get(run.next);
    run.waiting.delete(run.next++);
    apply(run, event);
    applied = true;
  }
  return applied;
}

function apply(run, event) {
  const at = event.at_ms;
  switch (event.kind) {
    case "started":
      run.info = { ...event };
      run.status = "running";
      run.items.push({ kind: "note", tone: "", at, text: "requested" });
      break;
    case "attempt":
      if (event.attempt > run.attempt) {
        run.attempt = event.attempt;
        run.items.push({ kind: "note", tone: "lost", at, text: `attempt ${event.attempt} begins: the one before was lost` });
        run.calls.clear();
        run.open.clear();
        run.progress = null;
      } else run.items.push({ kind: "note", tone: "lost", at, text: "the attempt was found alive and goes on" });
      run.status = "running";
      run.error = "";
      break;
    case "progress":
      run.progress = { ...event };
      break;
    case "milestone":
      run.milestones.push(event.name);
      run.items.push({ kind: "note", tone: "mark", at, text: `milestone: ${event.name}${event.message ? ` — ${event.message}` : ""}` });
      break;
    case "chunk":
      chunk(run, typeof event.body === "string" ? parsed(event.body) : event.body);
      break;
    case "interrupted":
      run.status = "interrupted";
      run.error = event.error;
      run.items.push({ kind: "note", tone: "lost", at, text: `interrupted: ${event.error}` });
      break;
    default:
      if (!(event.kind in ENDS)) break;
      run.status = ENDS[event.kind];
      run.error = event.error ?? event.reason ?? "";
      run.summary = event.summary ?? "";
      run.output = event.output ?? null;
      run.items.push({ kind: "note", tone: run.status === "completed" ? "end" : "bad", at, text: run.status + (run.error ? `: ${run.error}` : "") });
  }
}

function parsed(text) {
  try { return JSON.parse(text); } catch { return null; }
}

/** A piece of the child's stream: a UI message chunk of the AI SDK. What is unknown is passed over. */
function chunk(run, body) {
  if (!body || typeof body.type !== "string") return;
  const [family, part] = [body.type.split("-")[0], body.type.split("-").pop()];
  if (family === "text" || family === "reasoning") {
    const key = `${family} ${body.id}`;
    if (part === "end") { run.open.delete(key); return; }
    if (part === "start" || !run.open.has(key)) {
      const item = { kind: family, text: "", attempt: run.attempt };
      run.open.set(key, item);
      run.items.push(item);
    }
    run.open.get(key).text += body.delta ?? "";
  } else if (family === "tool" && body.toolCallId) {
    let call = run.calls.get(body.toolCallId);
    if (!call) {
      call = { kind: "call", id: body.toolCallId, name: body.toolName ?? "tool", input: undefined, typed: "", output: undefined, state: "input", attempt: run.attempt };
      run.calls.set(call.id, call);
      run.items.push(call);
    }
    tool(call, body);
  } else if (body.type === "data-retract") {
    const last = run.items.findLast((item) => item.kind === "text" || item.kind === "reasoning");
    if (last) last.retracted = true;
  } else if (body.type === "error") run.items.push({ kind: "note", tone: "bad", text: body.errorText ?? "error" });
}

function tool(call, body) {
  switch (body.type) {
    case "tool-input-start": call.name = body.toolName ?? call.name; break;
    case "tool-input-delta": call.typed += body.inputTextDelta ?? ""; break;
    case "tool-input-available": Object.assign(call, { name: body.toolName ?? call.name, input: body.input, state: "running" }); break;
    case "tool-output-available": Object.assign(call, { output: body.output, state: body.preliminary ? "running" : "done" }); break;
    case "tool-output-error": case "tool-input-error": Object.assign(call, { output: body.errorText, state: "error" }); break;
    case "tool-output-denied": call.state = "denied"; break;
    case "tool-approval-request": call.state = "waits for approval"; break;
  }
}
