// Making and changing elements. Text is always set as text, so nothing that an agent says is read as markup.

/** An element: `h("a.row", {href: "#/x"}, "text", child)`. `on…` are listeners, `true` sets an empty attribute, null leaves one out. */
export function h(what, attributes = {}, ...children) {
  const [tag, ...classes] = what.split(".");
  const element = document.createElement(tag || "div");
  if (classes.length) element.className = classes.join(" ");
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set a text, but leave a text alone that is there already: what is selected in it stays selected. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Make the children of an element those of these items, in order. An item with a known key keeps its element. */
export function sync(parent, items, keyOf, create, update = () => {}) {
  const known = (parent.known ??= new Map());
  const keys = new Set(items.map(keyOf));
  for (const [key, element] of known) {
    if (!keys.has(key)) { element.remove(); known.delete(key); }
  }
  let before = parent.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = known.get(key);
    if (!element) known.set(key, (element = create(item)));
    update(element, item);
    if (element === before) before = before.nextElementSibling;
    else parent.insertBefore(element, before);
  }
}

/** The last part of a durable type name: `my.module:Reader` → `Reader`. */
export const short = (type) => String(type ?? "").split(":").pop().split(".").pop();

/** How long: `340 ms`, `12.4 s`, `3 min 20 s`, `5 h 12 min`. */
export function span(ms) {
  if (!Number.isFinite(ms) || ms < 0) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  if (ms < 3_600_000) return `${Math.floor(ms / 60_000)} min ${Math.floor((ms % 60_000) / 1000)} s`;
  return `${Math.floor(ms / 3_600_000)} h ${Math.floor((ms % 3_600_000) / 60_000)} min`;
}

/** The time of day of an instant, with its date if that is not today's. */
export function clock(ms) {
  if (!ms) return "";
  const at = new Date(ms), today = new Date();
  const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  return at.toDateString() === today.toDateString() ? time : `${at.toLocaleDateString()} ${time}`;
}

/** Data for people: a text as it is, anything else as indented JSON. */
export const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

/** Ask a person before something is done that cannot be taken back: what it does, and how much. Resolves to whether it is meant. */
export function confirmed(words, verb) {
  const dialog = h("dialog.asks", { "aria-label": verb }, h("p", {}, words),
    h("form.tools", { method: "dialog" }, h("button", { value: "no", autofocus: true }, "Leave it"), h("button.danger", { value: "yes" }, verb)));
  document.body.append(dialog);
  return new Promise((done) => {
    dialog.addEventListener("close", () => { dialog.remove(); done(dialog.returnValue === "yes"); });
    dialog.showModal();
  });
}

/** Tell what came of it: a success as one, a problem as one. */
export function tell(element, words, isGood) {
  element.className = `notice ${isGood ? "good" : "bad"}`;
  element.setAttribute("role", isGood ? "status" : "alert");
  element.hidden = false;
  say(element, words);
}

/** So many of something: `1 run`, `3 runs`. */
export const some = (count, what) => `${count.toLocaleString()} ${what}${count === 1 ? "" : "s"}`;
