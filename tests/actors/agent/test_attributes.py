"""What an author sets where nothing is kept is refused, and not lost without a word."""

from __future__ import annotations

import weakref
from typing import Any

from perdure.actors import Agent, exposed
from tests.kit import Stage


class Setter(Agent):
    """Sets attributes on all that it is given."""

    stands_alone = True

    async def run(self, input: int) -> list[str]:
        self.state["hits"] = 1
        handle = self.sub_agent(Setter, "other")
        groups = self.fibers, self.schedules, self.queued, self.sub_agents, self.storage
        assert weakref.ref(self.state)() is self.state
        assert weakref.ref(handle)() is handle
        return [refusal(each) for each in (self.state, handle, *groups)]

    @exposed
    def read(self) -> list[str]:
        self.state["hits"] = 1
        kept: Any = self.state
        try:
            return [kept.hits]
        except AttributeError as refused:
            return [str(refused)]


def refusal(given: Any) -> str:
    try:
        given.hits = 1
    except AttributeError as refused:
        return str(refused)
    return f"{given} took it"


async def test_the_state_a_handle_and_the_groups_of_verbs_take_no_attributes(stage: Stage) -> None:
    state, handle, *groups = (await stage.client.run(Setter, 1, run_id="r")).output
    assert state == 'the state has keys, and no attributes: write self.state["hits"] = …'
    assert all("object has no attribute 'hits'" in each for each in (handle, *groups))


async def test_a_key_of_the_state_that_is_read_as_an_attribute_is_refused_with_what_to_write(stage: Stage) -> None:
    assert await stage.call(Setter, "read") == ['the state has keys, and no attributes: write self.state["hits"]']
