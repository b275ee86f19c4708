// The processes: the supervisor and the hosts, and for those who may, a button that kills one.

import { ask } from "./api.js";
import { confirmed, h, say, some, sync, tell } from "./dom.js";
import { state, watch } from "./live.js";

export function show(main) {
  const body = h("tbody"), notice = h("p.notice", { hidden: true });
  const head = ["process", "pid", "node", "state", "agents", "at work", "memory", ""];
  const numbers = new Set(["pid", "agents", "at work", "memory"]);
  main.append(h("h1", {}, "Hosts"), notice, h("div.wide", {}, h("table", {}, h("thead", {}, h("tr", {}, ...head.map((name) => h(numbers.has(name) ? "th.number" : "th", { scope: "col" }, name)))), body)));
  let mayKill = false;

  async function kill(name, target) {
    if (!(await confirmed(consequence(name), "Kill it"))) return;
    try {
      tell(notice, (await ask("api/kill", { method: "POST", body: target })).told, true);
    } catch (problem) { tell(notice, problem.message, false); }
  }

  function consequence(name) {
    if (name === "supervisor") return "The supervisor is ended at once. Nothing durable is lost: Ray starts it again, and until then the hosts go on and nothing new is decided.";
    const host = (state.overview?.hosts ?? []).find((each) => each.host === name);
    return `Host ${name} is ended at once, with ${some(host?.tenants ?? 0, "agent")} on it, ${host?.load ?? 0} of them at work. Nothing durable is lost: they go on elsewhere, their runs by another attempt.`;
  }

  function processes() {
    const overview = state.overview;
    if (!overview) return [];
    const supervisor = overview.supervisor ?? {};
    return [{ name: "supervisor", target: { process: "supervisor" }, pid: supervisor.pid, node: supervisor.node, state: `life ${overview.epoch ?? ""}`, tenants: "", load: "", rss: supervisor.rss_mb },
      ...(overview.hosts ?? []).map((each) => ({ name: each.host, target: { process: each.host }, pid: each.pid, node: each.node, state: each.up ? "up" : "starting", tenants: each.tenants, load: each.load, rss: each.rss_mb }))];
  }

  function line(each) {
    return h("tr", {}, h("th.mono", { scope: "row" }), h("td.number"), h("td"), h("td"), h("td.number"), h("td.number"), h("td.number"),
      h("td", {}, h("button.danger", { hidden: true, "aria-label": `Kill ${each.name}`, onclick: () => kill(each.name, each.target) }, "Kill")));
  }

  function draw() {
    sync(body, processes(), (each) => each.name, line, (element, each) => {
      [each.name, each.pid, each.node, each.state, each.tenants, each.load, each.rss ? `${Math.round(each.rss)} MB` : ""].forEach((value, at) => say(element.children[at], String(value ?? "")));
      element.lastElementChild.firstElementChild.hidden = !mayKill;
    });
  }

  ask("dashboard/served").then((told) => { mayKill = told.may_kill; draw(); }, (problem) => tell(notice, problem.message, false));
  draw();
  return watch(draw);
}
