"""The events of one run as these clients are told them: what an attempt says again is not told again. Pure.

Another attempt of a chat begins with all that is durable of its turn, because our own watchers begin anew with it. These clients
cannot: what they were told stays. What is durable contains, in the same order, all that anybody was told. So what an attempt says is
compared with what was told, piece by piece, and only what goes beyond it is told, a text from where it broke off. An attempt that says
something else is a step of its own, behind all that was there (client protocols H2).

A watcher that comes later reads the same events, and is told the same with the same numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from perdure.actors.agents_client.frames import encoded, json_text
from perdure.actors.events.reducer import RunAsks, SentFrame
from perdure.ledger import LAST_EVENTS, digest_of
from perdure.policies import PROGRESS_EVERY_S, JsonObject, ask_events, run_events

GROWING: Final = {"text-delta": "delta", "reasoning-delta": "delta", "tool-input-delta": "inputTextDelta"}
"""Chunks that continue something, and the field by which they do."""

Told = tuple[int, JsonObject]


@dataclass(eq=False)
class RunPiece:
    # A chunk, or chunks in a row that continue the same: what it is, and what it adds if it grows.
    what: str
    adds: str | None = None
    texts: list[str] = field(default_factory=list)
    length: int = 0

    def grow(self, more: str) -> None:
        self.texts.append(more)
        self.length += len(more)

    def has(self, at: int, said: str) -> bool:
        # It may go on behind the end.
        if at < self.length:
            self.texts = ["".join(self.texts)]
        return at == self.length or said.startswith(self.texts[0][at : at + len(said)])


class Retold:
    """What one connection was told of one run."""

    def __init__(self) -> None:
        self._attempt = 1
        self._step: list[Told] = []
        self._pieces: list[RunPiece] = []
        self._at, self._within = 0, 0
        """How many pieces the present attempt has said, and how much of the next one."""
        self._again: list[Told] = []
        """What it has said again."""
        self._asks = RunAsks()

    def texts(self, frame: SentFrame) -> Iterator[str]:
        about: dict[str, object] = {"replay": True} if frame.get("replay") else {}
        if "parent_tool_call_id" in frame:
            about["parentToolCallId"] = frame["parent_tool_call_id"]
        for number, event in self.events(frame):
            is_text = event["kind"] != "chunk" or isinstance(event["body"], str)
            told = event if is_text else {**event, "body": json_text(event["body"])}
            yield encoded("agent-tool-event", sequence=number, event=told, **about)

    def events(self, frame: SentFrame) -> list[Told]:
        # Each event has its number.
        event = frame["event"]
        asked = ask_events(frame, self._asks.take(event))
        if asked:
            last = asked[-1][0] + 1
            return asked + [(last + at, told) for at, (_, told) in enumerate(run_events(frame))]
        if event["kind"] == "attempt":
            if event["attempt"] > self._attempt:
                self._attempt, self._step = event["attempt"], run_events(frame)
                self._at, self._within, self._again = 0, 0, []
            return []
        if event["kind"] != "chunk":
            return run_events(frame)
        return [told for number, chunk in run_events(frame) for told in self._beyond(number, chunk)]

    def _beyond(self, number: int, chunk: JsonObject) -> list[Told]:
        piece = _piece(chunk["body"])
        known = self._pieces[self._at] if self._at < len(self._pieces) else None
        if known is not None and known.adds is not None and known.what != piece.what and known.length == self._within:
            self._at, self._within = self._at + 1, 0  # this is another piece, so nothing more of the present one comes
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
        body: Any = chunk["body"]
        return [(number, {**chunk, "body": {**body, GROWING[body["type"]]: piece.adds[left:]}})]

    def _add(self, piece: RunPiece, number: int, chunk: JsonObject) -> list[Told]:
        self._pieces.append(piece)
        self._again = []
        if piece.adds is None:
            self._at += 1
        else:
            piece.grow(piece.adds)
            self._within = piece.length
        return [(number, chunk)]

    def _begin_anew(self, number: int, chunk: JsonObject) -> list[Told]:
        # The attempt says something else than the one before: all of it is told, as a step of its own.
        told = [*self._again, (number, chunk)]
        self._pieces, self._at, self._within, self._again = [], 0, 0, []
        return [*self._step, *(each for at, said in told for each in self._beyond(at, said))]


def _piece(body: Any) -> RunPiece:
    kind = body.get("type") if isinstance(body, dict) else None
    if kind in GROWING and isinstance(body.get(GROWING[kind]), str):
        about = {name: value for name, value in body.items() if name != GROWING[kind]}
        return RunPiece(digest_of(json_text(about).encode()), body[GROWING[kind]])
    return RunPiece(digest_of(json_text(body).encode()))


class ReportPace:
    """Holds reports of progress back that come too fast. The newest is told when it is time, and a full one at once."""

    def __init__(self) -> None:
        self._last_s = float("-inf")
        self._held: SentFrame | None = None

    def due_in_s(self, now_s: float) -> float | None:
        return None if self._held is None else max(0.0, self._last_s + PROGRESS_EVERY_S - now_s)

    def held(self, now_s: float) -> list[SentFrame]:
        held, self._held = self._held, None
        if held is None:
            return []
        self._last_s = now_s
        return [held]

    def chosen(self, frames: list[SentFrame], now_s: float) -> list[SentFrame]:
        # A report that is held back is told before the end, unless there is a newer one.
        is_end = bool(frames) and frames[-1]["event"]["kind"] in LAST_EVENTS
        newest = max((at for at, frame in enumerate(frames) if _is_progress(frame)), default=-1)
        if newest >= 0:
            is_early = now_s - self._last_s < PROGRESS_EVERY_S and not is_end and not _is_full(frames[newest])
            self._held, self._last_s = (frames[newest], self._last_s) if is_early else (None, now_s)
        told = [
            frame
            for at, frame in enumerate(frames)
            if not _is_progress(frame) or _is_full(frame) or (at == newest and self._held is None)
        ]
        if any(frame["event"]["kind"] == "milestone" for frame in frames[newest + 1 :]):
            self._held = None  # clients take a milestone as the newest progress
        return [*self.held(now_s), *told] if is_end else told


def _is_full(frame: SentFrame) -> bool:
    return bool((frame["event"].get("fraction") or 0) >= 1)


def _is_progress(frame: SentFrame) -> bool:
    return bool(frame["event"]["kind"] == "progress")
