"""The events of one run as these clients are told them: what an attempt says again is not told again.

Another attempt of a chat begins with all that is durable of its turn, because our own watchers begin anew with it. These clients cannot:
what they were told stays. What is durable contains, in the same order, all that anybody was told. So what an attempt says is compared with
what was told, piece by piece, and only what goes beyond it is told, a text from where it broke off. An attempt that says something else
is a step of its own, behind all that was there (client protocols H2).

A watcher that comes later reads the same events, and is told the same with the same numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from io import SEEK_END, StringIO
from typing import Any, Final

from perdure.actors.agents_client.line import json_text
from perdure.actors.events.reducer import SentFrame
from perdure.ledger import digest_of
from perdure.policies import JsonObject, run_events

GROWING: Final = {"text-delta": "delta", "reasoning-delta": "delta", "tool-input-delta": "inputTextDelta"}
"""Chunks that continue something, and the field by which they do."""

Told = tuple[int, JsonObject]


@dataclass(eq=False)
class Piece:
    """A chunk, or chunks in a row that continue the same: what it is, and what it adds if it grows."""

    what: str
    adds: str | None = None
    text: StringIO = field(default_factory=StringIO)
    length: int = 0

    def grow(self, more: str) -> None:
        """Add this at its end."""
        self.text.seek(0, SEEK_END)
        self.text.write(more)
        self.length += len(more)

    def has(self, at: int, said: str) -> bool:
        """Whether this, or the beginning of it, stands at a place."""
        self.text.seek(at)
        return said.startswith(self.text.read(len(said)))


class Retold:
    """What one connection was told of one run."""

    def __init__(self) -> None:
        self._attempt = 1
        self._step: list[Told] = []
        self._pieces: list[Piece] = []
        self._at, self._within = 0, 0
        """How many pieces the present attempt has said, and how much of the next one."""
        self._again: list[Told] = []
        """What it has said again."""

    def events(self, frame: SentFrame) -> list[Told]:
        """The events to be told for a frame, each with its number."""
        event = frame["event"]
        if event["kind"] == "attempt":
            if event["attempt"] > self._attempt:
                self._attempt, self._step = event["attempt"], run_events(frame)
                self._at, self._within, self._again = 0, 0, []
            return []
        if event["kind"] != "chunk":
            return run_events(frame)
        return [told for number, chunk in run_events(frame) for told in self._beyond(number, chunk)]

    def _beyond(self, number: int, chunk: JsonObject) -> list[Told]:
        """What of a chunk was not told yet."""
        piece = _piece(chunk["body"])
        self._step_over_other_than(piece)
        if self._at == len(self._pieces):
            return self._add(piece, number, chunk)
        known, is_last = self._pieces[self._at], self._at == len(self._pieces) - 1
        if known.what != piece.what:
            return self._begin_anew(number, chunk)
        if piece.adds is None:
            self._at += 1
            self._again.append((number, chunk))
            return []
        left = known.length - self._within
        if not known.has(self._within, piece.adds) or (len(piece.adds) > left and not is_last):
            return self._begin_anew(number, chunk)
        self._within += len(piece.adds)
        if len(piece.adds) <= left:
            self._again.append((number, chunk))
            return []
        known.grow(piece.adds[left:])
        self._again = []
        return [(number, _rest(chunk, left))]

    def _step_over_other_than(self, piece: Piece) -> None:
        """Nothing more of the present piece comes, if this is another one."""
        if self._at < len(self._pieces):
            known = self._pieces[self._at]
            if known.adds is not None and known.what != piece.what and known.length == self._within:
                self._at, self._within = self._at + 1, 0

    def _add(self, piece: Piece, number: int, chunk: JsonObject) -> list[Told]:
        self._pieces.append(piece)
        self._again = []
        if piece.adds is None:
            self._at += 1
        else:
            piece.grow(piece.adds)
            self._within = piece.length
        return [(number, chunk)]

    def _begin_anew(self, number: int, chunk: JsonObject) -> list[Told]:
        """The attempt says something else than the one before: all of it is told, as a step of its own."""
        told = [*self._again, (number, chunk)]
        self._pieces, self._at, self._within, self._again = [], 0, 0, []
        return [*self._step, *(each for at, said in told for each in self._beyond(at, said))]


def _piece(body: Any) -> Piece:
    kind = body.get("type") if isinstance(body, dict) else None
    if kind in GROWING and isinstance(body.get(GROWING[kind]), str):
        about = {name: value for name, value in body.items() if name != GROWING[kind]}
        return Piece(digest_of(json_text(about).encode()), body[GROWING[kind]])
    return Piece(digest_of(json_text(body).encode()))


def _rest(chunk: dict[str, Any], known: int) -> JsonObject:
    """A chunk without the first characters of what it adds."""
    body = chunk["body"]
    adds = GROWING[body["type"]]
    return {**chunk, "body": {**body, adds: body[adds][known:]}}
