"""Every cell of the table of turns, and what applying an event does to a turn."""

from __future__ import annotations

from itertools import product

import pytest

from perdure.actors.chat.turn import Turn
from perdure.ledger import pack
from perdure.policies import TURN_ENDED, TURN_TRANSITIONS, Cell, IllegalTransition, TurnEvent, TurnStatus

ORDER = "accepted running parked completed error aborted interrupted skipped".split()
EXPECTED = """
    begun      running  illegal   illegal  illegal illegal illegal illegal illegal
    cut_off    accepted running   illegal  illegal illegal illegal illegal illegal
    parked     illegal  parked    illegal  illegal illegal illegal illegal illegal
    answered   ignored  ignored   running  ignored ignored ignored ignored ignored
    completed  illegal  completed illegal  ignored ignored ignored ignored ignored
    failed     error    error     error    ignored ignored ignored ignored ignored
    aborted    aborted  aborted   aborted  ignored ignored ignored ignored ignored
    skipped    skipped  skipped   illegal  ignored ignored ignored ignored ignored
"""
ROWS = {row.split()[0]: dict(zip(ORDER, row.split()[1:], strict=True)) for row in EXPECTED.strip().splitlines()}
CELLS = list(product(TurnStatus, TurnEvent))


def turn_in(status: TurnStatus) -> Turn:
    return Turn("r", 1, "chat", "r-answer", status=status)


def test_the_table_has_a_row_for_every_event_and_a_cell_for_every_status() -> None:
    assert ROWS.keys() == {*TurnEvent}
    assert set(ORDER) == {*TurnStatus}


@pytest.mark.parametrize(("status", "event"), CELLS)
def test_each_cell_is_what_the_table_says_and_applying_it_does_that(status: TurnStatus, event: TurnEvent) -> None:
    expected, turn = ROWS[event][status], turn_in(status)
    assert TURN_TRANSITIONS.cell(status, event).value == expected
    if expected == "illegal":
        with pytest.raises(IllegalTransition, match=f"{event} cannot happen to r while it is {status}"):
            turn.apply(event)
        assert turn.status is status
    elif expected == "ignored":
        assert not turn.apply(event)
        assert turn.status is status
    else:
        assert turn.apply(event)
        assert turn.status == expected


@pytest.mark.parametrize(("status", "event"), CELLS)
def test_an_ended_turn_never_changes_and_no_open_one_goes_back(status: TurnStatus, event: TurnEvent) -> None:
    cell = TURN_TRANSITIONS.cell(status, event)
    if status in TURN_ENDED:
        assert isinstance(cell, Cell)
    elif status is not TurnStatus.ACCEPTED:
        assert cell is not TurnStatus.ACCEPTED, "what has begun never waits for its beginning again"


class NotDurableError(Exception):
    """What a storage raises that cannot commit."""


def test_a_move_that_cannot_be_made_durable_is_taken_back() -> None:
    turn = turn_in(TurnStatus.PARKED)
    with pytest.raises(NotDurableError):
        commit_failure_of(turn)
    assert turn.status is TurnStatus.PARKED


def commit_failure_of(turn: Turn) -> None:
    with turn.applied(TurnEvent.FAILED) as counts:
        assert counts
        assert turn.is_over
        raise NotDurableError


@pytest.mark.parametrize("status", ORDER)
def test_the_statuses_of_stored_rows_are_read(status: str) -> None:
    stored = pack({"request_id": "r", "number": 1, "trigger": "chat", "message_id": "m", "status": status})
    assert Turn.load(stored).status is TurnStatus(status)
    assert Turn.load(Turn.load(stored).body()).status == status
