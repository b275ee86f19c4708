// Tabs of the npm clients: each is a React root of its own in one document, with the hooks useAgent, useAgentChat and useAgentToolEvents.
import { JSDOM } from "jsdom";
import WS from "ws";

export const [{ url }] = process.argv.slice(2).map((each) => JSON.parse(each));
const dom = new JSDOM("<!doctype html><body></body>", { url });
for (const name of ["window", "document"]) globalThis[name] = name === "window" ? dom.window : dom.window.document;
Object.defineProperty(globalThis, "navigator", { value: dom.window.navigator, configurable: true });
globalThis.WebSocket = WS;
globalThis.IS_REACT_ACT_ENVIRONMENT = false;

const { createElement: h, StrictMode, Suspense } = await import("react");
const { createRoot } = await import("react-dom/client");
const { useAgent, useAgentToolEvents } = await import("agents/react");
const { useAgentChat } = await import("@cloudflare/ai-chat/react");

export const fast = { minReconnectionDelay: 30, maxReconnectionDelay: 60 };
export const tell = (what, fields) => console.log(JSON.stringify({ what, ...fields }));

const PATIENCE_MS = 240_000;
const tabs = [];
const seen = () => tabs.map((tab) => JSON.stringify([tab.name, tab.opened, tab.agent?.identified, tab.chat?.status,
  tab.chat?.isServerStreaming, tab.chat?.messages.map(text), tab.ends, tab.chat?.error?.message])).join("\n");

// Waits for a condition, which may be asynchronous.
export async function until(isSo, what) {
  const late = Date.now() + PATIENCE_MS;
  while (!(await isSo())) {
    if (Date.now() > late) throw new Error(`not in time: ${what}: ${seen()}`);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

// Opens a tab, and records what it sees. With `isApart` the chat is a component below that of the connection, and may leave alone.
export function mount(agent, name, { host = new URL(url).host, sub, isStrict, isApart, ...options } = {}) {
  const tab = { name, ends: [], calls: [], opened: 0, dropped: 0, statuses: new Set(), texts: new Set() };
  function Chat({ connection }) {
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
    tab.statuses.add(tab.chat.status);
    tab.texts.add(tab.chat.messages.map(text).join("|"));
    return null;
  }
  function useConnection(name) {
    tab.agent = useAgent({
      agent, name, host, sub, ...fast, ...options.agent,
      onOpen: () => (tab.opened += 1),
      onClose: () => (tab.dropped += 1),
    });
    return tab.agent;
  }
  function Together({ name }) {
    return Chat({ connection: useConnection(name) });
  }
  function Apart({ name, isOpen }) {
    const connection = useConnection(name);
    return isOpen ? h(Chat, { connection }) : null;
  }
  const root = createRoot(document.body.appendChild(document.createElement("div")));
  tab.render = (name, isOpen = true) => {
    const page = h(Suspense, { fallback: null }, h(isApart ? Apart : Together, { name, isOpen }));
    root.render(isStrict ? h(StrictMode, null, page) : page);
  };
  tab.render(name);
  tab.unmount = () => root.unmount();
  tabs.push(tab);
  return tab;
}

export async function open(...given) {
  const tab = mount(...given);
  await until(() => isReady(tab), "the tab is ready");
  return tab;
}

export const text = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
export const shown = (tab) => tab.chat.messages.map((message) => [message.role, text(message)]);
export const isReady = (tab) => tab.chat?.status === "ready" && tab.agent.identified;
export const isWhole = (tab, count) => tab.chat.status === "ready" && tab.chat.messages.length === count
  && text(tab.chat.messages.at(-1)).endsWith("∎") && !tab.chat.isServerStreaming;
export const isSpeaking = (tab, count) => tab.chat.messages.length === count && tab.chat.messages.at(-1).role === "assistant"
  && text(tab.chat.messages.at(-1));
export const whole = (tab, count) => until(() => isWhole(tab, count), "the answer is whole");
export const begun = (tab, count) => until(() => isSpeaking(tab, count), "the answer begins");
export const say = (tab, words) => tab.chat.sendMessage({ role: "user", parts: [{ type: "text", text: words }] });
export const stored = async (path) => (await fetch(`${url}/agents/${path}/get-messages`)).json();
export const question = (tab) => tab.chat.messages.at(-1)?.parts.find((part) => part.state === "approval-requested");
export const states = (tab) => tab.chat.messages.at(-1).parts.filter((part) => part.toolCallId).map((part) => part.state);
