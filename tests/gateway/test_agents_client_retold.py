"""What an attempt at a run says again is not told again to clients that cannot take anything back."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.actors.agents_client.retold import Retold
from perdure.actors.chat.stream import merged
from perdure.actors.events.message_parts import apply_chunk


def text(text_id: str, *deltas: str) -> list[dict[str, Any]]:
    """The chunks of a text."""
    said = [{"type": "text-delta", "id": text_id, "delta": each} for each in deltas]
    return [{"type": "text-start", "id": text_id}, *said, {"type": "text-end", "id": text_id}]


START, STEP, END = {"type": "start"}, {"type": "start-step"}, {"type": "finish-step"}
WHOLE = [START, STEP, *text("1", "Good ", "morning", "."), END, STEP, STEP, *text("1", "How", " are", " you?"), END]
OTHER = [START, STEP, *text("1", "Good evening.")]


def frames(attempts: list[list[dict[str, Any]]], sizes: list[int]) -> list[dict[str, Any]]:
    """The frames of a run whose attempts say these chunks, some in each frame."""
    found: list[dict[str, Any]] = []
    for number, chunks in enumerate(attempts, 1):
        found.append({"kind": "attempt", "attempt": number})
        rest, turn = chunks, 0
        while rest:
            size = sizes[turn % len(sizes)]
            found.append({"kind": "chunk", "body": {"type": "chunks", "chunks": rest[:size]}})
            rest, turn = rest[size:], turn + 1
    return [{"run_id": "r", "sequence": at, "event": each} for at, each in enumerate(found)]


def told(given_frames: list[dict[str, Any]]) -> list[tuple[int, Any]]:
    """What a connection is told."""
    retold = Retold()
    return [(number, event["body"]) for frame in given_frames for number, event in retold.events(frame)]


def parts(chunks: list[Any]) -> list[Any]:
    """What these chunks make."""
    found: list[Any] = []
    for chunk in chunks:
        found = apply_chunk(found, chunk)
    return found


@given(
    lengths=st.lists(st.integers(0, len(WHOLE)), max_size=3),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    joins=st.booleans(),
)
def test_attempts_that_go_further_and_further_are_shown_as_one(
    lengths: list[int], sizes: list[int], joins: bool
) -> None:
    attempts = [WHOLE[:each] for each in [*sorted(lengths), len(WHOLE)]]
    said = [attempts[0], *(merged(each) if joins else each for each in attempts[1:])]  # type: ignore[arg-type]
    heard = told(frames(said, sizes))
    assert parts([body for _, body in heard]) == parts(WHOLE)
    numbers = [number for number, _ in heard]
    assert numbers == sorted(set(numbers)), "no two have one number, which would have one of them ignored"


@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=3))
def test_an_attempt_that_says_something_else_is_told_whole_behind_a_step(sizes: list[int]) -> None:
    heard = told(frames([WHOLE, OTHER, [*OTHER, END]], sizes))
    assert [body for _, body in heard] == [*WHOLE, STEP, *OTHER, END]
    numbers = [number for number, _ in heard]
    assert len(numbers) == len(set(numbers))
