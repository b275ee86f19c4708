"""The states of mail: every cell of the table, and what the table promises."""

from __future__ import annotations

import pytest

from perdure.ledger import Mail, MailState, Slot
from perdure.ledger.mail import TABLE, MailEvent, handler_of, permits
from perdure.policies import Cell, IllegalTransition

P, K, S, D, W = MailState.PENDING, MailState.PARKED, MailState.SUPERSEDED, MailState.DELIVERED, MailState.SUPPRESSED
MOVES = {
    (P, MailEvent.HANDLED): D,
    (K, MailEvent.HANDLED): D,
    (S, MailEvent.HANDLED): D,
    (P, MailEvent.FAILED): P,
    (P, MailEvent.GIVEN_UP): K,
    (P, MailEvent.OVERTAKEN): S,
    (K, MailEvent.OVERTAKEN): S,
    (P, MailEvent.WITHDRAWN): W,
    (K, MailEvent.WITHDRAWN): W,
    (K, MailEvent.REQUEUED): P,
}
CELLS = [(state, event) for state in MailState for event in MailEvent]


def mail(state: MailState) -> Mail:
    return Mail("r!finish", "p@T", "r", Slot.FINISH, "done", None, 0, state)


@pytest.mark.parametrize(("state", "event"), CELLS, ids=str)
def test_each_cell_moves_the_mail_or_is_an_echo(state: MailState, event: MailEvent) -> None:
    expected = MOVES.get((state, event))
    assert permits(state, event) is (expected is not None)
    if expected is None:
        with pytest.raises(IllegalTransition, match=event):
            mail(state).after(event)
    else:
        assert mail(state).after(event) is expected


def test_nothing_moves_a_mail_that_is_delivered_or_suppressed() -> None:
    gone = (MailState.DELIVERED, MailState.SUPPRESSED)
    assert {TABLE.cell(state, event) for state in gone for event in MailEvent} == {Cell.IGNORED}


def test_a_mail_comes_back_from_plain_data_with_its_state() -> None:
    plain = mail(K).to_plain()
    assert Mail.from_plain(plain) == mail(K)
    assert Mail.from_plain([*plain[:7], "parked"]).state is K


def test_the_stored_values_of_states_and_slots_stay() -> None:
    assert [*map(str, MailState)] == ["pending", "parked", "superseded", "delivered", "suppressed"]
    assert [*map(str, Slot)] == ["start", "finish", "give-up", "tell"]


@pytest.mark.parametrize(
    ("slot", "handler"),
    [(Slot.START, ""), (Slot.FINISH, "f"), (Slot.GIVE_UP, "g"), ("milestone:m", "m")],
)
def test_each_slot_has_its_handler(slot: str, handler: str) -> None:
    assert handler_of(slot, {"on_finish": "f", "on_give_up": "g", "on_milestone": "m"}) == handler


def test_a_give_up_without_a_handler_of_its_own_is_told_to_that_of_the_end() -> None:
    assert handler_of(Slot.GIVE_UP, {"on_finish": "f"}) == "f"
