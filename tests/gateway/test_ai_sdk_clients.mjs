// Real clients of the AI SDK, one story after the other. Prints what each has seen.
import { createInterface } from "node:readline";
import { Chat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} from "ai";

const { url, query, stories, prefix } = JSON.parse(process.argv[2]);
const api = `${url}/chat/talker${query}`;

const tell = (story, seen) => console.log(JSON.stringify({ story, ...seen }));
const textOf = (message) => (message?.parts ?? []).filter((each) => each.type === "text").map((each) => each.text).join("");

async function until(what, isSo) {
  const patience = Date.now() + 60_000;
  while (!(await isSo())) {
    if (Date.now() > patience) throw new Error(`${what} never came`);
    await new Promise((done) => setTimeout(done, 10));
  }
}

function open(name, options = {}, transport = {}) {
  const id = named(name);
  const seen = { finishes: [], data: [], errors: [] };
  const chat = new Chat({
    id,
    transport: new DefaultChatTransport({ api, ...transport }),
    onFinish: ({ finishReason, isError }) => seen.finishes.push(isError ? "error" : finishReason),
    onData: (part) => seen.data.push(part.type),
    onError: (error) => seen.errors.push(error.message),
    ...options,
  });
  return [chat, seen];
}

const state = (chat) => ({
  status: chat.status,
  roles: chat.messages.map((each) => each.role),
  text: textOf(chat.lastMessage),
  id: chat.lastMessage?.id,
});

const named = (name) => (name.startsWith("other") ? name : prefix + name);

const kept = async (name) => (await (await fetch(`${url}/chat/talker/${encodeURIComponent(named(name))}/messages`)).json());

// A transport whose line breaks after some bytes.
const breaking = (after) => async (address, options) => {
  const response = await fetch(address, options);
  const reader = response.body.getReader();
  let size = 0;
  const body = new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) return controller.close();
      controller.enqueue(value);
      size += value.length;
      if (size > after) {
        await reader.cancel();
        controller.error(new TypeError("terminated"));
      }
    },
  });
  return new Response(body, { status: response.status, headers: response.headers });
};

// A proxy that holds everything back until the end, and ends its lines with CRLF.
const holding = async (address, options) => {
  const response = await fetch(address, options);
  return new Response(`: hello\r\n\r\n${(await response.text()).replaceAll("\n", "\r\n")}`, { status: response.status });
};

