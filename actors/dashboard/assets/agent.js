// One agent: what it keeps and what it does, and a conversation with it if it is a chat agent.

import { ask, query } from "./api.js";
import { questions } from "./asks.js";
import { talk } from "./chat.js";
import { clock, h, say, shown } from "./dom.js";
import { row } from "./runs.js";

const SECTIONS = [["turns", "Turns"], ["fibers", "Fibers"], ["schedules", "Schedules"], ["queue", "Queue"], ["mail", "Mail"]];
const TIMES = /_at_ms$/;

/** A table of records: their fields are its columns. */
export function table(records, caption) {
  const names = [...new Set(records.flatMap((each) => Object.keys(each)))].slice(0, 12);
  const cell = (name, value) => (value === null || value === undefined ? "" : TIMES.test(name) ? clock(value) : shown(value));
  return h("div.wide", {}, h("table", { "aria-label": caption },
    h("thead", {}, h("tr", {}, ...names.map((name) => h("th", { scope: "col" }, name.replaceAll("_", " ").replace(/ at ms$/, ""))))),
    h("tbody", {}, ...records.map((record) => h("tr", {}, ...names.map((name) => h("td", {}, cell(name, record[name]))))))));
}

const records = (value) => (Array.isArray(value) ? value.map((each) => (each && typeof each === "object" && !Array.isArray(each) ? each : { value: each })) : value && typeof value === "object" ? [value] : []);

export function show(main, agent) {
  const trouble = h("p.notice.bad", { role: "alert", hidden: true }), body = h("div"), runs = h("ul.rows"), runsBox = h("section", { hidden: true }, h("h2", {}, "Runs that it asked for"), h("div.group", {}, runs));
  const conversation = h("section"), asked = h("section");
  main.append(h("p", {}, h("a", { href: "#/agents" }, "← Agents")), h("h1", {}, agent.split("@")[0], " ", h("small.mono", {}, agent.slice(agent.indexOf("@") + 1))), trouble, conversation, asked, body, runsBox,
    h("div.tools", {}, h("button", { onclick: load }, "Look again")));

  async function load() {
    try {
      const told = await ask(`api/agents/${encodeURIComponent(agent)}`);
      trouble.hidden = true;
      draw(told);
    } catch (problem) {
      trouble.hidden = problem.status === 404 && conversation.childElementCount > 0;
      say(trouble, problem.message);
    }
    const found = await ask(`api/runs${query({ parent: agent, limit: 100 })}`).catch(() => ({ runs: [] }));
    runsBox.hidden = found.runs.length === 0;
    runs.replaceChildren(...found.runs.map(row));
  }

  function draw(told) {
    const parts = [];
    const { state, tables, ledger, ...rest } = told;
    const facts = Object.entries({ ...(ledger ?? {}), ...rest }).filter(([, value]) => value !== null && typeof value !== "object");
    parts.push(h("dl.facts", {}, ...facts.flatMap(([name, value]) => [h("dt", {}, name.replaceAll("_", " ")), h("dd", {}, TIMES.test(name) ? clock(value) : String(value))])));
    if (state && Object.keys(state).length) parts.push(h("h2", {}, "State"), h("pre", {}, shown(state)));
    for (const [name, caption] of SECTIONS) {
      const found = records(rest[name]);
      if (found.length) parts.push(h("h2", {}, caption), table(found, caption));
    }
    const named = Array.isArray(tables) ? tables.map((each) => [each.name ?? each.table, each.rows ?? each]) : Object.entries(tables ?? {});
    for (const [name, rows] of named) parts.push(h("h2", {}, "Table ", h("span.mono", {}, name)), Array.isArray(rows) && rows.length ? table(records(rows), name) : h("p.faint", {}, typeof rows === "number" ? `${rows} rows` : "no rows"));
    body.replaceChildren(...parts);
  }

  let leave = () => {};
  (async () => {
    const served = await ask("dashboard/served").catch(() => ({ chat: [] }));
    const mine = served.chat.find((each) => agent.endsWith(`@${each.type}`));
    if (mine) leave = talk(conversation, mine.class, agent.slice(0, -mine.type.length - 1), agent);
    else leave = questions(asked, agent);
    await load();
  })();
  return () => leave();
}
