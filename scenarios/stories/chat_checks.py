"""The checks of a turn of a chat scenario.

Four records must agree: the client's events, the transcript, the provider's requests, and the files that the tools changed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from perdure import PerdureError, TurnResult
from perdure.actors import apply_chunk
from perdure.policies import Part
from perdure.scenarios.cast.guide import EFFECTS, Guide, Quiz
from perdure.scenarios.provider.script import Script, conclusion, key_of, read
from perdure.scenarios.provider.scripted import SeenRequest
from perdure.scenarios.stories.stage import Stage

ATTACHES_MAX: Final = 50


# Of each attempt there must be one end.
class TurnListener:
    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        self.ends: list[str] = []
        self.cause = ""

    def on_event(self, event: dict[str, Any]) -> None:
        self.events.append(event)

    def on_done(self) -> None:
        self.ends.append("done")

    def on_error(self, text: str) -> None:
        self.ends.append("error")

    def on_interrupted(self, info: Any) -> None:
        self.ends.append("interrupted")
        self.cause = info.cause


# `problem` is what was raised instead of a result.
@dataclass
class AskedQuestion:
    number: int
    result: TurnResult | None = None
    listeners: list[TurnListener] = field(default_factory=list)
    problem: str = ""

    @property
    def events(self) -> list[dict[str, Any]]:
        return [event for listener in self.listeners for event in listener.events]

    @property
    def interruptions(self) -> Counter[str]:
        return Counter(listener.cause for listener in self.listeners if listener.cause)

    @property
    def recoveries(self) -> int:
        silent = len([event for event in self.events if "recovery" in (event.get("data") or {})])
        return silent + len([event for event in self.events if event["type"] == "data-attempt"])


async def ask(stage: Stage, name: str, number: int, text: str, **options: Any) -> AskedQuestion:
    told = AskedQuestion(number, listeners=[TurnListener()])
    request_id = f"{name}-asked"
    try:
        result = await stage.call(Guide, name, "chat", text, told.listeners[-1], request_id=request_id, **options)
        while result.status == "interrupted" and len(told.listeners) < ATTACHES_MAX:
            told.listeners.append(TurnListener())
            result = await stage.call(Guide, name, "attach", request_id, told.listeners[-1], first=result.next_event)
        told.result = result
    except PerdureError as problem:
        told.problem = f"{type(problem).__name__}: {problem}"
    return told


UNKNOWN: Final = "OUTCOME UNKNOWN"


@dataclass(frozen=True)
class Ending:
    status: str = "completed"
    words: str = ""
    reason: str = ""


COMPLETED: Final = Ending()
EXHAUSTED: Final = Ending("error", "", "recovery_exhausted")


def wrong_ends(told: AskedQuestion, ending: Ending) -> Iterator[str]:
    """Check the contract of the callback, and the end."""
    if told.result is None:
        yield told.problem
        return
    if told.result.status != ending.status or ending.reason not in ("", told.result.reason):
        yield f"it ended {told.result.status} ({told.result.reason or 'no reason'}: {told.result.error[:200]})"
    if ending.words not in told.result.error:
        yield f"its error does not say {ending.words!r}: {told.result.error[:200]!r}"
    for listener in told.listeners:
        if len(listener.ends) != 1:
            yield f"a callback was told of {len(listener.ends)} ends: {listener.ends}"
    last = "done" if ending.status == "completed" else "error"
    ends = [end for listener in told.listeners for end in listener.ends]
    if ends[-1:] != [last] or set(ends[:-1]) - {"interrupted"}:
        yield f"the ends were {ends}"
    heard = len(told.events) + len(told.listeners)
    if heard != told.result.next_event:
        yield f"{heard} events were heard, and {told.result.next_event} were said"
    yield from _wrong_message(told)


def _wrong_message(told: AskedQuestion) -> Iterator[str]:
    # The events must fold to the message in the transcript.
    parts: list[Part] = []
    for event in told.events:
        parts = apply_chunk(parts, event)
    stands = parts_of(told)
    if _outline(parts) != _outline(stands):
        yield f"what was heard is not what stands: {_outline(parts)} is not {_outline(stands)}"
    for part in stands:
        if "toolCallId" in part and not part["state"].startswith("output-"):
            yield f"the call {part['toolCallId']} of {part['toolName']} is left as {part['state']}"


def _outline(parts: Sequence[Part]) -> list[tuple[str, ...]]:
    return [
        (part["type"], part["text"]) if "text" in part else (part["type"], part["toolCallId"], part["state"])
        for part in parts
        if "text" in part or "toolCallId" in part
    ]


def wrong_answer(quiz: Quiz, told: AskedQuestion, seen: dict[str, str] | None) -> Iterator[str]:
    """The conclusion must state every result as the model saw it. Every result must be right or unknown.

    `seen` has the results of the last request by key. It is None for a real model, which may not do as asked.
    """
    results, expected = results_of(told), quiz.results(told.number)
    for key, right in expected.items():
        got = results.get(key, "nothing")
        if seen is None and (key not in results or key.startswith("summariser ")):
            continue
        if got != right and not (UNKNOWN in got and key.split(" ")[0] in EFFECTS):
            yield f"the result of {key} is {got[:200]!r}"
    if seen is None:
        yield from () if final_text(told).strip() else ("there is no final answer",)
        return
    for key in expected:
        if _plain(seen.get(key, "nothing")) != results.get(key):
            yield f"the model saw another result of {key}: {seen.get(key, 'nothing')[:200]!r}"
    whole = conclusion(quiz.question(told.number), [seen.get(key, "") for key in expected])
    if final_text(told) != whole:
        yield f"the final answer is not whole: {final_text(told)!r}"


def _plain(seen: str) -> str:
    # For the model a failed call is wrapped. The transcript has its text alone.
    if not seen.startswith('{"error":'):
        return seen
    return str(json.loads(seen)["error"])


def parts_of(told: AskedQuestion) -> list[Part]:
    message = told.result.message if told.result else None
    return [] if message is None else message["parts"]


def results_of(told: AskedQuestion) -> dict[str, str]:
    return {
        key_of(part["toolName"], part["input"]): _text(part)
        for part in parts_of(told)
        if str(part.get("state", "")).startswith("output-")
    }


def _text(part: Part) -> str:
    output = part.get("output", part.get("errorText", ""))
    return output if isinstance(output, str) else json.dumps(output)


def final_text(told: AskedQuestion) -> str:
    parts = parts_of(told)
    last = max((index for index, part in enumerate(parts) if "toolCallId" in part), default=-1)
    return "".join(part["text"] for part in parts[last + 1 :] if part["type"] == "text")


def wrong_requests(records: Sequence[SeenRequest]) -> Iterator[str]:
    for record in records:
        if not record.is_legal:
            yield f"request {record.number} was illegal: {'; '.join(record.problems)}"


def seen_results(script: Script, records: Sequence[SeenRequest], asks: str) -> dict[str, str]:
    last = next((record for record in reversed(records) if record.is_legal and record.asks == asks), None)
    found = {} if last is None else read(script, last.body["messages"]).results
    return {key: texts[-1] for key, texts in found.items() if texts}


def count_effects(quiz: Quiz, told: AskedQuestion, effects: Counter[str], *, is_scripted: bool) -> Iterator[str]:
    # Each must have begun once. One may be missing if its outcome is unknown, or if the turn ended before it.
    begun = Counter(quiz.workspace.effects())
    results = results_of(told)
    asked = Counter(key_of(part["toolName"], part["input"]) for part in parts_of(told) if "toolCallId" in part)
    is_whole = told.result is not None and told.result.ok
    for call in quiz.question(told.number).calls:
        if call.name not in EFFECTS or not (asked[call.key] or (is_whole and is_scripted)):
            continue
        unknown = UNKNOWN in results.get(call.key, "")
        effects.update(expected=1, seen=min(1, begun[call.key]), unknown=unknown)
        if begun[call.key] > (1 if is_scripted else max(1, asked[call.key])):
            effects["doubled"] += 1
            yield f"{call.key} began {begun[call.key]} times"
        if not begun[call.key] and not unknown:
            effects["lost"] += 1
            yield f"{call.key} never began"
        is_due = call.name == "write_file" and not unknown and begun[call.key]
        if is_due and not quiz.workspace.has_written(**call.arguments):
            yield f"{call.arguments['path']} does not hold what was written to it"