const all = {
  async plain() {
    const [chat, seen] = open("plain");
    await chat.sendMessage({ text: "sum" }, { body: { page: 7 } });
    tell("plain", { ...state(chat), ...seen, kept: (await kept("plain")).map(textOf) });
    const tools = chat.lastMessage.parts.filter((each) => each.toolCallId).map((each) => [each.type, each.state, each.output]);
    tell("tools", { tools });
  },
  async held() {
    const [chat, seen] = open("held", {}, { fetch: holding });
    await chat.sendMessage({ text: "sum" });
    tell("held", { ...state(chat), ...seen });
  },
  async stopped() {
    const id = "a/b c%ü";
    const [chat] = open(id);
    const asked = chat.sendMessage({ text: "sum" });
    await until("text", () => textOf(chat.lastMessage).includes("Let me"));
    const first = chat.lastMessage.id;
    await chat.stop();
    await asked;
    tell("stopped", state(chat));
    await chat.resumeStream();
    tell("resumed", { ...state(chat), isSame: first === chat.lastMessage.id });
    await chat.resumeStream();
    tell("idle", state(chat));
  },
  async reloaded() {
    const [chat] = open("reloaded");
    const asked = chat.sendMessage({ text: "sum" });
    await until("text", () => textOf(chat.lastMessage).includes("And then"));
    const [page] = open("reloaded", { messages: await kept("reloaded") });
    await Promise.all([page.resumeStream(), asked]);
    tell("reloaded", { ...state(page), isSame: page.lastMessage.id === chat.lastMessage.id });
  },
  async cut() {
    const [chat, seen] = open("cut", {}, { fetch: breaking(1200) });
    await chat.sendMessage({ text: "sum" });
    tell("cut", { ...state(chat), ...seen });
    const first = chat.lastMessage.id;
    chat.transport = new DefaultChatTransport({ api });
    await chat.resumeStream();
    tell("mended", { ...state(chat), isSame: first === chat.lastMessage.id });
  },
  async away() {
    const major = query || "?ai=6"; // a client of this major appends its id behind the query
    const address = { api: `${url}/chat/talker${major}` };
    const [chat] = open("away", {}, { ...address, fetch: breaking(1200) });
    await chat.sendMessage({ text: "sum" });
    const first = chat.lastMessage.id, half = textOf(chat.lastMessage);
    await until("the end", async () => (await kept("away")).length === 2);
    chat.transport = new DefaultChatTransport(address);
    await chat.resumeStream();
    tell("away", { ...state(chat), isSame: first === chat.lastMessage.id, half });
    await chat.resumeStream();
    tell("away again", state(chat));
    const [page, seen] = open("away", { messages: await kept("away") }, address);
    await page.resumeStream();
    tell("away reloaded", { ...state(page), errors: seen.errors });
  },
  async asked() {
    const made = [];
    const options = { sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls, onToolCall: ({ toolCall }) => void made.push(toolCall.toolName) };
    const [chat] = open("asked", options, { fetch: breaking(100) });
    await chat.sendMessage({ text: "color" });
    await until("the question", async () => (await kept("asked")).length === 2);
    chat.transport = new DefaultChatTransport({ api });
    await chat.resumeStream();
    const call = chat.lastMessage.parts.find((each) => each.toolCallId);
    tell("asked", { ...state(chat), made: [...made] });
    chat.addToolOutput({ tool: "ask_user", toolCallId: call.toolCallId, output: "blue" });
    await until("the answer", () => chat.status === "ready" && textOf(chat.lastMessage).includes("all. ∎"));
    made.length = 0;
    const [page] = open("asked", { ...options, messages: await kept("asked") });
    await page.resumeStream();
    const answered = page.lastMessage.parts.find((each) => each.toolCallId === call.toolCallId);
    tell("asked reloaded", { ...state(page), made, input: answered.input, output: answered.output, whole: textOf(chat.lastMessage) });
  },
  async inquiry() {
    const [chat] = open("inquiry");
    const asked = chat.sendMessage({ text: "inquire" });
    const shown = () => (chat.lastMessage?.parts ?? []).filter((each) => each.type === "data-ask");
    await until("the question", () => shown().length === 1);
    const { ask_id: id, status } = shown()[0].data;
    const [page] = open("inquiry", { messages: await kept("inquiry") });
    const resumed = page.resumeStream();
    const body = JSON.stringify({ value: true, who: "ada" });
    const headers = { "content-type": "application/json" };
    await fetch(`${url}/api/asks/${encodeURIComponent(id)}/answer`, { method: "POST", headers, body });
    await Promise.all([asked, resumed]);
    const told = shown().map((each) => [each.id === id, each.data.status, each.data.answers[0].who]);
    const output = chat.lastMessage.parts.find((each) => each.toolCallId).output;
    tell("inquiry", { ...state(chat), opened: status, told, output, again: textOf(page.lastMessage) === textOf(chat.lastMessage) });
  },
  async cancelled() {
    const [chat, seen] = open("cancelled");
    const asked = chat.sendMessage({ text: "sum" });
    await until("text", () => textOf(chat.lastMessage).includes("Let me"));
    await fetch(`${url}/chat/talker/${named("cancelled")}/cancel`, { method: "POST" });
    await asked;
    tell("cancelled", { ...state(chat), ...seen });
    await chat.regenerate();
    tell("regenerated", state(chat));
  },
  async edited() {
    const [chat] = open("edited");
    await chat.sendMessage({ text: "words" });
    await chat.sendMessage({ text: "sum", messageId: chat.messages[0].id });
    tell("edited", { ...state(chat), kept: (await kept("edited")).map(textOf) });
    const before = chat.lastMessage.id;
    await chat.regenerate({ messageId: before });
    tell("again", { ...state(chat), isNew: before !== chat.lastMessage.id });
  },
  async asking() {
    const options = {
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        if (toolCall.toolName === "ask_user") {
          chat.addToolOutput({ tool: "ask_user", toolCallId: toolCall.toolCallId, output: "blue" });
        }
      },
    };
    const [chat, seen] = open("asking", options);
    await chat.sendMessage({ text: "color" });
    await until("the answer", () => chat.status === "ready" && textOf(chat.lastMessage).includes("all. ∎"));
    tell("asking", { ...state(chat), ...seen, kept: (await kept("asking")).map(textOf) });
  },
  async approving() {
    for (const approved of [true, false]) {
      const id = `approving-${approved}`;
      const [chat, seen] = open(id, { sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
      await chat.sendMessage({ text: "wish" });
      const asked = chat.lastMessage.parts.find((each) => each.approval);
      await chat.addToolApprovalResponse({ id: asked.approval.id, approved, reason: "because" });
      await until("the answer", () => chat.status === "ready" && textOf(chat.lastMessage).includes("all. ∎"));
      const tool = chat.lastMessage.parts.find((each) => each.toolCallId === asked.toolCallId);
      tell(id, { ...state(chat), tool: tool.state, kept: (await kept(id)).map(textOf), ...seen });
    }
  },
  async refused() {
    const ways = {
      nobody: [{ headers: { "x-nobody": "1" } }, "new"],
      reader: [{ headers: { "x-reader": "1" } }, "new"],
      other: [{}, "other-chat"],
      missing: [{ api: `${url}/chat/unknown` }, "new"],
      large: [{ body: { large: "x".repeat(9_000_000) } }, "new"],
      metadata: [{ body: { large: "x".repeat(70_000) } }, "new"],
      major: [{ api: `${url}/chat/talker?ai=3` }, "new"],
    };
    for (const [name, [transport, id]] of Object.entries(ways)) {
      const [chat, seen] = open(id, {}, transport);
      await chat.sendMessage({ text: "words" });
      tell(`refused ${name}`, { status: chat.status, errors: seen.errors });
    }
    const [first] = open("drop", {}, { api: `${url}/chat/dropper` });
    const asked = first.sendMessage({ text: "sum" });
    await until("text", () => textOf(first.lastMessage).includes("Let me"));
    const [second, seen] = open("drop", {}, { api: `${url}/chat/dropper` });
    await second.sendMessage({ text: "words" });
    tell("refused meanwhile", { status: second.status, errors: seen.errors });
    await asked;
  },
  async together() {
    const [[one], [two]] = [open("together"), open("together")];
    await Promise.all([one.sendMessage({ text: "words" }), two.sendMessage({ text: "sum" })]);
    tell("together", { one: state(one), two: state(two), kept: (await kept("together")).map(textOf) });
  },
  async socket() {
    const { WebSocketChatTransport } = await import("ai");
    const { WebSocket } = await import("ws");
    const transport = () => new WebSocketChatTransport({ url: api, webSocket: WebSocket });
    const [chat, seen] = open("socket", { transport: transport() });
    await chat.resumeStream();
    tell("socket idle", state(chat));
    await chat.sendMessage({ text: "sum" });
    tell("socket", { ...state(chat), ...seen });
    const asked = chat.sendMessage({ text: "sum" });
    await until("text", () => chat.messages.length === 4 && textOf(chat.lastMessage).includes("Let me"));
    await chat.stop();
    await asked;
    await chat.resumeStream();
    tell("socket resumed", { ...state(chat) });
    const away = chat.sendMessage({ text: "sum" });
    await until("text", () => chat.messages.length === 6 && textOf(chat.lastMessage).includes("Let me"));
    await chat.stop();
    await away;
    await until("the end", async () => (await kept("socket")).length === 6);
    await chat.resumeStream();
    tell("socket away", { ...state(chat) });
    await chat.sendMessage({ text: "words" }, { body: { clientTools: 7 } });
    tell("socket refused", { status: chat.status, errors: seen.errors });
  },
  async killed() {
    const [chat, seen] = open("killed");
    const asked = chat.sendMessage({ text: "sum" });
    await until("text", () => textOf(chat.lastMessage).includes("Let me"));
    const first = chat.lastMessage.id;
    const again = new Promise((done) => createInterface({ input: process.stdin }).once("line", done));
    tell("streaming", {});
    await asked;
    tell("killed", { ...state(chat), finishes: seen.finishes });
    await again;
    await chat.resumeStream();
    tell("revived", { ...state(chat), isSame: first === chat.lastMessage.id, kept: (await kept("killed")).map(textOf) });
  },
};

await Promise.all(stories.map((story) => all[story]()));
process.exit(0);
