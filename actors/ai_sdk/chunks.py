"""The events of a turn as the chunks that an AI SDK client takes (client protocols B.3 and B.4). Pure.

The client checks each chunk by a schema and by what came before, and one chunk that does not fit ends the whole answer there. So a chunk is
made only of the fields that the table below names, only of a type that the client's major knows, and only if the client has what it is
about: a text is opened before it grows, a call moves by the same table as in our own message (`call_cell`).

What a broken connection left half said is withdrawn in our message (`data-retract`), and a client of this kind can take nothing back:

    it was said in the same batch of events   it is not told at all. So whoever comes later is told the true message from its start
    it is all of the present step             `reset-step`, for a client of major 7
    no word of the answer is in it            half a thought is closed, and half a call is settled as withdrawn
    anything else                             the stream ends with an `error` chunk that says so. To resume it, or to load the page again,
                                              brings the true message

A step that was withdrawn keeps its boundary at the client, so the next one opens none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic_core import to_json

from perdure.actors.chat.plain_data import all_mended
from perdure.actors.events.message_parts import CALL_ENDS, RETRACT, call_cell, events_of
from perdure.actors.events.reducer import AgentToolEvents, RunAsks, RunState
from perdure.actors.gateway.turn_follower import Framed
from perdure.policies import PROGRESS_EVERY_S, Event, Part, ToolState

Chunk = dict[str, Any]

OLDEST, NEWEST = 6, 7
"""The majors of the client for which chunks can be made. Without word from the client the oldest is assumed."""

REWRITTEN: Final = (
    "The answer was interrupted, and is being written anew. Resume the stream, or load the page again, to read it."
)
WITHDRAWN: Final = "The connection to the model broke off in this call, so it was withdrawn. It was not made."

_CALL = ("toolCallId",)
_NAMED = ("toolCallId", "toolName")
FIELDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...], int]]] = {
    # type                       always                             sometimes                      since major
    "start":                   (("messageId",),                     (),                            OLDEST),
    "start-step":              ((),                                 (),                            OLDEST),
    "finish-step":             ((),                                 (),                            OLDEST),
    "reset-step":              ((),                                 (),                            NEWEST),
    "text-start":              (("id",),                            (),                            OLDEST),
    "text-delta":              (("id", "delta"),                    (),                            OLDEST),
    "text-end":                (("id",),                            (),                            OLDEST),
    "reasoning-start":         (("id",),                            (),                            OLDEST),
    "reasoning-delta":         (("id", "delta"),                    (),                            OLDEST),
    "reasoning-end":           (("id",),                            (),                            OLDEST),
    "tool-input-start":        (_NAMED,                             ("title", "providerExecuted"), OLDEST),
    "tool-input-delta":        (("toolCallId", "inputTextDelta"),   (),                            OLDEST),
    "tool-input-available":    ((*_NAMED, "input"),                 ("title", "providerExecuted"), OLDEST),
    "tool-input-error":        ((*_NAMED, "input", "errorText"),    ("providerExecuted",),         OLDEST),
    "tool-approval-request":   (("toolCallId", "approvalId"),       ("approvalDescriptor",),       OLDEST),
    "tool-approval-response":  (("approvalId", "approved"),         ("reason",),                   NEWEST),
    "tool-output-available":   ((*_CALL, "output"),                 ("preliminary", "providerExecuted"), OLDEST),
    "tool-output-error":       ((*_CALL, "errorText"),              ("providerExecuted",),         OLDEST),
    "tool-output-denied":      (_CALL,                              (),                            OLDEST),
    "file":                    (("mediaType", "url"),               (),                            OLDEST),
    "source-url":              (("sourceId", "url"),                ("title",),                    OLDEST),
    "source-document":         (("sourceId", "mediaType", "title"), ("filename",),                 OLDEST),
    "finish":                  ((),                                 ("finishReason",),             OLDEST),
    "error":                   (("errorText",),                     (),                            OLDEST),
    "abort":                   ((),                                 ("reason",),                   OLDEST),
}  # fmt: skip
"""Every type of chunk that is sent, beside `data-…`."""

REASONS: Final = {
    "stop": "stop",
    "tool_call": "tool-calls",
    "length": "length",
    "content_filter": "content-filter",
    "error": "error",
}
"""Why an answer ended: our word, and the client's. Anything else is `other`."""

_KINDS: Final[dict[str, type]] = {"providerExecuted": bool, "preliminary": bool, "approvalDescriptor": dict}
"""The kinds of fields that are sometimes there; the others are texts. One of another kind, in an imported message, is left out."""

