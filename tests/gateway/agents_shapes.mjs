// Plays a turn that a tool's result continues, and one that an approval continues, in two tabs, and prints what both show in the end.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { isWhole, open, question, say, shown, states, stored, tell, until } from "./agents_tabs.mjs";

const require = createRequire(createRequire(import.meta.url).resolve("@ai-sdk/react"));
const { version } = JSON.parse(readFileSync(require.resolve("ai/package.json"), "utf8"));

const left = await open("Asker", "shapes", { onToolCall: (call, answer) => answer({ toolCallId: call.toolCallId, output: "blue" }) });
const right = await open("Asker", "shapes");
const agree = async () => {
  const truth = JSON.stringify(await stored("asker/shapes"));
  return [left, right].every((tab) => JSON.stringify(tab.chat.messages) === truth);
};
const settled = async (count) => {
  await until(() => [left, right].every((tab) => isWhole(tab, count)), "the answer goes on");
  await until(agree, "both tabs show what is stored");
};

say(left, "colour");
await settled(2);
tell("tool", { version, shown: shown(right), states: states(right) });

say(left, "risk");
await until(() => question(left) && question(right) && left.chat.status === "ready", "approval is asked for");
left.chat.addToolApprovalResponse({ id: question(left).approval.id, approved: true });
await settled(4);
tell("approval", { shown: shown(right), states: states(right), errors: [left, right].map((tab) => tab.chat.error?.message ?? null) });
process.exit(0);
