"""What the frames of the npm packages `agents` and `@cloudflare/ai-chat` ask for, and what they are told (client protocols A.6 to A.9).

Tables and pure functions; `actors.agents_client` acts by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

from perdure.policies.turn_status import TurnStatus
from perdure.policies.ui_messages import Event, says_nothing

# the end of a turn

OUTCOMES: Final = {
    TurnStatus.COMPLETED: "completed",
    TurnStatus.PARKED: "completed",  # of this stream: the answer of the client begins the next one
    TurnStatus.ERROR: "error",
    TurnStatus.ABORTED: "aborted",
    TurnStatus.SKIPPED: "skipped",
}
"""The outcome in the last frame of a stream, by the status of its turn."""

# probes, by which a tab asks whether there is anything to resume


class ProbeAnswer(StrEnum):
    OWNED = "owned"
    """A continuation streams, for another connection."""
    RESUMING = "resuming"
    PENDING = "pending"
    """Keep waiting: `resuming` or `idle` follows."""
    IDLE = "idle"


class Situation(NamedTuple):
    """What a connection could resume.

    Attributes:
        streams: a turn streams that this connection may have.
        is_owned_elsewhere: what streams is a continuation, and the connection that asked for it is alive and another one.
        continues_soon: this connection has answered a call, and the continuation has not begun.
        has_unseen: a continuation that it has caused is over and was not shown here, or the last turn ended with an error that nobody
            has superseded.
        is_accepted: a turn waits for its place.
    """

    streams: bool
    is_owned_elsewhere: bool
    continues_soon: bool
    has_unseen: bool
    is_accepted: bool


def probe_answer(now: Situation) -> ProbeAnswer:
    # The first row that fits is taken.
    rows = (
        (now.streams and now.is_owned_elsewhere, ProbeAnswer.OWNED),
        (now.streams, ProbeAnswer.RESUMING),
        (now.continues_soon, ProbeAnswer.PENDING),
        (now.has_unseen and not now.is_accepted, ProbeAnswer.RESUMING),
        (now.is_accepted, ProbeAnswer.PENDING),
        (True, ProbeAnswer.IDLE),
    )
    return next(answer for fits, answer in rows if fits)


# requests


# The turn that a request asks for. `trigger` is ours; None if there is nothing to be done, and then `why` says so.
class TurnPlan(NamedTuple):
    trigger: str | None
    messages: Sequence[Mapping[str, Any]] = ()
    instead_of: str = ""
    why: str = ""


NOTHING_NEW: Final = "The request has no new message, and asks for no other answer."


def plan_request(stored: Sequence[Sequence[str]], sent: Sequence[Any], trigger: object) -> TurnPlan:
    """The turn that a tab's request asks for.

    A tab sends its whole transcript. What is stored counts: only messages of the user that are not stored are new, so a forged answer or
    tool output has no effect. A stored message of the user at the end was edited, or is asked again. A blank one before the last was
    refused when it was sent; the tab shows it still.

    Args:
        stored: the ids and roles of the stored messages, in order.
        sent: the messages of the tab.
        trigger: `submit-message` or `regenerate-message`.
    """
    ids = {each[0] for each in stored}
    known = [each for each in sent if isinstance(each, Mapping)]
    users = [each for each in known if each.get("role") == "user"]
    last = known[-1] if known else None
    if trigger == "regenerate-message":
        return _regenerated(stored, known, last)
    # An id that is no text is one of nothing that is stored, and is refused with its message.
    unknown = [each for each in users if not isinstance(each.get("id"), str) or each["id"] not in ids]
    new = [each for each in unknown if each is last or not says_nothing(each)]
    if new:
        return TurnPlan("chat", new)
    if last is not None and last.get("role") == "user":
        return asked_again(last)
    return TurnPlan(None, why=NOTHING_NEW)


def _regenerated(
    stored: Sequence[Sequence[str]], sent: Sequence[Mapping[str, Any]], last: Mapping[str, Any] | None
) -> TurnPlan:
    at = next(
        (at for at, (message_id, _) in enumerate(stored) if last is not None and message_id == last.get("id")), -1
    )
    if at < 0 and sent:
        return TurnPlan(None, why="The message before the answer is not stored here.")
    # The first answer after what the tab has kept is given again.
    answers = [message_id for message_id, role in stored[at + 1 :] if role == "assistant"]
    if answers:
        return TurnPlan("regenerate", instead_of=answers[0])
    if last is not None and last.get("role") == "user":
        return asked_again(last)
    return TurnPlan(None, why=NOTHING_NEW)


# A stored message of the user, as it was edited or is asked again, with an id of its own.
def asked_again(message: Mapping[str, object]) -> TurnPlan:
    return TurnPlan("chat", [{name: value for name, value in message.items() if name != "id"}], str(message["id"]))


# chunks

UNSHOWN: Final = frozenset({"data-retract", "finish", "error", "abort"})
"""Events that are no chunks on this wire: what is withdrawn is mended at the end, and the end has frames of its own."""


def shown_chunk(event: Event) -> Event | None:
    kind = event["type"]
    if kind in UNSHOWN:
        return None
    if kind == "tool-approval-response":  # an approval is no chunk of theirs; a refusal is
        return None if event["approved"] else {"type": "tool-output-denied", "toolCallId": event["toolCallId"]}
    return event


# sub-agents' runs

PER_FRAME: Final = 1 << 16
"""More than the chunks that one frame of ours can hold; the n-th of them is frame * PER_FRAME + n."""
PREVIEW_MAX: Final = 500


def class_of(agent_type: str) -> str:
    return agent_type.rpartition(":")[2]


def run_events(frame: Mapping[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """The events that these clients are told for a frame of ours, each with its number. Numbers are the same live and in a replay."""
    event, run_id, at = frame["event"], frame["run_id"], frame["sequence"] * PER_FRAME
    kind = event["kind"]
    if kind == "chunk":
        body = event["body"]  # one chunk, or several
        chunks = (body.get("chunks") or ()) if isinstance(body, dict) and body.get("type") == "chunks" else (body,)
        shown = [each for each in chunks if not isinstance(each, dict) or each.get("type") not in UNSHOWN]
        return [(at + n, {"kind": "chunk", "runId": run_id, "body": each}) for n, each in enumerate(shown)]
    told = _TOLD[kind](event, run_id, at) if kind in _TOLD else {}
    return [(at, {"runId": run_id, **told})] if told else []


def ask_events(frame: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> list[tuple[int, dict[str, Any]]]:
    """The events for questions of a run that a frame has changed, each with its number. Of parts with the same id the newest counts."""
    at = frame["sequence"] * PER_FRAME
    parts = ({"type": "data-ask", "id": row["ask_id"], "data": dict(row)} for row in rows)
    return [(at + n, {"kind": "chunk", "runId": frame["run_id"], "body": part}) for n, part in enumerate(parts)]


def _started(event: Mapping[str, Any], _run_id: str, _at: int) -> dict[str, object]:
    found: dict[str, object] = {"kind": "started", "agentType": class_of(event["agent_type"]), "order": event["order"]}
    if event.get("input_preview") is not None:
        found["inputPreview"] = str(event["input_preview"])[:PREVIEW_MAX]
    return found | ({"display": event["display"]} if event.get("display") else {})


def _signal(event: Mapping[str, object]) -> dict[str, object]:
    names = ("fraction", "message", "phase", "data")
    return {name: event[name] for name in names if event.get(name) is not None}


def _progress(event: Mapping[str, Any], run_id: str, at: int) -> dict[str, object]:
    body = {"type": "data-agent-progress", "id": f"{run_id}-{at}", "transient": True, "data": _signal(event)}
    return {"kind": "chunk", "body": body}


def _milestone(event: Mapping[str, Any], _run_id: str, _at: int) -> dict[str, object]:
    about = {"name": event["name"], "sequence": event["milestone_sequence"], "at": event["at_ms"]}
    return {"kind": "chunk", "body": {"type": "data-agent-milestone", "data": about | _signal(event)}}


def _interrupted(event: Mapping[str, Any], _run_id: str, _at: int) -> dict[str, object]:
    found = {"kind": "interrupted", "error": event["error"]}
    return found | {
        theirs: event[ours]
        for theirs, ours in (("reason", "reason"), ("childStillRunning", "child_still_running"))
        if event.get(ours) is not None
    }


_TOLD: Final[dict[str, Any]] = {
    "started": _started,
    # These clients cannot begin anew with the parts of a run: an attempt that says something else is a step of its own (H2).
    "attempt": lambda event, *_: {"kind": "chunk", "body": {"type": "start-step"}} if event["attempt"] > 1 else {},
    "progress": _progress,
    "milestone": _milestone,
    "finished": lambda event, *_: {"kind": "finished", "summary": event["summary"]},
    "error": lambda event, *_: {"kind": "error", "error": event["error"]},
    "aborted": lambda event, *_: {"kind": "aborted", **({"reason": event["reason"]} if event.get("reason") else {})},
    "interrupted": _interrupted,
}

PROGRESS_EVERY_S: Final = 0.2
