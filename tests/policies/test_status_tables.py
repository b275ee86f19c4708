"""Every cell of the tables of fibers, of schedules and queues, and of replies, and what an event does to their rows."""

from __future__ import annotations

from enum import StrEnum
from itertools import product
from typing import Any

import pytest

from perdure.actors.jobs.callback_rows import CallbackRow, RowKind
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.messenger.replies import ReplyRow
from perdure.ledger import pack, unpack
from perdure.policies import (
    CALLBACK_DUE,
    CALLBACK_TRANSITIONS,
    FIBER_CLEANED,
    FIBER_OPEN_STATES,
    FIBER_TRANSITIONS,
    REPLY_OPEN,
    REPLY_TRANSITIONS,
    CallbackEvent,
    CallbackStatus,
    Cell,
    FiberEvent,
    FiberState,
    FiberStatus,
    IllegalTransition,
    ReplyEvent,
    ReplyStatus,
    Transitions,
)

FIBERS = """
    -           pending  running     waiting recovering  interrupted completed error   aborted
    entered     running  ignored     running ignored     ignored     ignored   ignored ignored
    waits       illegal  waiting     ignored ignored     ignored     ignored   ignored ignored
    asked       illegal  recovering  illegal recovering  ignored     ignored   ignored ignored
    retry       illegal  pending     illegal pending     pending     ignored   ignored ignored
    completed   illegal  completed   illegal completed   completed   ignored   ignored ignored
    error       illegal  error       illegal error       error       ignored   ignored ignored
    aborted     illegal  aborted     illegal aborted     aborted     ignored   ignored ignored
    interrupted illegal  interrupted illegal interrupted interrupted ignored   ignored ignored
    cancelled   aborted  aborted     aborted aborted     ignored     ignored   ignored ignored
"""
CALLBACKS = """
    -                     waiting  retrying paused   parked
    moved_on              waiting  waiting  illegal  illegal
    failed                retrying retrying illegal  illegal
    parked                parked   parked   illegal  illegal
    paused                paused   paused   ignored  ignored
    resumed               ignored  ignored  waiting  ignored
    resumed_between_tries ignored  ignored  retrying ignored
    retried               ignored  waiting  ignored  waiting
"""
REPLIES = """
    -                  waiting running parked  settled
    joined             waiting ignored ignored ignored
    asked              running illegal illegal illegal
    settled            settled settled ignored ignored
    parked             parked  parked  ignored ignored
    retried            ignored ignored waiting ignored
    retried_afterwards ignored ignored running ignored
    revised            ignored ignored ignored waiting
"""
MACHINES: list[tuple[str, Transitions[Any, Any], type[StrEnum], type[StrEnum], str]] = [
    ("fiber", FIBER_TRANSITIONS, FiberState, FiberEvent, FIBERS),
    ("callback", CALLBACK_TRANSITIONS, CallbackStatus, CallbackEvent, CALLBACKS),
    ("reply", REPLY_TRANSITIONS, ReplyStatus, ReplyEvent, REPLIES),
]


def expectations(text: str) -> dict[tuple[str, str], str]:
    """What is expected for each state and event."""
    (_, *states), *rows = (line.split() for line in text.strip().splitlines())
    return {(state, row[0]): cell for row in rows for state, cell in zip(states, row[1:], strict=True)}


CELLS = [
    pytest.param(table, state, event, expectations(text)[state, event], id=f"{name}-{state}-{event}")
    for name, table, states, events, text in MACHINES
    for state, event in product(states, events)
]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine[0])
def test_a_table_has_a_cell_for_every_state_and_event_and_no_other(machine: Any) -> None:
    _, _, states, events, text = machine
    assert expectations(text).keys() == set(product(states, events))


@pytest.mark.parametrize(("table", "state", "event", "expected"), CELLS)
def test_each_cell_is_what_the_table_says(table: Any, state: StrEnum, event: StrEnum, expected: str) -> None:
    assert table.cell(state, event).value == expected
    if expected == "illegal":
        with pytest.raises(IllegalTransition, match=f"{event} cannot happen to x while it is {state}"):
            table.next(state, event, "x")
    else:
        assert table.next(state, event, "x") == (None if expected == "ignored" else expected)


def fiber_in(state: FiberState) -> Fiber:
    settled_at_ms = 0 if state in FIBER_OPEN_STATES else 5
    is_waiting = state is FiberState.WAITING
    return Fiber("f", 1, "job", status=state.status, settled_at_ms=settled_at_ms, is_waiting=is_waiting)


