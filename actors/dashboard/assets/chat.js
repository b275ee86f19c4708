// A conversation with a chat agent, over the same routes as the AI SDK's `useChat`.

import { ask } from "./api.js";
import { questions } from "./asks.js";
import { h, say, shown, sync } from "./dom.js";
import { blank, take } from "./fold.js";

/** Show a conversation in an element, with what its agent asks people. Returns the way to leave it. */
export function talk(box, className, name, agent) {
  const list = h("div", { role: "log", "aria-label": "Conversation" }), input = h("input", { "aria-label": "Message", placeholder: "Write a message", autocomplete: "off" });
  const trouble = h("p.notice.bad", { role: "alert", hidden: true }), stop = h("button", { type: "button", hidden: true, onclick: cancel }, "Stop");
  const form = h("form.talk", { onsubmit: send }, input, h("button", {}, "Send"), stop);
  const asked = h("section");
  box.append(h("h2", {}, "Conversation"), list, asked, trouble, form);
  const path = `chat/${className}`, here = `${path}/${encodeURIComponent(name)}`;
  let messages = [], answer = null, number = 0, leave = new AbortController(), left = false, isReading = false;

  function fail(problem) {
    if (problem.name === "AbortError" || left) return;
    trouble.hidden = false;
    say(trouble, problem.message);
  }

  async function load() {
    messages = await ask(`agents/${className}/${encodeURIComponent(name)}/get-messages`);
    draw();
  }

  async function send(event) {
    event.preventDefault();
    const text = input.value.trim();
    if (!text) return;
    input.value = "";
    trouble.hidden = true;
    messages.push({ id: crypto.randomUUID(), role: "user", parts: [{ type: "text", text }] });
    await read(path, { method: "POST", body: JSON.stringify({ id: name, messages, trigger: "submit-message" }) });
  }

  async function cancel() {
    await ask(`${here}/cancel`, { method: "POST", body: {} }).catch(fail);
  }

  /** Read an answer to its end. A lost line is asked for again, and told from its beginning. */
  async function read(target, options = {}) {
    isReading = true;
    for (let tries = 0; tries < 40 && !left; tries += 1) {
      try {
        if (await readOnce(tries === 0 ? target : `${here}/stream`, tries === 0 ? options : {})) break;
      } catch (problem) {
        if (problem.name === "AbortError" || left) return;
        if (!(problem instanceof TypeError) && !problem.isLost) { fail(problem); break; }
      }
      await new Promise((ready) => setTimeout(ready, Math.min(2000, 200 * (tries + 1))));
    }
    isReading = false;
    answer = null;
    stop.hidden = true;
    await load().catch(fail);
  }

  async function readOnce(target, options) {
    leave = new AbortController();
    const headers = { "content-type": "application/json" }, token = sessionStorage.getItem("perdure-token");
    if (token) headers.authorization = `Bearer ${token}`;
    const told = await fetch(new URL(target, document.baseURI), { ...options, headers, signal: leave.signal });
    if (told.status === 204) return true;
    if (!told.ok) throw Object.assign(new Error(await told.text()), { isLost: told.status >= 500 });
    if (messages.at(-1)?.role === "assistant") messages = messages.slice(0, -1);  // it goes on, and is told from its beginning
    answer = blank();
    stop.hidden = false;
    const reader = told.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "", sequence = 0;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return false;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split("\n").filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("");
        if (data === "[DONE]") return true;
        if (data) take(answer, { sequence: sequence++, event: { kind: "chunk", body: JSON.parse(data) } });
      }
      draw();
    }
  }

  const pieces = (message) => message.items ?? message.parts.map((part) => (part.toolCallId ? { kind: "call", name: part.toolName ?? part.type.replace(/^tool-/, ""), state: part.state, input: part.input, output: part.output ?? part.errorText } : { kind: part.type, text: part.text ?? "" }));

  function drawn(message) {
    return h(`div.message.${message.role}`);
  }

  function redraw(element, message) {
    const found = pieces(message).filter((piece) => piece.kind === "call" || piece.text);
    const key = found.map((piece) => `${piece.kind}${piece.state ?? piece.text.length}`).join();
    if (element.dataset.key === key) return;
    element.dataset.key = key;
    element.replaceChildren(h("span.hidden", {}, message.role === "user" ? "You: " : "Agent: "), ...found.map((piece) => (piece.kind === "call"
      ? h("details.call", {}, h("summary", {}, h("b", {}, piece.name), " ", h("span.chip", {}, piece.state ?? "")), h("pre", {}, shown(piece.input ?? "")), piece.output === undefined ? null : h("pre", {}, shown(piece.output)))
      : h(`div.text${piece.kind === "reasoning" ? ".thought" : ""}`, {}, piece.text))));
  }

  function draw() {
    const all = answer ? [...messages, { id: "answer", role: "assistant", items: answer.items }] : messages;
    sync(list, all, (message) => message.id ?? (message.key ??= ++number), drawn, redraw);
  }

  (async () => {
    try {
      await load();
      await read(`${here}/stream`);
    } catch (problem) { fail(problem); }
  })();
  // What was asked is answered, by whomever: the turn goes on.
  const leaveQuestions = questions(asked, agent, () => { if (!isReading && !left) read(`${here}/stream`); });
  return () => { left = true; leave.abort(); leaveQuestions(); };
}
