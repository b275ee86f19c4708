"""The repeat guard: a call whose outcome is unknown is not blindly made again.

A caution tells the model not to repeat such a call, but wording alone stops nobody (weakness B8, case A6). So the engine remembers each
*loss* — a call that started and has no known outcome — under its tool and its canonical arguments, and stops the same call from starting:

| the call's tool | verdict |
|---|---|
| `pure`: it only reads | goes ahead: this is how the model verifies |
| `idempotent` | goes ahead: its effect happens at most once under its key |
| `once`, or unknown | stopped, until there is evidence or consent |

Evidence is a read-only call that succeeded after the loss, or the lost call's own late result. Consent is the approval of this very call
by a person, or a message of the user after the call was stopped: by then the model has been told to ask, so the user has had the question.
A message before that is no consent, because it may be about something else.

The guard is a value of the conversation: each step gives a new one, and `as_rows` is what is stored of it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import TypedDict


class LossRow(TypedDict):
    """A loss as it is stored."""

    call_id: str
    tool: str
    key: str
    was_stopped: bool


@dataclass(frozen=True)
class Loss:
    """A call that started and has no known outcome. `key` is that of `call_key`; `was_stopped`: its repeat has been refused."""

    call_id: str
    tool: str
    key: str
    was_stopped: bool = False


@dataclass(frozen=True)
class RepeatGuard:
    """The losses of a conversation that nobody has looked into yet."""

    losses: tuple[Loss, ...] = ()

    def blocked(self, tool: str, arguments: object, effect: str) -> Loss | None:
        """The loss that this call would repeat, or None if it may start."""
        if effect in ("pure", "idempotent"):
            return None
        key = call_key(tool, arguments)
        return next((loss for loss in self.losses if loss.key == key), None)

    def lost(self, tool: str, arguments: object, call_id: str) -> RepeatGuard:
        """After a call was found to have no known outcome. Nothing changes if it is known as lost already."""
        if any(loss.call_id == call_id for loss in self.losses):
            return self
        return RepeatGuard((*self.losses, Loss(call_id, tool, call_key(tool, arguments))))

    def stopped(self, loss: Loss) -> RepeatGuard:
        """After the repeat of a loss was refused, and the model was told to ask."""
        return self._keeping(lambda each: replace(each, was_stopped=True) if each.key == loss.key else each)

    def settled(self, call_id: str, effect: str, *, succeeded: bool) -> RepeatGuard:
        """After a call has got its result: a lost one its late result, or a read-only one that succeeded, which is evidence for all."""
        if effect == "pure" and succeeded:
            return RepeatGuard()
        return self._keeping(lambda each: None if each.call_id == call_id else each)

    def approved(self, tool: str, arguments: object) -> RepeatGuard:
        """After a person has approved this very call."""
        key = call_key(tool, arguments)
        return self._keeping(lambda each: None if each.key == key else each)

    def user_spoke(self) -> RepeatGuard:
        """After a message of the user: consent to what had been stopped, and to nothing else."""
        return self._keeping(lambda each: None if each.was_stopped else each)

    def as_rows(self) -> list[LossRow]:
        """The guard as plain data."""
        return [
            LossRow(call_id=each.call_id, tool=each.tool, key=each.key, was_stopped=each.was_stopped)
            for each in self.losses
        ]

    @classmethod
    def of_rows(cls, rows: Iterable[LossRow]) -> RepeatGuard:
        """The guard that was stored."""
        return cls(tuple(Loss(**row) for row in rows))

    def _keeping(self, step: Callable[[Loss], Loss | None]) -> RepeatGuard:
        kept = tuple(each for each in map(step, self.losses) if each is not None)
        return self if kept == self.losses else RepeatGuard(kept)


def call_key(tool: str, arguments: object) -> str:
    """The same for calls of the same tool with the same arguments, however they are written: a digest of both."""
    text = json.dumps([tool, _canonical(arguments)], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return sha256(text.encode()).hexdigest()


def _canonical(value: object) -> object:
    """The value with whole floats as integers: 2.0 and 2 are one number in JSON."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(name): _canonical(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_canonical(each) for each in value]
    return value


def stop_text(loss: Loss) -> str:
    """What the model is told in place of a result. It was not run, so there is nothing to verify about *this* call."""
    return (
        f"NOT RUN: this is the same call of {loss.tool} as the one with id {loss.call_id}, whose outcome is still unknown, and repeating "
        "it could do its work twice. First look at what it touches with a tool that only reads, or ask the user whether to do it again."
    )
