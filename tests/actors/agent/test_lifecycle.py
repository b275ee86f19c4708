"""What an author can say about an agent's life: its state, what keeps it awake, and what went wrong in the background."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, exposed
from tests.kit import Stage, address


class Careful(Agent):
    """Allows no negative balance, and writes down how its state changed."""

    stands_alone = True

    changes: list[dict[str, Any]]
    troubles: list[str]

    async def on_start(self) -> None:
        self.changes, self.troubles = [], []

    def validate_state(self, state: dict[str, Any]) -> None:
        if state.get("balance", 0) < 0:
            raise ValueError("the balance may not be negative")

    async def on_state_changed(self, state: dict[str, Any]) -> None:
        self.changes.append(state)
        if state.get("balance") == 13:
            raise RuntimeError("an unlucky number")

    async def on_error(self, error: Exception, doing: str) -> None:
        self.troubles.append(f"{doing}: {error}")

    @exposed
    def put(self, **values: Any) -> None:
        self.state.update(values)

    @exposed
    def put_in_transaction(self, *balances: int) -> None:
        with self.transaction():
            for balance in balances:
                self.state["balance"] = balance

    @exposed
    def take_out(self, key: str) -> Any:
        return self.state.pop(key)

    @exposed
    def look(self) -> list[Any]:
        return [dict(self.state), self.changes, self.troubles]

    @exposed
    async def stay(self, seconds: float) -> None:
        async def vigil() -> None:
            with self.keep_alive():
                await asyncio.sleep(seconds)

        asyncio.get_running_loop().create_task(vigil())

    async def run(self, input: int, run: RunContext) -> int:
        return input


async def seen(stage: Stage) -> list[Any]:
    await asyncio.sleep(0.1)
    return list(await stage.call(Careful, "look"))


@pytest.mark.shows(sub_agents="B15")
async def test_a_change_of_state_that_the_author_refuses_writes_nothing_and_tells_nobody(stage: Stage) -> None:
    await stage.call(Careful, "put", balance=5, owner="x")
    with pytest.raises(ValueError, match="may not be negative"):
        await stage.call(Careful, "put", balance=-1, owner="y")
    with pytest.raises(ValueError, match="may not be negative"):
        await stage.call(Careful, "put_in_transaction", 6, -6)
    state, changes, _ = await seen(stage)
    assert state == {"balance": 5, "owner": "x"}
    assert changes == [state]


@pytest.mark.shows(sub_agents="B7 B16 B17")
async def test_changes_of_state_are_told_once_they_are_durable_and_a_hook_that_raises_changes_nothing(
    stage: Stage,
) -> None:
    await stage.call(Careful, "put_in_transaction", 1, 2, 3)
    assert (await seen(stage))[1] == [{"balance": 3}]
    await stage.call(Careful, "put", balance=13)
    assert await stage.call(Careful, "take_out", "balance") == 13
    state, changes, troubles = await seen(stage)
    assert state == {}
    assert changes[-1] == {}
    assert troubles == ["on_state_changed: an unlucky number"]


@pytest.mark.shows(sub_agents="B35 B36 B37 B38")
async def test_every_value_that_is_false_is_a_value(stage: Stage) -> None:
    for value in (None, 0, False, "", [], {}):
        await stage.call(Careful, "put", other=value)
        assert (await seen(stage))[0] == {"other": value}


@pytest.mark.shows(schedules="S70 S72 S74", sub_agents="G48")
async def test_an_agent_that_is_kept_alive_does_not_sleep(stage: Stage) -> None:
    await stage.call(Careful, "stay", 60)
    await asyncio.sleep(50)
    assert stage.host_of(address(Careful, "p"))
    await asyncio.sleep(30)
    assert not stage.host_of(address(Careful, "p"))