INTERRUPTED: Final = "data-interrupted"
ASK: Final = "data-ask"
UNDER_WAY: Final = frozenset({ToolState.INPUT_AVAILABLE, ToolState.APPROVAL_RESPONDED})
_TEXTS, _LAST = frozenset({"text", "reasoning"}), frozenset({"finish", "error", "abort"})
_WHOLE = frozenset({"file", "source-url", "source-document"})


@dataclass(eq=False)
class _Place:
    # One part of our message, as far as the translation needs it.
    kind: str
    key: str = ""
    name: str = ""
    state: ToolState | None = None
    has_words: bool = False
    approval_id: str = ""
    is_closed: bool = False
    said: list[Chunk] = field(default_factory=list)
    """The chunks about it in the present batch."""


def chunk(kind: str, given: Mapping[str, object]) -> Chunk:
    # A field that must be there and is not is told as an empty one.
    always, sometimes, _ = FIELDS[kind]
    told: Chunk = {"type": kind}
    for name in always:
        told[name] = given.get(name, {} if name == "input" else None if name == "output" else "")
    return told | {name: given[name] for name in sometimes if isinstance(given.get(name), _KINDS.get(name, str))}


class Translator:
    """Makes chunks of the events of one turn, for one client.

    Args:
        major: the major of the client's `ai` package.
        base: the parts of an earlier answer that the turn continues.
        retells_base: whether the client is told these parts, because it is told the whole message; else it has them.
        steps_known: the client has the message up to the end of this many steps, and is told what comes after.
        answered: calls that the client has answered itself; it is not asked to allow them again.
    """

    def __init__(
        self,
        major: int = OLDEST,
        *,
        base: Sequence[Part] = (),
        retells_base: bool = True,
        steps_known: int = 0,
        answered: frozenset[str] = frozenset(),
    ) -> None:
        self._major, self._answered = major, answered
        self._base, self._retells_base = base, retells_base
        self._places: list[_Place] = []  # the parts of our message
        self._open: dict[tuple[str, str], _Place] = {}  # texts that have no end yet, by kind and id
        self._calls: dict[str, _Place] = {}
        self._out: list[Chunk] = []
        self._fresh: set[_Place] = set()  # came up in the present batch
        self._touched: list[_Place] = []  # parts of which the present batch says something
        self._silent_steps = steps_known  # nothing is said before the client's steps are over; 0 once it speaks
        self._owes_step = False  # a step was withdrawn, whose boundary the client keeps for the next one
        self._reason = ""
        self.is_over = False
        """Whether the last chunk was told: after it a client takes nothing."""

    # what is asked of it

    def chunks(self, events: Iterable[Event]) -> list[Chunk]:
        # What is withdrawn within these events is not told.
        self._out, self._fresh, self._touched = [], set(), []
        for event in events:
            if not self.is_over:
                self._take(event)
        for place in self._touched:
            place.is_closed = place.is_closed or any(each and each["type"].endswith("-end") for each in place.said)
            place.said = []
        return [each for each in self._out if each]

    @property
    def open_calls(self) -> list[str]:
        if self.is_over or self._silent_steps:
            return []
        return [call_id for call_id, place in self._calls.items() if place.state in UNDER_WAY]

    def preliminary(self, call_id: str, output: object) -> list[Chunk]:
        if call_id not in self.open_calls:
            return []
        return [chunk("tool-output-available", {"toolCallId": call_id, "output": output, "preliminary": True})]

    def beside(self, kind: str, key: str, data: object) -> list[Chunk]:
        # Data that is no part of our message: the client shows the newest of each key in its own.
        return [] if self.is_over or self._silent_steps else [{"type": kind, "id": key, "data": data}]

    def paused(self) -> list[Chunk]:
        # This answer ends here, and the message goes on when the client has sent what is waited for.
        self.is_over = True
        return [chunk("finish", {"finishReason": "tool-calls"})]

    def failed(self, words: str) -> list[Chunk]:
        self.is_over = True
        return [chunk("error", {"errorText": words or "The answer failed for an unknown reason."})]

    # one event

    def _take(self, event: Event) -> None:
        kind = event["type"]
        if kind == "start":
            self._start(event)
        elif kind.partition("-")[0] in _TEXTS:
            self._text(kind.partition("-")[0], kind.partition("-")[2], event)
        elif kind == "start-step":
            self._step_started()
        elif kind == "finish-step":
            self._step_finished(event)
        elif kind.startswith("tool-") and kind in FIELDS:
            self._call(kind, event)
        elif kind == RETRACT:
            self._retract(event["data"]["parts"])
        elif kind in _WHOLE:
            self._say(chunk(kind, event), self._new(_Place(kind, has_words=True)))
        elif kind.startswith("data-"):
            self._data(event)
        elif kind in _LAST:
            self._end(kind, event)

    def _say(self, told: Chunk, place: _Place | None = None, *, always: bool = False) -> None:
        kind = told["type"]
        if (self._silent_steps and not always) or (kind in FIELDS and FIELDS[kind][2] > self._major):
            return
        self._out.append(told)
        if place is not None:
            self._touched.append(place)
            place.said.append(told)

    def _new(self, place: _Place) -> _Place:
        self._places.append(place)
        self._fresh.add(place)
        return place

    def _start(self, event: Event) -> None:
        self._say(chunk("start", event), always=True)
        told, self._silent_steps = self._silent_steps, self._silent_steps if self._retells_base else -1
        for at, part in enumerate(self._base):
            for each in settled(events_of(part, f"before-{at}")):
                self._take(each)
        self._silent_steps = told
        self._skip_known()

    def _text(self, kind: str, what: str, event: Event) -> None:
        key = str(event.get("id") or kind)
        place = self._open.get((kind, key))
        if what == "start" or (what == "delta" and place is None):
            if place is not None:
                self._close(place)
            place = self._open[kind, key] = self._new(_Place(kind, key))
            self._say(chunk(f"{kind}-start", {"id": key}), place)
        if place is None:
            return
        if what == "delta":
            place.has_words = place.has_words or bool(event.get("delta"))
            self._say(chunk(f"{kind}-delta", {"id": key, "delta": event.get("delta", "")}), place)
        elif what == "end":
            self._close(place)

    def _close(self, place: _Place) -> None:
        self._open.pop((place.kind, place.key), None)
        self._say(chunk(f"{place.kind}-end", {"id": place.key}), place)

    def _close_all(self) -> None:
        for place in list(self._open.values()):
            self._close(place)

    def _step_started(self) -> None:
        place = self._new(_Place("step"))
        if self._owes_step:
            self._owes_step = False
        else:
            self._say(chunk("start-step", {}), place)

    def _step_finished(self, event: Event) -> None:
        self._close_all()
        self._reason = event.get("finishReason", "")
        step = next((each for each in reversed(self._places) if each.kind == "step"), None)
        self._say(chunk("finish-step", {}), step)
        self._skip_known()

    def _skip_known(self) -> None:
        # Behind the last step that the client has, it is told everything.
        if self._silent_steps and sum(each.kind == "step" for each in self._places) >= self._silent_steps:
            self._silent_steps = 0

    # calls

    def _call(self, kind: str, event: Event) -> None:
        call_id = event["toolCallId"]
        place = self._calls.get(call_id)
        moved = call_cell(kind, None if place is None else place.state)
        if moved is None or (place is None and not event.get("toolName")):
            return
        if place is None:
            place = self._calls[call_id] = self._new(_Place("call", call_id, event["toolName"]))
        place.state = moved
        told = chunk(kind, {"toolName": place.name, "approvalId": place.approval_id, **event})
        if kind == "tool-approval-request":
            place.approval_id = told["approvalId"]
            if call_id in self._answered:
                return
        elif kind == "tool-approval-response" and not event["approved"]:
            place.state, told = ToolState.OUTPUT_DENIED, chunk("tool-output-denied", event)
        self._say(told, place)

    # what was said and is withdrawn

    def _retract(self, kept: int) -> None:
        gone, self._places = self._places[kept:], self._places[:kept]
        for place in gone:
            self._open.pop((place.kind, place.key), None)
            if self._calls.get(place.key) is place:
                del self._calls[place.key]
            for each in place.said:
                each.clear()
        known = [place for place in gone if place not in self._fresh]
        if not known or self._silent_steps:
            return
        steps = sum(place.kind == "step" for place in known)
        if steps > 1 or (steps and known[0].kind != "step"):
            self._rewrite()
            return
        parts = known[steps:]
        self._owes_step = self._owes_step or steps == 1
        is_all = steps == 1 or (bool(self._places) and self._places[-1].kind == "step")
        if parts and is_all and self._major >= NEWEST:
            self._say(chunk("reset-step", {}))
        elif any(place.has_words and place.kind != "reasoning" for place in parts):
            self._rewrite()
        else:
            self._settle(parts)

    def _settle(self, parts: list[_Place]) -> None:
        for place in parts:
            if place.kind in _TEXTS and not place.is_closed:
                self._say(chunk(f"{place.kind}-end", {"id": place.key}))
            elif place.kind == "call":
                # As a call of the provider's own it does not look like one that the client is to answer.
                told = {
                    "toolCallId": place.key,
                    "toolName": place.name,
                    "errorText": WITHDRAWN,
                    "providerExecuted": True,
                }
                self._say(chunk("tool-input-error", told))

    def _rewrite(self) -> None:
        self._close_all()
        self._out += self.failed(REWRITTEN)

    # data, and the end

    def _data(self, event: Event) -> None:
        kind, data = event["type"], event.get("data")
        told: Chunk = {"type": kind, "data": data}
        if kind == INTERRUPTED and isinstance(data, Mapping):
            told["data"] = {name: value for name, value in data.items() if name != "text"}
        if event.get("id") is not None:
            told["id"] = str(event["id"])
        if event.get("transient"):
            self._say({**told, "transient": True})
            return
        key = told.get("id", "")
        known = next((each for each in self._places if key and (each.kind, each.key) == (kind, key)), None)
        self._say(told, known or self._new(_Place(kind, key, has_words=True)))

    def _end(self, kind: str, event: Event) -> None:
        self._silent_steps = 0
        self._close_all()
        if kind == "finish":
            reason = {"finishReason": REASONS.get(self._reason, "other")} if self._reason else {}
            self._say(chunk("finish", reason))
        elif kind == "abort":
            self._say(chunk("abort", event))
            self._say(chunk("finish", {"finishReason": "interrupted" if self._major >= NEWEST else "other"}))
        else:
            self._say(chunk("error", event))
        self.is_over = True


