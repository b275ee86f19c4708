// What people are asked: the inbox of the directory, and the same questions where they belong, at a run and at an agent.

import { ask as request, query } from "./api.js";
import { changed, form, NotSaid, said, saidAsJson, saidInAll, worded } from "./answers.js";
import { clock, h, say, short, shown, some, span, sync, tell } from "./dom.js";
import { state, watch } from "./live.js";

const PAGE = 100;
const MOST = 1000; // that the gateway lists
const BUTTONS = 12;
const TICK_MS = 5000;
const NAME = "perdure-name";
const KINDS = { approval: "approval of a call", "client-tool": "result of a call, which a client may bring too" };
const OVER = new Set(["AlreadyAnswered", "AskClosed", "UnknownAsk"]);

let served, number = 0;

/** Who answers, where the gateway knows it by the token; else null. */
const person = () => (served ??= request("dashboard/served").then((told) => told.person, () => { served = undefined; return null; }));

/** A word that no other request has, also where the page is not served over TLS. */
const token = () => [...crypto.getRandomValues(new Uint32Array(4))].map((each) => each.toString(16)).join("");

const isOpen = (ask) => ask.status === "open";
const asker = (ask) => ask.agent ?? (ask.run_id ? `${ask.run_id}@${ask.agent_type}` : null);

// ---------------------------------------------------------------- one question

function facts(ask) {
  const agent = asker(ask);
  const answers = ask.answers.map((each) => h("li", {}, h("b", {}, each.who), ` (${each.channel}), ${clock(each.at_ms)}: `, h("span.said", {}, shown(worded(each.value))),
    each.args === null ? null : h("details", {}, h("summary", {}, "with other arguments"), h("pre", {}, shown(each.args)))));
  const rows = [
    ["asked by", [ask.run_id ? h("a", { href: `#/runs/${encodeURIComponent(ask.run_id)}` }, `run ${ask.run_id}`) : null, ask.run_id && agent ? " · " : null, agent ? h("a", { href: `#/agents/${encodeURIComponent(agent)}` }, ask.run_id ? short(ask.agent_type) : agent) : null]],
    ["call", ask.tool ? [h("b", {}, ask.tool), " ", h("span.mono.faint", {}, ask.call_id ?? "")] : null],
    ["since", [clock(ask.opened_at_ms), isOpen(ask) ? h("span.age.faint", { "data-since": ask.opened_at_ms }) : null]],
    ["until", ask.expires_at_ms ? [clock(ask.expires_at_ms), ask.otherwise === null ? "" : `; without an answer it is ${worded(ask.otherwise)}`] : null],
    ["for", [ask.to.length ? ask.to.join(" or ") : "anybody"]],
    ["goes on to", ask.later?.length && isOpen(ask) ? [ask.later.map((each) => `${each.to}, ${clock(each.at_ms)}`).join("; ")] : null],
    ["people", ask.people > 1 ? [`${ask.people} different people are to say the same`] : null],
    ["begun by", ask.began_by ? [ask.began_by, ask.self_answer ? ", who may answer it as well" : ""] : null],
    ["note", ask.note ? [h("span.text", {}, ask.note)] : null],
    [isOpen(ask) ? "answers so far" : "answers", answers.length ? [h("ul.plain", {}, ...answers)] : null],
    ["closed", ask.closed_at_ms ? [clock(ask.closed_at_ms)] : null],
  ];
  return rows.filter(([, parts]) => parts).flatMap(([name, parts]) => [h("dt", {}, name), h("dd", {}, ...parts.filter((each) => each !== null))]);
}

/** The element in which a field of a form is said. */
function control(field, id) {
  const about = { id, "data-field": field.name ? `value.${field.name}` : "value", "aria-label": field.name ? null : "Answer" };
  const has = field.given !== undefined && field.given !== null;
  if (field.kind === "choice") {
    const at = field.values.findIndex((each) => JSON.stringify(each) === JSON.stringify(field.given));
    return h("select", about, h("option", { value: "" }, field.isRequired ? "choose…" : "—"), ...field.values.map((each, place) => h("option", { value: String(place), selected: place === at }, worded(each))));
  }
  if (field.kind === "string" && (!field.name || String(field.given ?? "").includes("\n"))) return h("textarea", { ...about, rows: "2" }, has ? String(field.given) : "");
  return h("input", { ...about, type: "text", inputmode: field.kind === "integer" ? "numeric" : field.kind === "number" ? "decimal" : null, autocomplete: "off", value: has ? String(field.given) : null });
}

