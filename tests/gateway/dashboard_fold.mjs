// Folds each list of events of a file as the dashboard does, and prints what the dashboard would show at the end.
import { readFileSync } from "node:fs";

const [fold, stories] = process.argv.slice(2).map((each) => JSON.parse(each));
const { blank, take } = await import(fold);

for (const frames of JSON.parse(readFileSync(stories, "utf8"))) {
  const run = blank();
  for (const frame of frames) take(run, frame);
  const mine = run.items.filter((item) => item.attempt === run.attempt);
  console.log(JSON.stringify({
    status: run.status, attempt: run.attempt, error: run.error, summary: run.summary, milestones: run.milestones,
    fraction: run.progress?.fraction ?? null,
    text: mine.filter((item) => item.kind === "text").map((item) => item.text).join(""),
    calls: mine.filter((item) => item.kind === "call").map((item) => [item.name, item.state, item.output ?? null]),
    next: run.next,
  }));
}
