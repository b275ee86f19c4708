// The real client of AG-UI against a real gateway, and against streams that are given. One JSON line for each observation.
import { AbstractAgent, HttpAgent } from "@ag-ui/client";
import { from } from "rxjs";

const [url, streams] = process.argv.slice(2).map((each) => JSON.parse(each));
const say = (name, seen) => console.log(JSON.stringify({ name, ...seen }));
process.on("uncaughtException", () => {}); // under Node a cut line raises beside the rejection
console.warn = console.error = () => {};

const agentOf = (threadId, options = {}) => new HttpAgent({ url: `${url}/ag-ui/clerk`, threadId, ...options });

async function run(agent, input = {}) {
  const types = [];
  let error = null;
  let end = null;
  const subscriber = {
    onEvent: ({ event }) => void types.push(event.type),
    onRunErrorEvent: ({ event }) => void (error = event.code),
    onRunFinishedEvent: ({ event }) => void (end = event.outcome),
  };
  try {
    await agent.runAgent(input, subscriber);
    return { types, error, end };
  } catch (problem) {
    return { types, error, end, rejected: problem.message };
  }
}

const user = (id, content) => ({ id, role: "user", content });
const textOf = (agent) =>
  agent.messages.filter((each) => each.role === "assistant" && !each.subagentRunId).map((each) => each.content ?? "").join("");

async function whole() {
  const agent = agentOf("whole");
  agent.addMessage(user("u1", "sum"));
  const seen = await run(agent);
  const again = agentOf("whole", { initialMessages: [] });
  await run(again);
  say("whole", { ...seen, text: textOf(agent), roles: agent.messages.map((each) => each.role), shown: textOf(again) });
}

async function approval() {
  const agent = agentOf("approval");
  agent.addMessage(user("u1", "please risk"));
  const first = await run(agent);
  const [question] = first.end.interrupts;
  const refused = await run(agent, {}); // the client itself refuses to go on without an answer
  const rest = await run(agent, { resume: [{ interruptId: question.id, status: "resolved", payload: { approved: true } }] });
  say("approval", { first, refused, rest, results: agent.messages.filter((each) => each.role === "tool").map((each) => each.content) });
}

async function frontTool() {
  const agent = agentOf("front");
  const tools = [{ name: "paint", description: "Paint.", parameters: { type: "object", properties: {} } }];
  agent.addMessage(user("u1", "please front"));
  const first = await run(agent, { tools });
  const toolCallId = first.end.pendingToolCallIds[0];
  agent.addMessage({ id: "result", role: "tool", toolCallId, content: "red" });
  const rest = await run(agent, { tools });
  say("front", { first, rest, text: textOf(agent), results: agent.messages.filter((each) => each.role === "tool").map((each) => each.content) });
}

async function children() {
  const agent = agentOf("children");
  agent.addMessage(user("u1", "please talk"));
  const seen = await run(agent);
  const said = agent.messages.filter((each) => each.subagentRunId && each.role === "assistant").map((each) => each.content).join("");
  agent.addMessage(user("u2", "please walk"));
  const walked = await run(agent);
  const activities = agent.messages.filter((each) => each.role === "activity").map((each) => each.content);
  say("children", { seen, said, walked, activities });
}

async function questions() {
  const agent = agentOf("questions");
  agent.addMessage(user("u1", "please inquire"));
  const rows = [];
  const onCustomEvent = async ({ event }) => {
    if (event.name !== "perdure.ask") return;
    rows.push(event.value);
    const answer = `${url}/api/asks/${encodeURIComponent(event.value.ask_id)}/answer`;
    const headers = { "content-type": "application/json" };
    if (rows.length === 1) await fetch(answer, { method: "POST", headers, body: JSON.stringify({ value: true, who: "ada" }) });
  };
  await agent.runAgent({}, { onCustomEvent });
  const results = agent.messages.filter((each) => each.role === "tool").map((each) => each.content);
  say("questions", { told: rows.map((each) => [each.ask_id === rows[0].ask_id, each.status]), results });
}

async function state() {
  const agent = agentOf("state");
  agent.addMessage(user("u1", "please note"));
  const seen = await run(agent);
  say("state", { ...seen, state: agent.state });
}

async function aborted() {
  const agent = agentOf("aborted");
  agent.addMessage(user("u1", "sum"));
  const runId = "same";
  const first = agent.runAgent({ runId }, { onTextMessageContentEvent: () => agent.abortRun() });
  await first;
  const again = agentOf("aborted", { initialMessages: [user("u1", "sum")] });
  const seen = await run(again, { runId });
  say("aborted", { ...seen, text: textOf(again) });
}

async function foreign() {
  const missing = new HttpAgent({ url: `${url}/ag-ui/nobody`, threadId: "x" });
  missing.addMessage(user("u1", "words"));
  const nobody = agentOf("nobody", { headers: { Authorization: "Bearer wrong" } });
  nobody.addMessage(user("u1", "words"));
  say("foreign", { missing: (await run(missing)).rejected, nobody: (await run(nobody)).rejected });
}

class Given extends AbstractAgent {
  constructor(events) {
    super({ threadId: "given" });
    this.events = events;
  }
  run() {
    return from(this.events);
  }
}

async function verdicts() {
  const seen = [];
  for (const events of streams) seen.push((await run(new Given(events))).rejected ?? null);
  say("verdicts", { seen });
}

for (const each of [whole, approval, frontTool, children, questions, state, aborted, foreign, verdicts]) await each();
process.exit(0);
