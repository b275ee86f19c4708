// Plays cases of the hooks useAgent, useAgentChat and useAgentToolEvents against a gateway, and prints what it observed.
// Each tab is a React root of its own in one document.
import { JSDOM } from "jsdom";
import WS from "ws";

const [{ url }] = process.argv.slice(2).map((each) => JSON.parse(each));
const dom = new JSDOM("<!doctype html><body></body>", { url });
for (const name of ["window", "document"]) globalThis[name] = name === "window" ? dom.window : dom.window.document;
Object.defineProperty(globalThis, "navigator", { value: dom.window.navigator, configurable: true });
globalThis.WebSocket = WS;
globalThis.IS_REACT_ACT_ENVIRONMENT = false;

const { createElement: h, Suspense } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useAgent, useAgentToolEvents } = await import("agents/react");
const { useAgentChat } = await import("@cloudflare/ai-chat/react");

let left, right;
const host = new URL(url).host;
const tell = (what, fields) => console.log(JSON.stringify({ what, ...fields }));

async function until(isSo, what) {
  const late = Date.now() + 60_000;
  while (!isSo()) {
    if (Date.now() > late) {
      const seen = [left, right].map((tab) => tab && [tab.chat?.status, tab.chat?.messages, tab.ends, tab.chat?.error?.message]);
      throw new Error(`not within a minute: ${what}: ${JSON.stringify(seen)}`);
    }
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

function mount(agent, name, options = {}) {
  const tab = { ends: [], calls: [], dropped: 0, identities: [], all: new Set() };
  function Chat() {
    const connection = useAgent({
      agent, name, host, sub: options.sub, minReconnectionDelay: 30, maxReconnectionDelay: 60,
      onClose: () => (tab.dropped += 1),
      onIdentity: (identity) => tab.identities.push(identity),
    });
    tab.agent = connection;
    tab.runs = useAgentToolEvents({ agent: connection });
    tab.chat = useAgentChat({
      agent: connection, throttle: false,
      onTurnEnd: (end) => tab.ends.push(end.outcome ?? end.status ?? end),
      onToolCall: ({ toolCall, addToolOutput }) => {
        tab.calls.push(toolCall.toolName);
        options.onToolCall?.(toolCall, addToolOutput);
      },
      ...options.chat,
    });
    tab.all.add(tab.chat.status);
    return null;
  }
  const root = createRoot(document.body.appendChild(document.createElement("div")));
  root.render(h(Suspense, { fallback: null }, h(Chat)));
  tab.unmount = () => root.unmount();
  return tab;
}

const text = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
const shown = (tab) => tab.chat.messages.map((message) => [message.role, text(message)]);
const ready = (tab) => until(() => tab.chat?.status === "ready" && tab.agent.identified, "the tab is ready");
const whole = (tab, count) =>
  until(() => tab.chat.status === "ready" && tab.chat.messages.length === count
    && text(tab.chat.messages.at(-1)).endsWith("∎") && !tab.chat.isServerStreaming, "the answer is whole");
const open = async (...given) => {
  const tab = mount(...given);
  await ready(tab);
  return tab;
};
const say = (tab, words) => tab.chat.sendMessage({ role: "user", parts: [{ type: "text", text: words }] });
const begun = (tab) => until(() => (tab.chat.messages.at(-1)?.role === "assistant") && text(tab.chat.messages.at(-1)), "text");
const stored = async (path) => (await fetch(`${url}/agents/${path}/get-messages`)).json();

// two tabs
left = await open("Talker", "two");
right = await open("Talker", "two");
say(left, "sum");
await Promise.all([whole(left, 2), whole(right, 2)]);
tell("two", { left: shown(left), right: shown(right), ends: [left.ends, right.ends], states: [...left.all],
  ids: [left, right].map((tab) => tab.chat.messages[1].id), stored: (await stored("talker/two")).map((each) => each.id) });

// a tab that comes in mid turn, and one that reloads
say(left, "sum");
await until(() => left.chat.messages.length === 4 && text(left.chat.messages[3]), "the second answer begins");
right.unmount();
right = await open("Talker", "two");
await Promise.all([whole(left, 4), whole(right, 4)]);
tell("late", { left: shown(left), right: shown(right) });

// another answer, and an edited message
left.chat.regenerate();
await until(() => left.chat.status !== "ready", "the answer is asked for again");
await Promise.all([whole(left, 4), whole(right, 4)]);
tell("regenerated", { left: shown(left), right: shown(right), stored: (await stored("talker/two")).length });

// stop
say(left, "sum");
await until(() => left.chat.messages.length === 6 && text(left.chat.messages[5]), "the third answer begins");
left.chat.stop();
await until(() => left.chat.status === "ready" && right.ends.at(-1) === "aborted" && left.ends.at(-1) === "aborted", "stopped");
tell("stopped", { ends: [left.ends.at(-1), right.ends.at(-1)], status: right.chat.status });

// clear in mid turn
say(left, "sum");
await until(() => left.chat.messages.length === 8 && text(left.chat.messages[7]), "the fourth answer begins");
right.chat.clearHistory();
await until(() => [left, right].every((tab) => tab.chat.status === "ready" && !tab.chat.messages.length), "cleared");
tell("cleared", { stored: await stored("talker/two") });
left.unmount();
right.unmount();

// a tool of the client, a call that needs approval
left = await open("Asker", "tools", { onToolCall: (call, answer) => answer({ toolCallId: call.toolCallId, output: "blue" }) });
say(left, "colour");
await until(() => left.chat.messages.length === 2 && text(left.chat.messages[1]).endsWith("∎") && left.chat.status === "ready", "the answer goes on");
await until(() => left.chat.messages[1].parts.filter((part) => part.type === "text").length === 2 || true, "settled");
tell("client tool", { shown: shown(left), calls: left.calls,
  states: left.chat.messages[1].parts.filter((part) => part.toolCallId).map((part) => part.state) });
say(left, "risk");
const waiting = () => left.chat.messages.at(-1).parts.find((part) => part.state === "approval-requested");
await until(() => left.chat.messages.length === 4 && waiting() && left.chat.status === "ready", "approval is asked for");
left.unmount();
left = await open("Asker", "tools");
await until(() => left.chat.messages.length === 4 && waiting(), "approval is asked for after a reload");
left.chat.addToolApprovalResponse({ id: waiting().approval.id, approved: true });
await until(() => text(left.chat.messages.at(-1)).endsWith("∎") && left.chat.status === "ready", "the approved call has run");
const settled = async () => JSON.stringify(left.chat.messages) === JSON.stringify(await stored("asker/tools"));
const late = Date.now() + 60_000;
while (!(await settled()) && Date.now() < late) await new Promise((resolve) => setTimeout(resolve, 50));
tell("approval", { shown: shown(left), settled: await settled(), stored: await stored("asker/tools"), tab: left.chat.messages,
  states: left.chat.messages.at(-1).parts.filter((part) => part.toolCallId).map((part) => part.state) });
left.unmount();

// children
left = await open("Asker", "children");
say(left, "child");
await until(() => left.chat.messages.length === 2 && text(left.chat.messages[1]).endsWith("∎"), "the child was waited for");
await until(() => Object.values(left.runs.runsById).some((run) => run.status === "completed"), "the child's end is told");
const strip = (tab) => Object.values(tab.runs.runsById).map(({ milestones, progress, ...run }) => ({
  ...run, progress: progress && { fraction: progress.fraction }, milestones: (milestones ?? []).map((each) => each.name) }));
right = await open("Asker", "children");
await until(() => Object.values(right.runs.runsById).some((run) => run.status === "completed"), "the child is replayed");
const [run] = Object.values(left.runs.runsById);
tell("children", { live: strip(left), replayed: strip(right), bound: left.runs.getRunsForToolCall?.(run.parentToolCallId)?.length });
const child = await open("Asker", "children", { sub: [{ agent: run.subAgent.agent, name: run.subAgent.name }] });
tell("drill-in", { name: child.agent.name, agent: child.agent.agent, shown: shown(child) });
for (const tab of [left, right, child]) tab.unmount();

// the gateway is killed in mid stream
left = await open("Talker", "killed");
right = await open("Talker", "killed");
say(left, "sum");
await Promise.all([begun(left), begun(right)]);
tell("kill", {});
await until(() => left.dropped && right.dropped, "the gateway is gone");
await Promise.all([whole(left, 2), whole(right, 2)]);
await until(() => left.ends.length && right.ends.length, "the end is told");
tell("killed", { left: shown(left), right: shown(right), ends: [left.ends, right.ends], recovering: [left, right].map((tab) => tab.chat.isRecovering) });
process.exit(0);
