"""Who may address which agent, and by which way."""

from __future__ import annotations

import pytest

from perdure.ledger import AgentUnreachable, Standalone, agent_id, named_on_the_way, route, sub_agent_id
from perdure.ledger.facts import RunAborted, RunCleared, RunRequested
from perdure.ledger.run import Run
from tests.kit import PARENT, TYPE, Ledger, asked, placed

INNER = RunRequested("inner", TYPE, agent_id(TYPE, "r"), "", "digest", b"\x01", {}, 1)
CHILD, GRANDCHILD = agent_id(TYPE, "r"), agent_id(TYPE, "inner")
PARENT_STEP, CHILD_STEP = ("tests.toys:Parent", "p"), (TYPE, "r")


def runs() -> dict[str, Run]:
    """A run of the parent, and a run of that run's child."""
    return Ledger().given(asked(), placed(), INNER, placed("inner", incarnation=2)).view.runs


def way(
    to: str, sender: str = "", standalone: Standalone = Standalone.ALWAYS, *, exists: bool = False
) -> tuple[str, list]:
    return tuple(route(runs(), to, sender, standalone, lambda _agent: exists))  # type: ignore[return-value]


@pytest.mark.parametrize("to", [CHILD, sub_agent_id(PARENT, TYPE, "r")])
def test_the_child_of_a_run_has_two_addresses_and_both_lead_through_its_parent(to: str) -> None:
    assert way(to) == (PARENT, [CHILD_STEP])
    assert way(to, PARENT) == (CHILD, [])


def test_the_way_to_a_child_of_a_child_leads_through_each_of_those_who_requested_it() -> None:
    whole = PARENT, [CHILD_STEP, (TYPE, "inner")]
    assert way(GRANDCHILD) == way(sub_agent_id(CHILD, TYPE, "inner")) == whole
    assert way(sub_agent_id(sub_agent_id(PARENT, TYPE, "r"), TYPE, "inner")) == whole
    below = sub_agent_id(GRANDCHILD, "m:Kid", "kid 1")
    assert way(below) == (PARENT, [*whole[1], ("m:Kid", "kid 1")])


def test_the_child_of_a_clients_run_is_reached_at_once() -> None:
    known = Ledger().given(asked(parent=""), placed()).view.runs
    assert route(known, CHILD, "", Standalone.NEVER, lambda _agent: False) == (CHILD, [])


def test_a_new_agent_begins_only_if_its_class_stands_alone_or_a_relative_asks() -> None:
    with pytest.raises(AgentUnreachable, match="there is no such run"):
        way(agent_id(TYPE, "guess"), standalone=Standalone.NEVER)
    with pytest.raises(AgentUnreachable):
        way(sub_agent_id(agent_id(TYPE, "guess"), "m:Kid", "kid"), standalone=Standalone.NEVER)
    assert way(agent_id(TYPE, "guess"), standalone=Standalone.NEVER, exists=True) == (agent_id(TYPE, "guess"), [])
    for standalone in (Standalone.ALSO, Standalone.ALWAYS):
        assert way(agent_id(TYPE, "guess"), standalone=standalone) == (agent_id(TYPE, "guess"), [])
    assert way(sub_agent_id(PARENT, TYPE, "own"), PARENT) == (sub_agent_id(PARENT, TYPE, "own"), [])


def test_a_cleared_run_has_no_child_any_more() -> None:
    known = Ledger().given(asked(), placed(), RunAborted("r", "enough"), RunCleared("r")).view.runs
    for standalone in Standalone:
        with pytest.raises(AgentUnreachable, match="its run was cleared"):
            route(known, CHILD, "", standalone, lambda _agent: True)


def test_a_run_of_another_class_or_parent_or_without_a_place_is_nobodys_child() -> None:
    other = sub_agent_id(agent_id("tests.toys:Parent", "q"), TYPE, "r")
    assert way(other, standalone=Standalone.ALSO)[1] == [CHILD_STEP]
    assert way(other, "q@tests.toys:Parent") == (other, [])
    assert way(sub_agent_id(PARENT, "m:Kid", "r"), PARENT) == (sub_agent_id(PARENT, "m:Kid", "r"), [])
    waiting = Ledger().given(asked()).view.runs
    own = sub_agent_id(PARENT, TYPE, "r")
    assert route(waiting, own, PARENT, Standalone.NEVER, lambda _agent: False) == (own, [])


def test_what_must_be_known_for_a_way_are_the_runs_on_it_and_those_of_their_parents() -> None:
    assert set(named_on_the_way(runs(), GRANDCHILD)) == {"inner", "r", "p"}
    assert set(named_on_the_way({}, sub_agent_id(CHILD, TYPE, "inner"))) == {"inner", "r"}
