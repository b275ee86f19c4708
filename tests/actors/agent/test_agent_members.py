"""What everybody expects of an agent: values that come back as they are, calls that do not wait for each other, state that is kept."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

from perdure.actors import Agent, ChatAgent, exposed
from perdure.actors.code.author_call import overrides
from perdure.actors.life.state_watch import PAGE_BYTES
from perdure.ledger import BadRequest, TooLarge
from tests.kit import ROOMY, Stage, address, staged


class Elementary(Agent):
    """What is inherited is exposed, too."""

    @exposed
    def inherited(self) -> str:
        return type(self).__name__

    @exposed
    async def replaced(self) -> str:
        return "old"


class Member(Elementary):
    """Gives back what it is given."""

    changes: int = 0

    @exposed
    def same(self, value: Any = None) -> Any:
        return value

    @exposed
    async def later(self, seconds: float, value: Any) -> Any:
        await asyncio.sleep(seconds)
        self.state["last"] = value
        return value

    @exposed
    def nothing(self) -> None:
        self.state["called"] = True

    @exposed
    def fails(self, words: str) -> None:
        raise LookupError(words)

    @exposed
    def replaced(self) -> str:  # type: ignore[override]
        return "new"

    @exposed
    def put(self, key: str, value: Any) -> None:
        self.state[key] = value

    @exposed(repeatable=True)
    def look(self, key: str) -> Any:
        return self.state.get(key, "missing")

    @exposed
    def put_all(self, values: Any) -> dict:
        self.state = values
        return self.state

    @exposed
    def merge(self, values: Any) -> dict:
        self.state |= values
        return self.state

    def hidden(self) -> None:
        """Not exposed."""

    @exposed
    def vigils_on_threads(self, count: int, fail: bool = False) -> None:
        """Many threads keep the agent awake, one of them for longer."""

        def keep() -> None:
            for _ in range(200):
                with self.keep_alive():
                    pass

        threads = [threading.Thread(target=keep) for _ in range(count)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        with self.keep_alive():
            if fail:
                raise ValueError("in the middle")

    def validate_state(self, state: dict[str, Any]) -> None:
        if state.get("n", 0) > 2:
            raise ValueError("n is at most 2")

    @exposed
    def count_in_blocks(self, catch: bool) -> int:
        """Blocks in a block: one that is refused takes all with it, unless it is caught before it ends its block."""
        with self.transaction():
            self.state["n"] = 1
            with self.transaction():
                self.state["n"] += 1
            if not catch:
                self.state["n"] += 1
            with suppress(ValueError):
                self.state["n"] += 1
        return int(self.state["n"])


VALUES = [None, 0, False, "", [], {}, 1.5, "text", [1, [2]], {"a": {"b": None}}, b"\0\xff"]


@pytest.mark.shows(sub_agents="B2 B3 B4 B5 B12 B13 B39 B40 B41 B42 B54 B58 B71")
async def test_a_value_comes_back_as_it_is_from_a_call_and_from_the_state_of_a_later_life(stage: Stage) -> None:
    for number, value in enumerate(VALUES):
        assert await stage.call(Member, "same", value) == value
        await stage.call(Member, "put", f"kept {number}", value)
    stage.kill_host_of(address(Member, "p"))
    for number, value in enumerate(VALUES):
        assert await stage.call(Member, "look", f"kept {number}") == value
    assert await stage.call(Member, "look", "other") == "missing"


async def test_a_state_is_assigned_as_a_whole_and_given_back_as_a_dictionary(stage: Stage) -> None:
    assert await stage.call(Member, "put_all", {"a": 1, "b": 2}) == {"a": 1, "b": 2}
    assert await stage.call(Member, "put_all", {"b": 3}) == {"b": 3}
    assert await stage.call(Member, "merge", {"c": 4}) == {"b": 3, "c": 4}
    with pytest.raises(BadRequest, match=r"state: \[1\] is list; the state of an agent is an object"):
        await stage.call(Member, "put_all", [1])
    assert [await stage.call(Member, "look", key) for key in "ab"] == ["missing", 3]


@pytest.mark.shows(sub_agents="B55 B68 B69")
async def test_calls_overtake_each_other_and_each_gets_its_own_answer(stage: Stage) -> None:
    ended: list[int] = []

    async def one(number: int) -> None:
        assert await stage.call(Member, "later", 3 - number, number) == number
        ended.append(number)

    await asyncio.gather(*(one(number) for number in range(3)))
    assert ended == [2, 1, 0]


@pytest.mark.shows(sub_agents="B56")
async def test_who_does_not_wait_for_the_answer_has_called_all_the_same_and_harms_nobody(stage: Stage) -> None:
    for method, args in (("later", [2, "x"]), ("fails", ["unheard"])):
        call = asyncio.ensure_future(stage.call(Member, method, *args))
        await asyncio.sleep(0.5)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
    await asyncio.sleep(5)
    assert await stage.call(Member, "look", "last") == "x"


@pytest.mark.shows(sub_agents="B57 B59 B60 B61 B62 B70 B73 B74")
async def test_a_method_may_give_nothing_take_nothing_be_inherited_be_replaced_or_fail(stage: Stage) -> None:
    assert await stage.call(Member, "nothing") is None
    assert await stage.call(Member, "inherited") == "Member"
    assert await stage.call(Member, "replaced") == "new"
    with pytest.raises(LookupError, match="such words"):
        await stage.call(Member, "fails", "such words")
    for method in ("hidden", "missing", "state"):
        with pytest.raises(BadRequest, match=f"no exposed method '{method}'"):
            await stage.call(Member, method)
    with pytest.raises(BadRequest, match="no exposed method 'replacd'; did you mean 'replaced'"):
        await stage.call(Member, "replacd")
    with pytest.raises(TypeError, match=r"^Member\.fails\(\): got an unexpected keyword argument 'word'"):
        await stage.client.agent(Member, "typo").fails("a", word=1)
    with pytest.raises((BadRequest, TypeError)):
        await stage.call(Member, "later", "no number", 1)


@pytest.mark.shows(sub_agents="B126 B127 B130 B131 B143 B144 B153")
async def test_two_agents_of_a_class_are_apart_and_a_name_is_the_same_agent_for_everybody(stage: Stage) -> None:
    for name in ("a", "A", "a-1", "a_1", "default", "1"):
        await stage.call(Member, "put", "mine", name, name=name)
    for name in ("a", "A", "a-1", "a_1", "default", "1"):
        other: Any = stage.client.agent(Member, name)
        assert await other.look("mine") == name


@pytest.mark.shows(sub_agents="G47 G49 G50")
async def test_vigils_on_many_threads_end_with_their_blocks_also_when_these_fail(stage: Stage) -> None:
    await stage.call(Member, "vigils_on_threads", 8)
    with pytest.raises(ValueError, match="in the middle"):
        await stage.call(Member, "vigils_on_threads", 2, fail=True)
    await stage.until(lambda: not stage.host_of(address(Member, "p")))


async def test_a_refused_change_is_refused_in_any_block_and_what_was_caught_costs_nothing_else(stage: Stage) -> None:
    assert await stage.call(Member, "count_in_blocks", catch=True) == 2
    await stage.call(Member, "put", "n", 0)
    with pytest.raises(ValueError, match="at most 2"):
        await stage.call(Member, "count_in_blocks", catch=False)
    assert await stage.call(Member, "look", "n") == 0


class Moody(ChatAgent):
    """A chat agent with state of its own, and sub-agents."""

    told: list[dict[str, Any]]

    async def on_start(self) -> None:
        self.told = []

    def validate_state(self, state: dict[str, Any]) -> None:
        if state.get("mood") == "bad":
            raise ValueError("no bad mood")

    async def on_state_changed(self, state: dict[str, Any]) -> None:
        self.told.append(state)

    @exposed
    async def feel(self, mood: str) -> list[dict[str, Any]]:
        self.state["mood"] = mood
        await asyncio.sleep(0.01)
        return self.told

    @exposed
    async def ask_member(self, name: str, value: str) -> list[str]:
        member = self.sub_agent(Member, name)
        await member.put("x", value)  # type: ignore[func-returns-value]
        return [str(await member.look("x")), *(each.name for each in self.sub_agents.list())]


async def test_a_chat_agent_has_state_hooks_and_sub_agents_like_any_other(stage: Stage) -> None:
    assert await stage.call(Moody, "feel", "good") == [{"mood": "good"}]
    with pytest.raises(ValueError, match="no bad mood"):
        await stage.call(Moody, "feel", "bad")
    assert await stage.call(Moody, "ask_member", "m", "1") == ["1", "m"]
    member: Any = stage.client.agent(Member, "m", of=stage.client.agent(Moody, "p"))
    assert await member.look("x") == "1"


def test_a_hook_is_overridden_by_whatever_stands_in_its_place_even_if_that_wraps_it() -> None:
    @wraps(Agent.on_start)
    async def wrapped(self: Agent) -> None:
        await Agent.on_start(self)

    assert overrides(type("Wraps", (Agent,), {"on_start": wrapped}), "on_start")
    assert overrides(type("Has", (Agent,), {"on_fiber_recovered": lambda _self, _fiber: "retry"}), "on_fiber_recovered")
    assert not any(overrides(ChatAgent, hook) for hook in ("on_start", "on_error", "on_fiber_recovered"))


async def refused_as_state(stage: Stage, method: str, *args: Any) -> None:
    with pytest.raises(TooLarge) as refused:
        await stage.call(Member, method, *args)
    assert refused.value.field == "state"


@staged(limits=replace(ROOMY, output_bytes_max=10000))
async def test_a_state_that_may_be_set_from_outside_may_be_watched_and_a_larger_one_is_named_as_the_state(
    stage: Stage,
) -> None:
    largest = {"a": "x" * (10_000 - PAGE_BYTES - 6)}
    await stage.call(Member, "_perdure_set_state", largest)
    assert (await stage.call(Member, "_perdure_watch_state", None, None, 0.0))["state"] == largest
    assert await stage.call(Member, "_perdure_state") == largest
    await refused_as_state(stage, "_perdure_set_state", {"a": largest["a"] + "x"})
    assert await stage.call(Member, "_perdure_state") == largest
    await stage.call(Member, "put", "b", "the agent itself may have more")
    await refused_as_state(stage, "_perdure_watch_state", None, None, 0.0)
    await refused_as_state(stage, "_perdure_state")
