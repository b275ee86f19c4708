"""An argument that is not given is a copy of its default: agents share a process, and what one does to it is nobody else's."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, FiberContext, RunContext, exposed, tell, tool
from perdure.actors.chat.tools import function_tool
from perdure.actors.code.signatures import own_default
from tests.kit import Stage, play

LOCK = threading.Lock()


class Unwilling:
    """Refuses to be copied, in a way of its own."""

    def __deepcopy__(self, _memo: object) -> Unwilling:
        raise RuntimeError("there is one of me")


class Lending(Agent):
    """Adds to whatever it is not given."""

    stands_alone = True
    told: ClassVar[list[list[int]]] = []

    async def run(self, x: list[int] = []) -> list[int]:  # noqa: B006 - what this is about
        x.append(len(x) + 1)
        return x

    @exposed
    def call(self, first: int, x: list[int] = [], *, named: dict[str, list[int]] = {"a": []}) -> list[int]:  # noqa: B006
        x.append(first)
        named["a"].append(first)
        return x + named["a"]

    @exposed
    def follow(self, x: list[int] = []) -> None:  # noqa: B006 - as above
        x.append(1)
        self.told.append(x)

    async def fiber(self, fiber: FiberContext, x: list[int] = []) -> None:  # noqa: B006 - as above
        x.append(1)
        fiber.stash(x)

    @exposed
    async def begin(self, name: str) -> Any:
        self.start_fiber(name, "fiber", fiber_id=name)
        return (await self.fibers.wait(name)).snapshot


class Aside(Agent):
    """Has defaults that nobody gives at all."""

    async def run(self, n: int, seen: list[int] = [], run: RunContext = None, *, more: list[int] = []) -> Any:  # type: ignore[assignment]  # noqa: B006
        seen.append(n)
        more.append(n)
        return [run.run_id, seen, more]


class Trailing(Agent):
    """Has one behind all that is given."""

    async def run(self, n: int, run: RunContext, seen: list[int] = []) -> Any:  # noqa: B006 - as above
        seen.append(n)
        return seen


def test_a_run_that_is_given_nothing_has_a_default_of_its_own() -> None:
    async def story(stage: Stage) -> list[Any]:
        ends = [await stage.client.run(Lending) for _ in range(3)]
        ends += [
            await stage.client.run(each, 5, run_id=f"{each.__name__}-{nth}")
            for each in (Aside, Trailing)
            for nth in "12"
        ]
        return [end.output for end in ends]

    assert play(story) == [[1], [1], [1], ["Aside-1", [5], [5]], ["Aside-2", [5], [5]], [5], [5]]


def test_a_call_a_mail_and_a_fiber_that_are_given_nothing_have_a_default_of_their_own() -> None:
    async def story(stage: Stage) -> list[Any]:
        calls = [await stage.call(Lending, "call", 1, name=name) for name in ("a", "a", "b")]
        for _ in range(2):
            await tell(stage.client.agent(Lending, "a").follow)
        await stage.until(lambda: len(Lending.told) == 2)
        return [
            *calls,
            await stage.call(Lending, "call", 1, [7]),
            *[await stage.call(Lending, "begin", n) for n in "fg"],
        ]

    Lending.told = []
    assert play(story) == [[1, 1], [1, 1], [1, 1], [7, 1, 1], [1], [1]]
    assert Lending.told == [[1], [1]]


@tool
def collect(x: set[int] = set(), y: list[int] = []) -> list[int]:  # noqa: B006 - as above
    """Add to what is not given, also to what JSON cannot write."""
    x.add(len(x))
    y.append(len(y))
    return [*x, *y]


def test_a_tool_that_is_given_nothing_has_a_default_of_its_own() -> None:
    made = function_tool(collect)
    assert [made.bound({})() for _ in range(2)] == [[0, 0], [0, 0]]


@pytest.mark.parametrize(
    "default",
    [(1, "a"), None, LOCK, object, {"lock": LOCK}, [Unwilling()]],
    ids=["a tuple", "none", "a lock", "a class", "a lock within", "what refuses"],
)
def test_what_cannot_be_changed_or_copied_is_the_default_itself(default: object) -> None:
    assert own_default(default) is default