/** The way to answer a question by its schema: elements, of which one calls `send` with what gives the value. */
function answering(ask, send) {
  const found = form(ask.schema ?? {}), id = `answer-${(number += 1)}`;
  const submitted = (elements, value, verb = "Answer") => h("form.answer", { novalidate: true, onsubmit: (event) => { event.preventDefault(); send(value); } }, ...elements, h("button", {}, verb));
  if (found.choices && found.choices.length <= BUTTONS)
    return h("div.tools", { role: "group", "aria-label": "Answers" }, ...found.choices.map((each) => h("button", { type: "button", onclick: () => send(() => each) }, worded(each))));
  if (found.choices) {
    const field = { name: "", kind: "choice", values: found.choices, isRequired: true }, element = control(field, id);
    return submitted([element], () => said(field, element.value));
  }
  if (found.field) {
    const element = control(found.field, id);
    return submitted([element], () => said(found.field, element.value));
  }
  if (found.fields) {
    const elements = found.fields.map((each, at) => control(each, `${id}-${at}`));
    const lines = found.fields.map((each, at) => h("p", {}, h("label", { for: `${id}-${at}` }, each.title, each.isRequired ? "" : h("small", {}, " (optional)")), elements[at], each.description ? h("small.faint", {}, each.description) : null));
    return submitted(lines, () => saidInAll(found.fields, Object.fromEntries(found.fields.map((each, at) => [each.name, elements[at].value]))));
  }
  const area = h("textarea.mono", { id, rows: "3", "data-field": "value", "aria-label": "Answer, as JSON", placeholder: "JSON", spellcheck: "false" });
  return submitted([area, h("details", {}, h("summary", {}, "what fits (JSON schema)"), h("pre", {}, shown(ask.schema)))], () => saidAsJson(area.value));
}

function outcome(ask) {
  if (isOpen(ask)) return ask.refusal ? h("p.faint", {}, `${ask.refusal}.`) : null;
  const latest = ask.answers.at(-1);
  if (ask.status === "answered" && latest) return h("p", {}, h("b", {}, `Answered by ${latest.who}: `), shown(worded(latest.value)));
  const words = { expired: `Nobody answered in time${ask.otherwise === null ? "" : `; it is ${worded(ask.otherwise)}`}.`, withdrawn: "It was withdrawn: nobody waits for the answer any more.", gone: "It is not known any more." };
  return h("p", {}, words[ask.status] ?? ask.status);
}

// ---------------------------------------------------------------- many questions

/**
 * Keep a list with the questions that a filter chooses, as they change. `told` is given those that were found, after each look. Returns
 * the way to look again (`load`), to forget what was kept for the reader (`forget`), and to end it (`leave`).
 */
