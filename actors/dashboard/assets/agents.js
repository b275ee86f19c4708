// The agents: those at work, and the classes that have an address.

import { ask } from "./api.js";
import { h, say, short, sync } from "./dom.js";

const EVERY_MS = 3000;

export function show(main) {
  const list = h("ul.rows"), trouble = h("p.notice.bad", { role: "alert", hidden: true }), none = h("p.faint", {}, "No agent is awake.");
  const name = h("input", { placeholder: "Address of an agent, for instance somebody@my.module:Helper", "aria-label": "Address of an agent" });
  const go = (event) => { event.preventDefault(); if (name.value.trim()) location.hash = `#/agents/${encodeURIComponent(name.value.trim())}`; };
  const served = h("ul");
  main.append(h("h1", {}, "Agents"), h("form.tools", { onsubmit: go }, name, h("button", {}, "Open")), trouble, h("section", {}, h("h2", {}, "Chat with"), served), h("h2", {}, "Awake"), none, h("section.group", {}, list));

  async function draw() {
    const told = await ask("api/overview?live=0").catch(() => null);
    if (!told) return;
    const agents = told.agents.slice(0, 500).map(([agent, host]) => ({ agent, host }));
    none.hidden = agents.length > 0;
    sync(list, agents, (each) => each.agent,
      (each) => h("li", {}, h("a.row", { href: `#/agents/${encodeURIComponent(each.agent)}` }, h("span.state.running", {}, "awake"), h("b.name", {}, short(each.agent)), h("span.said.mono", {}, each.agent), h("span"), h("span.when.mono"))),
      (item, each) => say(item.firstElementChild.lastElementChild, (each.host ?? "").slice(0, 6)));
  }

  (async () => {
    try {
      const told = await ask("dashboard/served");
      served.replaceChildren(...told.chat.map((each) => h("li", {}, h("a", { href: `#/agents/${encodeURIComponent(`default@${each.type}`)}?chat` }, each.class))));
      served.parentElement.hidden = told.chat.length === 0;
    } catch (problem) { trouble.hidden = false; say(trouble, problem.message); }
  })();
  draw();
  const drawing = setInterval(draw, EVERY_MS);
  return () => clearInterval(drawing);
}
