"""Callbacks that hang, and callers that leave: each callback hears one end, and holds up nobody."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, ClassVar

import pytest

from perdure.actors import ChatAgent, exposed
from perdure.ledger import BadRequest
from perdure.scenarios.provider.faults import Pace
from tests.actors.chat.desk import Adder, Listener, Outside
from tests.actors.chat.room import Room, visit, visiting
from tests.kit import Stage, play


class Hanging(Listener):
    """Never returns from the first event."""

    async def on_event(self, event: Any) -> None:
        """Hang."""
        self.heard.append(("on_event", event))
        await asyncio.Event().wait()


@visiting(Adder)
async def test_a_callback_that_hangs_in_an_event_holds_up_nobody(room: Room, /) -> None:
    """Its caller has the result a moment after the turn's end, and it hears that end."""
    await room.do("chat", "words", request_id="before")
    callback, begun_s = Hanging(), asyncio.get_running_loop().time()
    result = await room.do("chat", "words", callback, request_id="asked")
    assert result.ok
    assert asyncio.get_running_loop().time() - begun_s < 3
    assert [name for name, *_ in callback.heard] == ["on_start", "on_event", "on_done"]


class Slow(Listener):
    """Takes a second for each event, and for the end."""

    async def on_event(self, event: Any) -> None:
        """Take a second."""
        await asyncio.sleep(1)
        super().on_event(event)

    async def on_done(self) -> None:  # type: ignore[override]
        """Take five."""
        await asyncio.sleep(5)
        super().on_done()


@visiting(Adder)
async def test_a_slow_callback_hears_everything_before_its_caller_goes_on(room: Room, /) -> None:
    """Slow is not hanging."""
    slow, quick = Slow(), Listener()
    await room.do("chat", "words", slow, request_id="asked")
    await room.do("attach", "asked", quick)
    assert slow.heard == quick.heard


class Retelling(Adder):
    """Follows its own turns."""

    heard: ClassVar[list[str]] = []

    @exposed
    async def retell(self, request_id: str, first: int | None = None) -> None:
        """Follow a turn from its first event on, or from another one."""
        listener = Listener()
        await self.attach(request_id, listener, **({} if first is None else {"first": first}))
        self.heard[:] = listener.types


@visiting(Retelling)
async def test_who_attaches_hears_every_event_from_the_first_one_on_unless_another_one_is_named(room: Room, /) -> None:
    """From elsewhere, and in the agent itself."""
    _, whole = await room.follow("chat", "words", request_id="asked")
    assert whole.types[0] == "start"
    _, again = await room.follow("attach", "asked")
    _, rest = await room.follow("attach", "asked", first=2)
    assert (again.types, rest.types) == (whole.types, whole.types[2:])
    await room.do("retell", "asked")
    assert Retelling.heard == whole.types
    await room.do("retell", "asked", 2)
    assert Retelling.heard == whole.types[2:]


@visiting(Adder)
async def test_a_callback_for_a_turn_that_is_not_known_hears_so(room: Room, /) -> None:
    listener = Listener()
    with pytest.raises(BadRequest, match="request_id"):
        await room.do("attach", "nobody", listener)
    assert [name for name, *_ in listener.heard] == ["on_start", "on_error"]
    assert listener.heard[-1][1] == "request_id: no turn has the id nobody"


@pytest.mark.parametrize("options", [{}, {"follow": True}])
def test_a_callback_whose_caller_leaves_hears_one_end(options: dict[str, bool]) -> None:
    """It does not know what becomes of the turn, which goes on."""

    async def story(room: Room) -> None:
        listener = Listener()
        asking = room.soon("chat", "words", listener, request_id="asked", **options)
        await room.until(lambda: "text-delta" in listener.types)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert listener.ends == ["on_interrupted"]
        info = listener.heard[-1][1]
        assert (info.outcome, info.cause) == ("unknown", "connection")
        assert (await room.do("attach", "asked", first=info.next_event)).ok
        assert listener.ends == ["on_interrupted"]

    visit(Adder, story, pace=Pace(between_ms=500))
    assert len(Outside.provider.log()) == 1


class Mute(ChatAgent):
    """Has no model, so each turn fails."""


class Deaf:
    """Hears no errors."""

    def on_done(self) -> None:
        """Nothing is done."""


@pytest.mark.parametrize(("callback", "is_logged"), [(None, True), (Deaf(), True), (Listener(), False)])
def test_that_a_turn_has_failed_is_logged_unless_somebody_hears_of_it(
    callback: object, is_logged: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stage: Stage) -> Any:
        agent: Any = stage.client.agent(Mute, "m")
        return await agent.chat("Is anybody there?", callback)

    with caplog.at_level(logging.WARNING, "perdure.chat"):
        result = play(story)
    assert (result.status, result.text) == ("error", "")
    told = [each.getMessage() for each in caplog.records if each.name == "perdure.chat"]
    assert told == [f"The turn {result.request_id} ended as error: {result.error}"] * is_logged
    assert "neither the name of a model nor a model" in result.error
