// What an answer to a question looks like, by the JSON schema that it is to fit, and what was said in the fields of its form.
//
// A schema is read as far as a form can be made of it. What fits is said by the gateway; here it is only found out what was meant.

const KINDS = new Set(["string", "number", "integer", "boolean"]);
const NULL = { type: "null" };

/** A schema without references and without what wraps a single one. `root` has the definitions. */
function plain(schema, root, depth = 0) {
  if (!schema || typeof schema !== "object") return {};
  if (depth > 16) return schema;
  const { $ref, allOf, ...rest } = schema;
  if ($ref !== undefined) {
    let found = typeof $ref === "string" && $ref.startsWith("#/") ? root : undefined;
    for (const part of found ? $ref.slice(2).split("/") : []) found = found?.[decodeURIComponent(part).replaceAll("~1", "/").replaceAll("~0", "~")];
    return found ? { ...plain(found, root, depth + 1), ...rest } : schema;
  }
  if (allOf?.length === 1) return { ...plain(allOf[0], root, depth + 1), ...rest };
  return schema;
}

const alternatives = (schema) => schema.anyOf ?? schema.oneOf ?? (Array.isArray(schema.type) ? schema.type.map((type) => ({ ...schema, type })) : null);

/** The values of which one is to be chosen, if there are so few that they can be listed; else null. */
export function choices(schema, root = schema) {
  const found = plain(schema, root);
  if (Array.isArray(found.enum)) return found.enum;
  if ("const" in found) return [found.const];
  if (found.type === "boolean") return [true, false];
  if (found.type === "null") return [null];
  const parts = alternatives(found)?.map((each) => choices(each, root));
  return parts?.length && parts.every(Boolean) ? parts.flat() : null;
}

/** A choice in words. */
export const worded = (value) => (value === true ? "Yes" : value === false ? "No" : value === null ? "Nothing" : typeof value === "string" ? value || "(an empty text)" : JSON.stringify(value));

/** A field of a form: `kind` is `choice`, `string`, `number` or `integer`; null if the schema asks for more than a field can take. */
function field(name, schema, root, isRequired) {
  let found = plain(schema, root);
  const parts = alternatives(found), some = parts?.filter((each) => plain(each, root).type !== NULL.type);
  const isNullable = Boolean(parts) && some.length < parts.length;
  if (some?.length === 1) found = { ...found, ...plain(some[0], root) };
  const { title, description, default: given, format } = found, about = { name, title: title ?? name, description: description ?? "", isRequired, isNullable, given, format };
  const values = choices(found, root);
  if (values) return { ...about, kind: "choice", values };
  return typeof found.type === "string" && KINDS.has(found.type) ? { ...about, kind: found.type } : null;
}

/**
 * How an answer is asked for: by `choices`; by a `field` (text or number); by the `fields` of an object that has nothing nested in it; or
 * else as `json`.
 */
export function form(schema) {
  const values = choices(schema);
  if (values) return { choices: values };
  const found = plain(schema, schema);
  if (found.type === "object" && found.properties && Object.keys(found.properties).length && !(found.additionalProperties && typeof found.additionalProperties === "object") && !found.patternProperties) {
    const required = new Set(found.required ?? []);
    const fields = Object.entries(found.properties).map(([name, each]) => field(name, each, schema, required.has(name)));
    if (fields.every(Boolean) && [...required].every((name) => Object.hasOwn(found.properties, name))) return { fields };
    return { json: true };
  }
  const single = field("", schema, schema, true);
  return single && !single.isNullable ? { field: single } : { json: true };
}

/** What is wrong with what was said in a field. */
export class NotSaid extends Error {
  constructor(name, words) {
    super(words);
    this.field = name ? `value.${name}` : "value";
  }
}

/** The value that was said in a field, of its text (of a choice, its number; empty if none was made); undefined if it is left out. */
export function said(field, text) {
  const called = field.name ? `“${field.title}”` : "the answer";
  const isEmpty = field.kind === "string" ? text === "" && (!field.isRequired || field.isNullable) : text.trim() === "";
  if (isEmpty && !field.isRequired) return undefined;
  if (isEmpty && field.isNullable) return null;
  if (isEmpty) throw new NotSaid(field.name, `${called} is missing`);
  if (field.kind === "string") return text;
  if (field.kind === "choice") return field.values[Number(text)];
  const number = Number(text);
  if (!Number.isFinite(number)) throw new NotSaid(field.name, `${called}: ${JSON.stringify(text)} is no number`);
  if (field.kind === "integer" && !Number.isInteger(number)) throw new NotSaid(field.name, `${called}: ${text} is no whole number`);
  if (Number.isInteger(number) && !Number.isSafeInteger(number)) throw new NotSaid(field.name, `${called}: ${text} has more digits than a browser can send; use \`perdure answer\``);
  return number;
}

/** The object that was said in the fields of a form, of their texts by names. */
export function saidInAll(fields, texts) {
  return Object.fromEntries(fields.map((each) => [each.name, said(each, texts[each.name] ?? "")]).filter(([, value]) => value !== undefined));
}

/** Data from the JSON that somebody wrote. */
export function saidAsJson(text, name = "") {
  try { return JSON.parse(text); } catch (problem) { throw Object.assign(new NotSaid(name, `that is no JSON: ${problem.message}`), { field: name || "value" }); }
}

const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);

function same(one, two) {
  if (Array.isArray(one) || Array.isArray(two)) return Array.isArray(one) && Array.isArray(two) && one.length === two.length && one.every((each, at) => same(each, two[at]));
  if (!isObject(one) || !isObject(two)) return one === two;
  const names = Object.keys(one);
  return names.length === Object.keys(two).length && names.every((name) => Object.hasOwn(two, name) && same(one[name], two[name]));
}

/** Of arguments that were edited, those that differ from the proposed ones; undefined if none does. */
export function changed(proposed, text) {
  const edited = saidAsJson(text, "args");
  if (!isObject(edited)) throw Object.assign(new NotSaid("", "the arguments are to be an object, in braces"), { field: "args" });
  const gone = Object.keys(proposed).find((name) => !Object.hasOwn(edited, name));
  if (gone !== undefined) throw Object.assign(new NotSaid("", `the argument “${gone}” is missing; arguments may be changed, and none left out`), { field: "args" });
  const found = Object.entries(edited).filter(([name, value]) => !(Object.hasOwn(proposed, name) && same(proposed[name], value)));
  return found.length ? Object.fromEntries(found) : undefined;
}