def settled(events: list[Event]) -> list[Event]:
    """Events of the past, in which a call that has its outcome is not told as one to be made."""
    # `tool-input-available` is what the client hears by `onToolCall`. Without it the client shows the call all the same, and does not make
    # it again. So it is told the input alone.
    over = {each["toolCallId"] for each in events if each["type"] in CALL_ENDS and not each.get("preliminary")}
    found: list[Event] = []
    for event in events:
        if event.get("toolCallId") not in over or event.get("providerExecuted"):
            found.append(event)
        elif event["type"] == "tool-input-available":
            text = to_json(all_mended(event.get("input"))).decode()
            found.append({**event, "type": "tool-input-start"})
            found.append({**event, "type": "tool-input-delta", "inputTextDelta": text})
        elif event["type"] not in ("tool-input-start", "tool-input-delta"):
            found.append(event)
    return found


class Children:
    """The agents that the calls of a turn have started, told while they work: as outputs that are not final yet (client protocols B.6).

    Each is the newest standing of one run, and takes the place of the one before; the result of the call takes the place of them all. A
    call that is over soon has none. They are told from now on, also to who comes later, and stand in no transcript.

    What a run asks people is told at once, as `data-ask` with the id of the question, and again when that changes.
    """

    def __init__(self) -> None:
        self._seen = AgentToolEvents()
        self._changed: dict[str, str] = {}  # runs, with their calls
        self._due_s: float | None = None
        self._asks: dict[tuple[str, str], RunAsks] = {}  # by calls and their runs
        self._shown: set[str] = set()  # questions that the client was told of

    def asks(self, framed: Framed, translator: Translator) -> list[Chunk]:
        asks = self._asks.setdefault((framed.call_id, framed.frame["run_id"]), RunAsks())
        told: list[Chunk] = []
        for row in asks.take(framed.frame["event"]):
            key = str(row["ask_id"])
            # One whose call is over by now is told only if it is to be closed.
            if key in self._shown or framed.call_id in translator.open_calls:
                self._shown.add(key)
                told += translator.beside(ASK, key, row)
        return told

    def is_asking(self, call_id: object) -> bool:
        return any(asks.is_open for (call, _), asks in self._asks.items() if call == call_id)

    def take(self, framed: Framed, now_s: float) -> None:
        # A little later, so that much is told at once.
        if framed.is_agent and self._seen.apply(framed.frame):
            self._changed[framed.frame["run_id"]] = framed.call_id
            self._due_s = self._due_s or now_s + PROGRESS_EVERY_S

    def due_in_s(self, now_s: float) -> float | None:
        return None if self._due_s is None else max(0.0, self._due_s - now_s)

    def chunks(self, translator: Translator) -> list[Chunk]:
        changed, self._changed, self._due_s = self._changed, {}, None
        runs = self._seen.runs_by_id
        told = [
            translator.preliminary(call_id, standing(runs[run_id]))
            for run_id, call_id in sorted(changed.items())
            if run_id in runs
        ]
        return [chunk for chunks in told for chunk in chunks]


def standing(run: RunState) -> dict[str, object]:
    # This output is not final.
    found: dict[str, object] = {
        "runId": run.run_id,
        "agentType": run.agent_type.rpartition(":")[2],
        "status": run.status,
        "attempt": run.attempt,
        "milestones": run.milestones,
        "message": {"id": run.run_id, "role": "assistant", "parts": run.parts},
    }
    return found | ({"progress": run.progress} if run.progress is not None else {})
