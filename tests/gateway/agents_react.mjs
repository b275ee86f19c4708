// Plays cases of the hooks useAgent, useAgentChat and useAgentToolEvents against a gateway, and prints what it observed.
import { begun, isWhole, open, question, say, shown, stored, states, tell, text, until, whole } from "./agents_tabs.mjs";

let left, right;

// two tabs
left = await open("Talker", "two");
right = await open("Talker", "two");
say(left, "sum");
await Promise.all([whole(left, 2), whole(right, 2)]);
tell("two", { left: shown(left), right: shown(right), ends: [left.ends, right.ends], states: [...left.statuses],
  ids: [left, right].map((tab) => tab.chat.messages[1].id), stored: (await stored("talker/two")).map((each) => each.id) });

// a tab that comes in mid turn, and one that reloads
say(left, "sum");
await begun(left, 4);
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
await begun(left, 6);
left.chat.stop();
await until(() => left.chat.status === "ready" && right.ends.at(-1) === "aborted" && left.ends.at(-1) === "aborted", "stopped");
tell("stopped", { ends: [left.ends.at(-1), right.ends.at(-1)], status: right.chat.status });

// clear in mid turn
say(left, "sum");
await begun(left, 8);
right.chat.clearHistory();
await until(() => [left, right].every((tab) => tab.chat.status === "ready" && !tab.chat.messages.length), "cleared");
tell("cleared", { stored: await stored("talker/two") });
left.unmount();
right.unmount();

// a chat that cancels when it is left: its connection stays, or is closed before the chat can say so
const leaving = { chat: { cancelOnClientAbort: true } };
for (const [name, isApart] of [["chat left", true], ["page left", false]]) {
  left = await open("Talker", name, { ...leaving, isApart });
  right = await open("Talker", name);
  say(left, "sum");
  await Promise.all([begun(left, 2), begun(right, 2)]);
  if (isApart) left.render(name, false);
  else left.unmount();
  await until(() => right.ends.length, "the turn ends");
  tell(name, { ends: right.ends, shown: shown(right) });
  left.unmount();
  right.unmount();
}

// a tool of the client, a call that needs approval
left = await open("Asker", "tools", { onToolCall: (call, answer) => answer({ toolCallId: call.toolCallId, output: "blue" }) });
say(left, "colour");
await until(() => isWhole(left, 2), "the answer goes on");
tell("client tool", { shown: shown(left), calls: left.calls, states: states(left) });
say(left, "risk");
await until(() => left.chat.messages.length === 4 && question(left) && left.chat.status === "ready", "approval is asked for");
left.unmount();
left = await open("Asker", "tools");
await until(() => left.chat.messages.length === 4 && question(left), "approval is asked for after a reload");
left.chat.addToolApprovalResponse({ id: question(left).approval.id, approved: true });
await until(() => text(left.chat.messages.at(-1)).endsWith("∎") && left.chat.status === "ready", "the approved call has run");
await until(async () => JSON.stringify(left.chat.messages) === JSON.stringify(await stored("asker/tools")), "the tab shows what is stored");
tell("approval", { shown: shown(left), states: states(left) });
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
await Promise.all([begun(left, 2), begun(right, 2)]);
tell("kill", {});
await until(() => left.dropped && right.dropped, "the gateway is gone");
await Promise.all([whole(left, 2), whole(right, 2)]);
await until(() => left.ends.length && right.ends.length, "the end is told");
tell("killed", { left: shown(left), right: shown(right), ends: [left.ends, right.ends], recovering: [left, right].map((tab) => tab.chat.isRecovering) });
process.exit(0);
