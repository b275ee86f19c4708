// Requests to the gateway, and event streams that find their way back after a lost line.

const TOKEN = "perdure-token";

/** The token that this tab was opened with (`/?token=…`), kept for the tab alone and taken out of the address. */
export function takeToken() {
  const address = new URL(location.href), given = address.searchParams.get("token");
  if (given) {
    sessionStorage.setItem(TOKEN, given);
    address.searchParams.delete("token");
    history.replaceState(null, "", address);
  }
}

const token = () => sessionStorage.getItem(TOKEN);
const root = new URL(".", document.baseURI).pathname;
const url = (path) => root + path;

/** A refusal of the gateway, with its words. */
export class Refused extends Error {
  constructor(status, told) {
    super(told?.message ?? `the gateway answered ${status}`);
    this.status = status;
    this.type = told?.type ?? "";
    this.field = told?.field ?? "";
  }
}

/** Ask the gateway, and return what it answers, from its JSON. Raises `Refused`. */
export async function ask(path, { method = "GET", body, signal } = {}) {
  const headers = { accept: "application/json" };
  if (token()) headers.authorization = `Bearer ${token()}`;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = await fetch(url(path), { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  const told = answer.status === 204 ? null : await answer.json().catch(() => null);
  if (!answer.ok) throw new Refused(answer.status, told?.error);
  return told;
}

/** Query parameters from an object, without what is empty. Each item of a list is a parameter. */
export function query(given) {
  const found = Object.entries(given).flatMap(([name, value]) => [value].flat().map((each) => [name, each])).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return found.length ? `?${new URLSearchParams(found)}` : "";
}

/**
 * Follow an event stream until `close()`. A lost line is opened again after the number of the last event, with growing pauses.
 * `on` has a function for each name of an event (`message` for those without one), and `up` and `down` for the line.
 */
export function follow(path, on) {
  let last = null, tries = 0, closed = false, leave = new AbortController();
  const pause = () => Math.min(5000, 250 * 2 ** Math.min(tries, 5)) * (0.75 + Math.random() / 2);
  (async () => {
    while (!closed) {
      try {
        await read();
      } catch (problem) {
        if (closed) return;
        if (problem instanceof Refused && problem.status < 500 && problem.status !== 429) { on.refused?.(problem); return; }
      }
      if (closed) return;
      on.down?.();
      tries += 1;
      await new Promise((ready) => setTimeout(ready, pause()));
    }
  })();

  async function read() {
    const headers = { accept: "text/event-stream" };
    if (token()) headers.authorization = `Bearer ${token()}`;
    if (last !== null) headers["last-event-id"] = last;
    leave = new AbortController();
    const answer = await fetch(url(path), { headers, signal: leave.signal, cache: "no-store" });
    if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => null))?.error);
    on.up?.();
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      tries = 0;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) take(block);
      on.batch?.();
    }
  }

  function take(block) {
    let name = "message", data = "";
    for (const line of block.split("\n")) {
      if (line.startsWith("data: ")) data += line.slice(6);
      else if (line.startsWith("event: ")) name = line.slice(7);
      else if (line.startsWith("id: ")) last = line.slice(4);
    }
    if (data) on[name]?.(JSON.parse(data));
  }

  return { close() { closed = true; leave.abort(); } };
}
