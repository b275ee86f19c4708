// Plays bad moments of the npm clients against a gateway, through a proxy that can cut, close, hold back and fall silent.
// It prints what it observed.
import http from "node:http";
import WS, { WebSocketServer } from "ws";
import * as tabs from "./agents_tabs.mjs";
import { fast, isSpeaking, isWhole, question, say, shown, stored, tell, text, until, url } from "./agents_tabs.mjs";

const { AgentClient } = await import("agents/client");

// the proxy

class Proxy {
  constructor() {
    this.lines = new Set();
    this.upgrades = [];
    this.asked = [];
    this.isDown = false;
    this.passes = () => true;
    this.server = http.createServer((asked, answer) => this.forward(asked, answer));
    this.sockets = new WebSocketServer({ noServer: true });
    this.server.on("upgrade", (asked, socket, head) => {
      if (this.isDown) {
        socket.destroy();
        return;
      }
      const onward = new WS(url.replace("http", "ws") + asked.url);
      const early = [];
      onward.on("message", (data) => early.push(data));
      onward.on("error", () => socket.destroy());
      onward.on("open", () => this.sockets.handleUpgrade(asked, socket, head, (client) => {
        onward.removeAllListeners("message");
        this.join(client, onward, asked.url);
        for (const data of early) onward.emit("message", data);
      }));
    });
  }

  async start() {
    await new Promise((resolve) => this.server.listen(0, "127.0.0.1", resolve));
    this.host = `127.0.0.1:${this.server.address().port}`;
    return this;
  }

  forward(asked, answer) {
    this.asked.push(asked.url);
    const onward = http.request(url + asked.url, { method: asked.method, headers: asked.headers }, (found) => {
      answer.writeHead(found.statusCode, found.headers);
      found.pipe(answer);
    });
    onward.on("error", () => answer.destroy());
    asked.pipe(onward);
  }

  join(client, server, path) {
    const line = { client, server, path, isSilent: false };
    this.upgrades.push(path);
    this.lines.add(line);
    client.on("message", (data) => line.isSilent || server.send(String(data)));
    server.on("message", (data) => {
      if (!line.isSilent && this.passes(String(data), line)) client.send(String(data));
    });
    server.on("close", (code, reason) => this.part(line, code, String(reason)));
    client.on("close", () => this.part(line));
    client.on("error", () => {});
  }

  part(line, code, reason) {
    if (!this.lines.delete(line)) return;
    line.server.terminate();
    if (code && code !== 1005 && code !== 1006) line.client.close(code, reason);
    else line.client.terminate();
  }

  of(part) {
    return [...this.lines].filter((line) => line.path.includes(part));
  }

  cut(part = "") {
    for (const line of this.of(part)) this.part(line);
  }

  close(part, code) {
    for (const line of this.of(part)) this.part(line, code, "as asked");
  }

  silence(part) {
    for (const line of this.of(part)) {
      line.isSilent = true;
      line.server._autoPong = false; // not even a ping is answered
    }
  }
}

const proxy = await new Proxy().start();
const frame = (text) => JSON.parse(text);
const mount = (agent, name, options) => tabs.mount(agent, name, { host: proxy.host, ...options });
const open = (agent, name, options) => tabs.open(agent, name, { host: proxy.host, ...options });

// one that has patience, for the whole program
const patient = new AgentClient({ agent: "Talker", name: "patient", host: proxy.host, WebSocket: WS });
await patient.ready;
const waited = {};
patient.addEventListener("close", () => (waited.from ??= Date.now()));
patient.addEventListener("open", () => (waited.to ??= Date.now()));
proxy.cut("patient");

// a line that falls silent, for the whole program
const silent = await open("Talker", "silent");
say(silent, "sum");
await until(() => isSpeaking(silent, 2), "the answer begins");
proxy.silence("silent");