function follow(box, filter, told, who) {
  const list = h("ul.asks"), notice = h("p.notice", { hidden: true });
  box.append(notice, list);
  const kept = new Map(), notices = new Map(), touched = new Set();
  let asks = [], mark, isLoading = false, isToLoad = false, hasLeft = false;

  function create(ask) {
    const item = h("li", {}, h("article.ask", { tabindex: "-1", oninput: () => touched.add(ask.ask_id) }));
    item.ask = ask;
    return item;
  }

  function update(item, ask) {
    const key = `${ask.digest} ${ask.status} ${ask.refusal}`, lively = JSON.stringify([ask.answers, ask.to, ask.later, ask.note, ask.opened_at_ms]), former = item.ask;
    item.ask = ask;
    if (item.dataset.key !== key) {
      if (item.dataset.key && former.digest !== ask.digest && !notices.has(ask.ask_id)) notices.set(ask.ask_id, ["It is asked anew: this is what it says now.", true]);
      item.dataset.key = key;
      item.dataset.lively = "";
      build(item.firstElementChild, ask);
    }
    if (item.dataset.lively !== lively) {
      item.dataset.lively = lively;
      item.querySelector("dl").replaceChildren(...facts(ask));
    }
    const words = notices.get(ask.ask_id), at = item.querySelector("p.notice");
    if (words) tell(at, ...words); else at.hidden = true;
  }

  function build(article, ask) {
    const id = `ask-${(number += 1)}`;
    article.setAttribute("aria-labelledby", id);
    const args = ask.args && isOpen(ask) && !ask.refusal ? h("textarea.mono", { rows: String(Math.min(12, shown(ask.args).split("\n").length)), "data-field": "args", "aria-label": "Proposed arguments, which you may change", spellcheck: "false" }, shown(ask.args)) : null;
    const send = (value) => answer(article, ask, value, args);
    article.replaceChildren(
      h("h3.text", { id }, ask.question),
      h("p", {}, h("span.mono.faint", {}, ask.ask_id), " ", isOpen(ask) ? null : h("span.chip", {}, ask.status), KINDS[ask.kind] ? h("span.chip", {}, KINDS[ask.kind]) : null),
      h("dl.facts"),
      ...(ask.args ? [h("p.faint", {}, args ? "Proposed arguments, which you may change:" : "Proposed arguments:"), args ?? h("pre", {}, shown(ask.args))] : []),
      ...[outcome(ask), isOpen(ask) && !ask.refusal ? answering(ask, send) : null].filter(Boolean),
      h("p.notice", { hidden: true }),
      ...(kept.has(ask.ask_id) ? [h("div.tools", {}, h("button", { type: "button", onclick: () => { kept.delete(ask.ask_id); notices.delete(ask.ask_id); draw(); } }, "Take it away"))] : []));
  }

  let sent = { text: "", id: "" }; // the same answer, sent again after a lost line, has the same id

  async function answer(article, ask, value, args) {
    const at = [...list.children].indexOf(article.parentElement), wrong = (name) => [...article.querySelectorAll("[data-field]")].find((each) => each.dataset.field === name);
    const fail = (words, name) => {
      notices.set(ask.ask_id, [words, false]);
      tell(article.querySelector("p.notice"), words, false);
      const element = name && (wrong(name) ?? (name.startsWith("args") ? wrong("args") : null));
      if (element) { element.setAttribute("aria-invalid", "true"); element.focus(); }
    };
    for (const each of article.querySelectorAll("[aria-invalid]")) each.removeAttribute("aria-invalid");
    let body;
    try {
      body = { value: value(), digest: ask.digest, channel: "dashboard", ...(args ? { args: changed(ask.args, args.value) } : {}), ...(who() ? { who: who() } : {}) };
    } catch (problem) {
      if (!(problem instanceof NotSaid)) throw problem;
      return fail(problem.message, problem.field);
    }
    const text = JSON.stringify([ask.ask_id, body]);
    if (sent.text !== text) sent = { text, id: token() };
    const buttons = [...article.querySelectorAll("button")];
    for (const each of buttons) each.disabled = true;
    try {
      const now = await request(`api/asks/${encodeURIComponent(ask.ask_id)}/answer`, { method: "POST", body: { ...body, answer_id: sent.id } });
      sent = { text: "", id: "" };
      touched.delete(ask.ask_id);
      notices.delete(ask.ask_id);
      if (isOpen(now)) notices.set(ask.ask_id, [`Your answer counts: ${worded(body.value)}. ${now.people} different people are to say the same.`, true]);
      else tell(notice, `${ask.ask_id} is answered: ${shown(worded(body.value))}`, true);
      await load();
      if (!isOpen(now) && !hasLeft) (list.children[Math.min(at, list.children.length - 1)]?.firstElementChild ?? notice).focus();
    } catch (problem) {
      if (hasLeft) return undefined;
      const isLost = problem.status === undefined;
      fail(isLost ? "The gateway was not reached. The same answer may be given again, and counts once." : `${problem.message}.`.replace(/([.!?])\.$/, "$1"), problem.field);
      if (OVER.has(problem.type) || problem.field === "digest") await shownAnew(ask);
    } finally {
      for (const each of buttons) each.disabled = false;
    }
    return undefined;
  }

  /** Look at a question again that is not as it was shown. If it is over it stays for who has looked at it. */
  async function shownAnew(ask) {
    const now = await request(`api/asks/${encodeURIComponent(ask.ask_id)}`).catch((problem) => ({ ...ask, status: problem.status === 404 ? "gone" : ask.status }));
    if (!isOpen(now)) kept.set(ask.ask_id, now);
    touched.delete(ask.ask_id);
    await load();
  }

  function draw() {
    const known = new Set(asks.map((each) => each.ask_id)), others = [...kept.values()].filter((each) => !known.has(each.ask_id));
    const rank = (each) => (isOpen(each) || others.includes(each) ? 0 : 1);
    const all = others.length ? [...asks, ...others].sort((one, two) => rank(one) - rank(two) || one.opened_at_ms - two.opened_at_ms) : asks;
    sync(list, all, (each) => each.ask_id, create, update);
    ages();
  }

  function ages() {
    const now = Date.now();
    for (const each of list.querySelectorAll(".age")) say(each, ` (${span(Math.max(0, now - Number(each.dataset.since)))})`);
  }

  async function load() {
    if (isLoading) { isToLoad = true; return; }
    isLoading = true;
    try {
      do {
        isToLoad = false;
        mark = state.overview?.asks?.mark;
        const found = (await request(`api/asks${query(filter())}`)).asks;
        if (hasLeft) return;
        const still = new Set(found.map((each) => each.ask_id)), lost = asks.filter((each) => touched.has(each.ask_id) && !still.has(each.ask_id) && !kept.has(each.ask_id));
        for (const each of lost) {
          const now = await request(`api/asks/${encodeURIComponent(each.ask_id)}`).catch(() => ({ ...each, status: "gone" }));
          if (!isOpen(now)) { kept.set(each.ask_id, now); notices.set(each.ask_id, ["It was closed while you wrote.", false]); }
          touched.delete(each.ask_id);
        }
        asks = found;
        draw();
        told(asks);
      } while (isToLoad);
    } catch (problem) {
      if (!hasLeft) tell(notice, `The questions could not be read: ${problem.message}`, false);
    } finally { isLoading = false; }
  }

  const unwatch = watch(() => { if (state.overview?.asks?.mark !== mark) load(); });
  const ticking = setInterval(ages, TICK_MS);
  return {
    load,
    forget() { kept.clear(); notices.clear(); notice.hidden = true; },
    leave() { hasLeft = true; unwatch(); clearInterval(ticking); },
  };
}

