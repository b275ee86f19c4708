"""The repeat guard: a call whose outcome is unknown is not repeated blindly.

A caution asks the model not to repeat such a call, but words alone do not prevent it. So the engine records each *loss* (a call that
started and has no known outcome) under its tool and canonical arguments. It then decides about the same call:

| the call's tool | verdict |
|---|---|
| `pure`: it only reads | starts: this is how the model verifies |
| `idempotent` | starts: its effect happens at most once under its key |
| `once`, or unknown | is stopped until there is evidence or consent |

Evidence is a read-only call that succeeded after the loss, or the late result of the lost call. Consent is a person's approval of this
call, or a message that a person sent after the call was stopped: by then the model has been told to ask. An earlier message is no
consent, and neither is what the runtime tells of a run in a message of the user.

The guard is an immutable value of the conversation. `as_rows` is its stored form.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import TypedDict, cast


class LossRow(TypedDict):
    call_id: str
    tool: str
    key: str
    was_stopped: bool


# A call that started and has no known outcome. `key` is its `call_key`. `was_stopped`: its repeat was refused.
@dataclass(frozen=True)
class UnknownOutcome:
    call_id: str
    tool: str
    key: str
    was_stopped: bool = False


@dataclass(frozen=True)
class RepeatGuard:
    """The unresolved losses of a conversation. The methods that are named by an event return the guard after it."""

    losses: tuple[UnknownOutcome, ...] = ()

    def blocked(self, tool: str, arguments: object, effect: str) -> UnknownOutcome | None:
        if effect in ("pure", "idempotent"):
            return None
        key = call_key(tool, arguments)
        return next((loss for loss in self.losses if loss.key == key), None)

    def lost(self, tool: str, arguments: object, call_id: str) -> RepeatGuard:
        if any(loss.call_id == call_id for loss in self.losses):
            return self
        return RepeatGuard((*self.losses, UnknownOutcome(call_id, tool, call_key(tool, arguments))))

    def stopped(self, loss: UnknownOutcome) -> RepeatGuard:
        return self._keeping(lambda each: replace(each, was_stopped=True) if each.key == loss.key else each)

    def settled(self, call_id: str, effect: str, *, succeeded: bool) -> RepeatGuard:
        if effect == "pure" and succeeded:  # evidence for all losses
            return RepeatGuard()
        return self._keeping(lambda each: None if each.call_id == call_id else each)

    def approved(self, tool: str, arguments: object) -> RepeatGuard:
        key = call_key(tool, arguments)
        return self._keeping(lambda each: None if each.key == key else each)

    def user_spoke(self) -> RepeatGuard:
        return self._keeping(lambda each: None if each.was_stopped else each)  # a message before that is no consent

    def as_rows(self) -> list[LossRow]:
        return [cast("LossRow", asdict(each)) for each in self.losses]

    @classmethod
    def of_rows(cls, rows: Iterable[LossRow]) -> RepeatGuard:
        return cls(tuple(UnknownOutcome(**row) for row in rows))

    def _keeping(self, step: Callable[[UnknownOutcome], UnknownOutcome | None]) -> RepeatGuard:
        kept = tuple(each for each in map(step, self.losses) if each is not None)
        return self if kept == self.losses else RepeatGuard(kept)


def call_key(tool: str, arguments: object) -> str:
    text = json.dumps([tool, _canonical(arguments)], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def _canonical(value: object) -> object:
    if isinstance(value, float) and value.is_integer():  # JSON has one number for 2.0 and 2
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _canonical(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    return value


def stop_text(loss: UnknownOutcome) -> str:
    return (
        f"NOT RUN: this is the same call of {loss.tool} as the one with id {loss.call_id}, whose outcome is still unknown, and repeating "
        "it could do its work twice. First look at what it touches with a tool that only reads, or ask the user whether to do it again."
    )