// closes after which a client comes again
const client = new AgentClient({ agent: "Talker", name: "closes", host: proxy.host, WebSocket: WS, query: { token: "t", x: null }, ...fast });
await client.ready;
const reopened = [];
for (const code of [1000, 1001, 1011, 1012, 3000]) {
  const before = client.ready;
  const closed = new Promise((resolve) => client.addEventListener("close", (event) => resolve(event.code), { once: true }));
  proxy.close("closes", code);
  reopened.push([await closed, client.identified]);
  await client.ready;
  reopened.at(-1).push(client.identified, client.ready !== before);
}
const queries = proxy.upgrades.filter((path) => path.includes("closes")).map((path) => [...new URL(path, url).searchParams.keys()].sort());
tell("reopened", { reopened, queries });
client.close();

// a token that changes
const tokens = ["old", "new"];
const changing = await open("Talker", "changing", { agent: { query: async () => ({ token: tokens.length > 1 ? tokens.shift() : tokens[0] }) } });
proxy.close("changing", 1012);
await until(() => changing.opened > 1 && changing.agent.identified, "it is open again");
const carried = proxy.upgrades.filter((path) => path.includes("changing")).map((path) => new URL(path, url).searchParams.get("token"));
tell("tokens", { carried: [carried[0], carried.at(-1)] });
changing.unmount();

// who may not read
const blind = mount("Talker", "blind", { agent: { query: { token: "blind" } } });
await until(() => blind.agent?.connectionError, "the refusal is told");
tell("blind", { shown: shown(blind), code: blind.agent.connectionError.code,
  asked: proxy.asked.filter((path) => path.includes("blind")).every((path) => path.includes("token=blind")) });
blind.unmount();

// mounted twice, and another name
const strict = await open("Talker", "strict", { isStrict: true });
await until(() => proxy.of("strict").length === 1, "one line is left");
say(strict, "words");
await until(() => isWhole(strict, 2), "the answer is whole");
strict.render("renamed");
await until(() => strict.agent.identified && strict.agent.name === "renamed" && strict.chat.messages.length === 0, "the other one");
say(strict, "sum");
await until(() => isWhole(strict, 2), "the other one's answer is whole");
tell("renamed", { lines: [proxy.of("/strict").length, proxy.of("/renamed").length], shown: shown(strict) });
strict.unmount();

// a long conversation
const archive = await open("Archive", "long");
await archive.agent.call("fill", [2_000, 5_000]);
archive.unmount();
const page = await open("Archive", "long");
await until(() => page.chat.messages.length === 2_000, "all messages are shown");
tell("archive", { bytes: JSON.stringify(page.chat.messages).length, last: text(page.chat.messages.at(-1)).length });
page.unmount();

// the line is cut before the end is told
const late = await open("Talker", "late");
let cuts = 0;
proxy.passes = (told, line) => {
  if (!cuts && line.path.includes("/late") && frame(told).done === true) {
    cuts += 1;
    proxy.part(line);
    return false;
  }
  return true;
};
say(late, "sum");
await until(() => cuts && isWhole(late, 2) && late.opened > 1 && late.ends.length, "the answer is whole");
tell("cut before the end", { shown: shown(late), ends: late.ends });

// a message while nothing is reached
proxy.isDown = true;
proxy.cut("/late");
await until(() => !late.agent.identified, "the line is lost");
say(late, "words");
await until(() => late.chat.messages.length === 3, "the message is shown");
late.texts.clear();
proxy.isDown = false;
await until(() => isWhole(late, 4), "it is answered");
tell("offline", { shown: shown(late).map(([role]) => role), vanished: [...late.texts].some((each) => !each.includes("|words")),
  stored: (await stored("talker/late")).length });

// a tab that does not resume
const idle = await open("Talker", "idle", { chat: { resume: false } });
say(idle, "sum");
await until(() => isSpeaking(idle, 2), "the answer begins");
proxy.cut("/idle");
await until(() => idle.opened > 1 && idle.chat.status !== "streaming" && !idle.chat.isServerStreaming, "nothing seems to stream");
await until(() => isSpeaking(idle, 2), "what was said is shown");
tell("no resume", { streams: idle.chat.isServerStreaming });
idle.unmount();

