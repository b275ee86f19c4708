"""The chunks that a client of the AI SDK is sent: legal in whatever order things happen, and adding up to the true message."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from perdure.actors.ai_sdk.chunks import FIELDS, REWRITTEN, Chunk, Translator, settled
from perdure.actors.ai_sdk.routes import encoded
from perdure.actors.events.message_parts import events_of
from perdure.policies import Event
from tests.gateway.ai_sdk_turn import RandomTurn
from tests.gateway.npm import play

SEEDS = some.integers(0, 1_000_000)


class Reader:
    """A client: takes chunks by its own rules (client protocols B.3 and B.4), and raises where the real one does."""

    def __init__(self, major: int) -> None:
        self.major = major
        self.parts: list[dict[str, Any]] = []
        self.is_over = False
        self.error: str | None = None
        self._texts: dict[tuple[str, str], dict[str, Any]] = {}

    def take(self, chunks: list[Chunk]) -> None:
        for each in chunks:
            assert not self.is_over, each
            self._take(each)

    def _take(self, chunk: Chunk) -> None:
        kind = chunk["type"]
        first, _, what = kind.partition("-")
        if first != "data":
            always, _, since = FIELDS[kind]
            assert since <= self.major, chunk
            assert all(name in chunk for name in always), chunk
        if first in ("text", "reasoning"):
            self._prose(first, what, chunk)
        elif kind == "start-step":
            self.parts.append({"type": "step-start"})
        elif kind == "reset-step":
            self._texts.clear()
            while self.parts and self.parts[-1]["type"] != "step-start":
                self.parts.pop()
        elif first == "tool":
            self._call(what, chunk)
        elif first == "data":
            self._data(chunk)
        elif first in ("file", "source"):
            self.parts.append(chunk)
        self.is_over = kind in ("finish", "error")
        self.error = chunk.get("errorText") if kind == "error" else self.error

    def _prose(self, kind: str, what: str, chunk: Chunk) -> None:
        key = (kind, chunk["id"])
        if what == "start":
            assert key not in self._texts, chunk
            self._texts[key] = {"type": kind, "text": ""}
            self.parts.append(self._texts[key])
        elif what == "delta":
            self._texts[key]["text"] += chunk["delta"]
        else:
            del self._texts[key]

    def _call(self, what: str, chunk: Chunk) -> None:
        if what == "approval-response":
            part = next(each for each in self.parts if each.get("approvalId") == chunk["approvalId"])
        else:
            part = next((each for each in self.parts if each.get("toolCallId") == chunk["toolCallId"]), {})
        if not part:
            assert what in ("input-start", "input-available", "input-error"), chunk
            part = {"type": f"tool-{chunk['toolName']}", "toolCallId": chunk["toolCallId"]}
            self.parts.append(part)
        states = {
            "input-error": "output-error",
            "approval-request": "approval-requested",
            "approval-response": "approval-responded",
        }
        part["state"] = states.get(what, "input-streaming" if what in ("input-start", "input-delta") else what)
        part |= {name: chunk[name] for name in ("output", "errorText", "approvalId") if name in chunk}

    def _data(self, chunk: Chunk) -> None:
        if chunk.get("transient"):
            return
        same = (each for each in self.parts if each["type"] == chunk["type"] and each.get("id") == chunk.get("id"))
        known = next(same, None) if "id" in chunk else None
        if known is None:
            self.parts.append(dict(chunk))
        else:
            known["data"] = chunk["data"]


def shown(parts: list[Any]) -> list[Any]:
    """What people see of these parts."""
    names = ("type", "text", "toolCallId", "state", "output", "errorText", "data", "url")
    return [
        {name: part[name] for name in names if name in part and (name != "state" or "toolCallId" in part)}
        for part in parts
    ]


@given(SEEDS)
def test_who_comes_late_is_told_the_true_message(seed: int) -> None:
    turn = RandomTurn(seed)
    reader = Reader(7)
    reader.take(Translator(7).chunks(turn.events))
    assert shown(reader.parts) == shown(turn.parts)
    assert reader.is_over


@pytest.mark.shows(clients="P-175")
@given(SEEDS, SEEDS, some.sampled_from((6, 7)))
def test_whatever_happens_while_a_client_listens_is_legal_there(seed: int, cuts: int, major: int) -> None:
    turn, translator, reader = RandomTurn(seed), Translator(major), Reader(major)
    for batch in turn.batches(cuts):
        chunks = translator.chunks(batch)
        assert all(encoded(each) for each in chunks)
        reader.take(chunks)
    assert reader.is_over
    assert translator.is_over
    if reader.error != REWRITTEN and not any(event["type"] == "data-retract" for event in turn.events) and major == 7:
        assert shown(reader.parts) == shown(turn.parts)


@given(SEEDS, some.sampled_from((6, 7)))
def test_a_stored_message_is_told_as_it_stands(seed: int, major: int) -> None:
    turn = RandomTurn(seed)
    reader = Reader(major)
    told = [event for at, part in enumerate(turn.parts) for event in settled(events_of(part, f"p{at}"))]
    reader.take(Translator(major).chunks(told))
    texts = [part["text"] for part in reader.parts if part["type"] == "text"]
    assert texts == [part["text"] for part in turn.parts if part["type"] == "text"]


LOST: list[Event] = [{"type": "start", "messageId": "a"}, {"type": "start-step"}]


@pytest.mark.parametrize(
    ("said", "major", "expected"),
    [
        ("text", 7, ["reset-step"]),
        ("text", 6, ["error"]),
        ("reasoning", 7, ["reset-step"]),
        ("reasoning", 6, ["reasoning-end"]),
    ],
)
def test_what_was_read_and_is_withdrawn_is_taken_back_or_the_stream_ends(
    said: str, major: int, expected: list[str]
) -> None:
    translator = Translator(major)
    translator.chunks(
        [*LOST, {"type": f"{said}-start", "id": "0"}, {"type": f"{said}-delta", "id": "0", "delta": "Hel"}]
    )
    told = translator.chunks([{"type": "data-retract", "data": {"parts": 1}}])
    assert [each["type"] for each in told] == expected
    assert translator.is_over == (expected == ["error"])


def test_a_step_that_was_withdrawn_keeps_one_boundary() -> None:
    translator = Translator(7)
    translator.chunks([*LOST, {"type": "text-start", "id": "0"}, {"type": "text-delta", "id": "0", "delta": "Hel"}])
    told = translator.chunks([{"type": "data-retract", "data": {"parts": 0, "step": True}}, {"type": "start-step"}])
    assert [each["type"] for each in told] == ["reset-step"]


def test_who_has_the_first_step_is_told_what_comes_after_it() -> None:
    call: Any = {"toolCallId": "c", "toolName": "ask_user"}
    events: list[Any] = [
        *LOST,
        {"type": "text-start", "id": "0"},
        {"type": "tool-input-available", **call, "input": {}},
        {"type": "finish-step", "finishReason": "tool_call"},
        {"type": "tool-output-available", **call, "output": 4},
        {"type": "start-step"},
        {"type": "finish-step", "finishReason": "stop"},
        {"type": "finish"},
    ]
    told = [each["type"] for each in Translator(steps_known=1).chunks(events)]
    assert told == ["start", "tool-output-available", "start-step", "finish-step", "finish"]


@pytest.mark.shows(clients="P-174")
@pytest.mark.thorough
@pytest.mark.parametrize("which", ["", "six"])
def test_the_real_client_takes_every_chunk_and_makes_the_same_message_of_them(which: str, tmp_path: Path) -> None:
    major = 6 if which else 7
    turns = [RandomTurn(seed) for seed in range(300)]
    whole = [Translator(major).chunks(turn.events) for turn in turns]
    live = []
    for seed, turn in enumerate(turns):
        translator = Translator(major)
        live.append([chunk for batch in turn.batches(seed) for chunk in translator.chunks(batch)])
    lines = [[encoded(each).decode() for each in stream] for stream in (*whole, *live)]
    wrong: list[Chunk] = [{"type": "nonsense"}, {"type": "text-delta", "id": "unknown", "delta": "x"}]
    lines += [[encoded({"type": "start", "messageId": "wrong"}).decode(), encoded(each).decode()] for each in wrong]
    (tmp_path / "streams.json").write_text(json.dumps(lines))
    told = play(Path(__file__).with_suffix(".mjs"), str(tmp_path / "streams.json"), which=which)
    assert [each["illegal"] for each in told[:600]] == [None] * 600
    assert all(each["illegal"] for each in told[600:]), "the reader would notice"
    for turn, seen in zip(turns, told[:300], strict=True):
        texts = [part["text"] for part in turn.parts if part["type"] == "text"]
        assert (seen["texts"], seen["id"]) == (texts, "the-answer")
    types = {chunk["type"] for stream in (*whole, *live) for chunk in stream if not chunk["type"].startswith("data-")}
    assert types >= {name for name, (_, _, since) in FIELDS.items() if since <= major} - {"source-document"}