@pytest.mark.parametrize(("state", "event"), list(product(FiberState, FiberEvent)))
def test_the_row_of_a_fiber_moves_by_its_table_and_is_settled_when_nothing_more_is_to_come(
    state: FiberState, event: FiberEvent
) -> None:
    fiber, cell = fiber_in(state), FIBER_TRANSITIONS.cell(state, event)
    assert fiber.state is state
    if cell is Cell.ILLEGAL:
        with pytest.raises(IllegalTransition):
            fiber.after(event, 9)
        return
    moved = fiber.after(event, 9, attempt=3)
    if cell is Cell.IGNORED:
        assert moved is None
        return
    assert moved is not None
    assert (moved.state, moved.attempt) == (cell, 3)
    assert moved.settled_at_ms == (0 if cell in FIBER_OPEN_STATES else 9)
    assert (moved.is_open, moved.is_settled) == (cell in FIBER_OPEN_STATES, cell not in FIBER_OPEN_STATES)
    assert fiber == fiber_in(state), "a row is never changed in place"


@pytest.mark.parametrize("status", FIBER_CLEANED)
def test_a_fiber_that_came_to_its_end_never_changes(status: FiberStatus) -> None:
    assert all(FIBER_TRANSITIONS.cell(FiberState(status), event) is Cell.IGNORED for event in FiberEvent)


def callback_in(status: CallbackStatus) -> CallbackRow:
    return CallbackRow(
        id="s",
        number=1,
        kind=RowKind.CRON,
        callback="ring",
        payload=b"",
        retry=[None] * 3,
        created_at_ms=1,
        tick_ms=7,
        due_at_ms=8,
        status=status,
    )


@pytest.mark.parametrize(("status", "event"), list(product(CallbackStatus, CallbackEvent)))
def test_the_row_of_a_callback_moves_by_its_table_and_is_due_only_if_somebody_calls_it(
    status: CallbackStatus, event: CallbackEvent
) -> None:
    row, cell = callback_in(status), CALLBACK_TRANSITIONS.cell(status, event)
    if cell is Cell.ILLEGAL:
        with pytest.raises(IllegalTransition):
            row.after(event)
        return
    moved = row.after(event, error="e")
    if cell is Cell.IGNORED:
        assert moved is None
        return
    assert moved is not None
    assert (moved.status, moved.error, row.error) == (cell, "e", "")
    assert moved.ready_at_ms == (8 if cell in CALLBACK_DUE else None)


@pytest.mark.parametrize(("status", "event"), list(product(ReplyStatus, ReplyEvent)))
def test_a_reply_moves_by_its_table_and_is_open_until_it_is_settled_or_parked(
    status: ReplyStatus, event: ReplyEvent
) -> None:
    reply, cell = ReplyRow(1, "m", "t", "k", status=status), REPLY_TRANSITIONS.cell(status, event)
    assert reply.is_open == (status in REPLY_OPEN)
    if cell is Cell.ILLEGAL:
        with pytest.raises(IllegalTransition, match="reply 0000000001"):
            reply.next(event)
    else:
        assert reply.next(event) == (None if cell is Cell.IGNORED else cell)


@pytest.mark.parametrize("status", FiberStatus)
def test_a_stored_fiber_has_its_status_as_a_plain_word(status: FiberStatus) -> None:
    stored = Fiber("f", 1, "job", status=status).body()
    assert unpack(stored)[5] == status.value
    assert type(unpack(stored)[5]) is str
    assert Fiber.load(stored).status is status


def test_rows_that_are_read_have_words_of_their_enums() -> None:
    wanted = {name: getattr(callback_in(CallbackStatus.PAUSED), name) for name in unpack(callback_in("paused").body())}  # type: ignore[arg-type]
    row = CallbackRow.load(
        pack({**wanted, "kind": "interval", "status": "parked", "catch_up": "all", "overlap": "queue"})
    )
    assert [type(each).__name__ for each in (row.kind, row.status, row.catch_up, row.overlap)] == [
        *("RowKind", "CallbackStatus", "CatchUp", "TickOverlap")
    ]
    every_field = vars(ReplyRow(1, "m", "t", "k", status=ReplyStatus.RUNNING)) | {"status": "running"}
    assert ReplyRow.load(pack(every_field)).status is ReplyStatus.RUNNING
