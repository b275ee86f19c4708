// Plays cases of the npm package `agents` (AgentClient, agentFetch) against a gateway, and prints what it observed.
import { AgentClient } from "agents/client";
import WS from "ws";

const [{ url }] = process.argv.slice(2).map((each) => JSON.parse(each));
const host = new URL(url).host;
const tell = (what, fields) => console.log(JSON.stringify({ what, ...fields }));
const fast = { minReconnectionDelay: 30, maxReconnectionDelay: 60 };
const open = (options) => new AgentClient({ agent: "Counter", name: "one", host, WebSocket: WS, ...fast, ...options });

async function until(isSo, what) {
  const late = Date.now() + 60_000;
  while (!isSo()) {
    if (Date.now() > late) throw new Error(`not within a minute: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const failure = async (promise) => {
  try {
    return { value: await promise };
  } catch (problem) {
    return { error: problem.message };
  }
};

// who is reached, under which name
for (const [agent, name] of [["Counter", "room one"], ["counter", undefined], ["COUNTER", "x"], ["HTTPAgent", "y"]]) {
  const client = open({ agent, name });
  await client.ready;
  tell("identity", { agent: client.agent, name: client.name });
  client.close();
}

// state
const states = { left: [], right: [] };
const errors = [];
const left = open({
  name: "shared",
  onStateUpdate: (state, source) => states.left.push([state, source]),
  onStateUpdateError: (error) => errors.push(error),
});
const right = open({ name: "shared", onStateUpdate: (state, source) => states.right.push([state, source]) });
await Promise.all([left.ready, right.ready]);
left.setState({ count: 1 });
await until(() => states.right.length === 1, "the other client has the state");
tell("result", { value: await left.call("count") });
await until(() => states.right.length === 2 && states.left.length === 2, "both have the state");
left.setState({ count: -1 });
await until(() => states.left.length === 4, "the refused state is put right");
tell("states", { ...states, errors });

// calls
tell("add", { value: await left.call("add", [2, 3]) });
tell("fail", await failure(left.call("fail")));
tell("unknown", await failure(left.call("nothing")));
tell("hidden", await failure(left.call("secret")));
const streamed = [];
let done = false;
await left.call("numbers", [4], { stream: { onChunk: (each) => streamed.push(each), onDone: () => (done = true) } });
await until(() => done, "the stream is over");
tell("streamed", { streamed });
tell("parallel", { values: await Promise.all([...Array(50).keys()].map((n) => left.call("add", [n, 1]))) });
tell("late", await failure(left.call("slow", [0.3], { timeout: 50 })));
tell("after", { value: await left.call("add", [1, 1]) });

// a call before the connection is open
const eager = open({ name: "eager" });
tell("eager", { value: await eager.call("count") });
eager.close();

// final closes
for (const [agent, name] of [["Nobody", "x"], ["Counter", "a/b"]]) {
  const client = open({ agent, name });
  await until(() => client.connectionError, "a final close");
  tell("closed", { code: client.connectionError.code, reason: client.connectionError.reason });
  client.close();
}

// the gateway is killed and comes again: the state stands, a buffered call is made once, a transmitted one is rejected
const cut = failure(left.call("slow", [50]));
await left.call("add", [0, 0]);
const dropped = new Promise((resolve) => left.addEventListener("close", resolve, { once: true }));
tell("kill", {});
await dropped;
tell("cut", await cut);
const buffered = left.call("count");
await until(() => left.identified, "the gateway is back");
await until(() => left.state?.count === 3, "the state is told");
tell("back", { value: await buffered, state: left.state });
left.close();
right.close();
process.exit(0);