// the line is cut in a continuation
const going = await open("Asker", "going", { onToolCall: (call, answer) => answer({ toolCallId: call.toolCallId, output: "blue" }) });
let pieces = 0;
proxy.passes = (told, line) => {
  const isPiece = line.path.includes("/going") && frame(told).continuation && frame(told).seq !== undefined;
  if (isPiece && (pieces += 1) === 14) {
    proxy.part(line);
    return false;
  }
  return true;
};
say(going, "colour");
await until(() => pieces > 14 && isWhole(going, 2), "the answer goes on");
tell("cut continuation", { cuts: going.opened - 1, shown: shown(going),
  stored: (await stored("asker/going")).map((message) => [message.role, text(message)]) });
proxy.passes = () => true;

// a child whose parent's line is cut again and again
const parent = await open("Asker", "parent");
const runs = () => Object.values(parent.runs.runsById);
say(parent, "child");
let drops = 0;
const isDone = () => runs().length === 1 && runs()[0].status === "completed";
while (!isDone() && drops < 10) {
  const parts = JSON.stringify(runs());
  await until(() => isDone() || JSON.stringify(runs()) !== parts, "something of the child is told");
  proxy.cut("/parent");
  drops += 1;
  const opened = parent.opened;
  await until(() => parent.opened > opened && parent.agent.identified, "it is open again");
}
await until(isDone, "the child's end is told");
const other = await open("Asker", "parent");
await until(() => Object.values(other.runs.runsById)[0]?.status === "completed", "the child is replayed");
const parts = (tab) => Object.values(tab.runs.runsById).map((run) => run.parts);
tell("child", { drops, isSame: JSON.stringify(parts(parent)) === JSON.stringify(parts(other)),
  text: runs()[0].parts.filter((part) => part.type === "text").map((part) => part.text).join(""), summary: runs()[0].summary });
other.unmount();

// the gateway is killed: in a child's run, with an open approval, as an end is handed over, and as a message waits to be sent
const allowing = await open("Asker", "allowing");
say(allowing, "risk");
await until(() => question(allowing) && allowing.chat.status === "ready", "approval is asked for");
const twice = [await open("Talker", "twice"), await open("Talker", "twice")];
let held = 0;
proxy.passes = (told, line) => {
  const isEnd = line.path.includes("/twice") && frame(told).done === true;
  held += isEnd;
  return !isEnd;
};
say(twice[0], "words");
await until(() => held === 2, "the end is on its way to both");
parent.ends.length = 0;
say(parent, "child again");
await until(() => runs().length === 2 && runs().some((run) => run.status === "running"), "another child runs");
proxy.isDown = true;
const gone = [allowing, parent, late, ...twice].map((tab) => tab.opened);
tell("kill", {});
await until(() => !proxy.of("/twice").length && !late.agent.identified, "the gateway is gone");
proxy.passes = () => true;
say(late, "words again");
proxy.isDown = false;
await until(() => [allowing, parent, late, ...twice].every((tab, at) => tab.opened > gone[at] && tab.agent.identified), "all are back");
await until(() => isWhole(late, 6) && twice.every((tab) => isWhole(tab, 2)), "answers are whole");
tell("killed at the end", { shown: twice.map(shown) });
tell("killed before a message", { shown: shown(late).map(([, words]) => words), stored: (await stored("talker/late")).length });
await until(() => question(allowing), "approval is still asked for");
allowing.chat.addToolApprovalResponse({ id: question(allowing).approval.id, approved: true });
await until(() => isWhole(allowing, 2), "the approved call has run");
await until(() => runs().length === 2 && runs().every((run) => run.status === "completed"), "the child has ended");
tell("killed in a child", { texts: runs().map((run) => run.parts.filter((part) => part.type === "text").map((part) => part.text).join("")), summaries: runs().map((run) => run.summary) });

await until(() => isWhole(silent, 2) && silent.opened > 1, "the silent line was given up");
tell("silent", { shown: shown(silent) });
await until(() => waited.to, "the patient one is back");
tell("patient", { waited: waited.to - waited.from });
process.exit(0);
