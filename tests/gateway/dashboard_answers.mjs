// Reads schemas, and what was said in their forms, as the dashboard does, and prints what it would show and send.
import { readFileSync } from "node:fs";

const [answers, cases] = process.argv.slice(2).map((each) => JSON.parse(each));
const { changed, form, said, saidInAll, worded } = await import(answers);

function tried(job) {
  try { return job() ?? null; } catch (problem) { return { field: problem.field, words: problem.message }; }
}

for (const each of JSON.parse(readFileSync(cases, "utf8"))) {
  if ("edited" in each) { console.log(JSON.stringify(tried(() => changed(each.proposed, each.edited)))); continue; }
  const found = form(each.schema);
  const kinds = found.choices ? found.choices.map(worded) : found.fields ? found.fields.map((field) => [field.name, field.kind, field.isRequired]) : found.field ? found.field.kind : "json";
  const value = each.said === undefined ? null : found.fields ? tried(() => saidInAll(found.fields, each.said)) : tried(() => said(found.field, each.said));
  console.log(JSON.stringify([kinds, value]));
}