/** The field for the name of whoever answers, where the token does not say it. Returns the element, and what gives the name. */
function naming() {
  const input = h("input", { placeholder: "Your name", "aria-label": "Your name, as it is recorded", autocomplete: "name", hidden: true, maxlength: "256", value: localStorage.getItem(NAME), oninput: () => localStorage.setItem(NAME, input.value.trim()) });
  person().then((name) => { input.hidden = name !== null; });
  return [input, () => (input.hidden ? "" : input.value.trim())];
}

/** The questions of a run or an agent, in an element that is hidden while there are none. `changed` is told when other ones are open. */
export function questions(box, asked_by, changed = () => {}) {
  const [name, who] = naming(), inner = h("div");
  let open = "";
  box.hidden = true;
  box.append(h("h2", {}, "Questions"), h("div.tools", {}, name), inner);
  const following = follow(inner, () => ({ asked_by, closed: true, limit: PAGE }), (asks) => {
    const now = asks.filter(isOpen).map((each) => each.ask_id).join("\n");
    box.hidden = box.hidden && asks.length === 0;
    if (now !== open) { open = now; changed(); }
  }, who);
  following.load();
  return following.leave;
}

export function show(main) {
  const [name, who] = naming(), box = h("div"), none = h("p.faint", { hidden: true }), count = h("p.faint", { role: "status" });
  const to = h("input", { type: "search", list: "groups", placeholder: "For a group or a person", "aria-label": "For a group or a person", oninput: () => { clearTimeout(typing); typing = setTimeout(anew, 250); } });
  const groups = h("datalist", { id: "groups" }), closed = h("input", { type: "checkbox", onchange: anew }), more = h("button", { hidden: true, onclick: () => { limit = Math.min(MOST, limit + PAGE); following.load(); } }, "More questions");
  let limit = PAGE, typing;
  main.append(h("h1", {}, "Asks ", h("small", {}, "those that wait for longest first")), h("div.tools", {}, to, groups, h("label", {}, closed, " closed ones too"), name), count, none, box, more);

  function anew() {
    limit = PAGE;
    following.forget();
    following.load();
  }

  function told(asks) {
    const isCut = asks.length >= limit, open = state.overview?.asks?.open ?? 0, all = !to.value.trim() && !closed.checked;
    none.hidden = asks.length > 0;
    say(none, to.value.trim() ? "Nothing is asked of these." : "Nothing is asked.");
    more.hidden = !isCut || limit >= MOST;
    const first = `The first ${asks.length.toLocaleString()}`;
    say(count, isCut ? `${all && open > asks.length ? `${first} of ${some(open, "open question")}` : first}${limit >= MOST ? "; no more than these are listed, so answer some, or say for whom" : ""}.` : asks.length ? `${some(asks.length, "question")}.` : "");
    const names = [...new Set([...[...groups.children].map((each) => each.value), ...asks.flatMap((each) => each.to)])].slice(0, 200);
    if (names.length !== groups.childElementCount) groups.replaceChildren(...names.map((value) => h("option", { value })));
  }

  const following = follow(box, () => ({ to: to.value.trim(), closed: closed.checked || null, limit }), told, who);
  following.load();
  return () => { clearTimeout(typing); following.leave(); };
}
