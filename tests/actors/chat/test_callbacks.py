"""Callbacks that hang, and callers that leave: each callback hears one end, and holds up nobody."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.scenarios.provider.faults import Pace
from tests.actors.chat.desk import Adder, Listener, Outside
from tests.actors.chat.room import Room, visit


class Hanging(Listener):
    """Never returns from the first event."""

    async def on_event(self, event: Any) -> None:
        """Hang."""
        self.heard.append(("on_event", event))
        await asyncio.Event().wait()


def test_a_callback_that_hangs_in_an_event_holds_up_nobody() -> None:
    """Its caller has the result a moment after the turn's end, and it hears that end."""

    async def story(room: Room) -> None:
        await room.do("chat", "words", request_id="before")
        callback, begun_s = Hanging(), asyncio.get_running_loop().time()
        result = await room.do("chat", "words", callback, request_id="asked")
        assert result.ok
        assert asyncio.get_running_loop().time() - begun_s < 3
        assert [name for name, *_ in callback.heard] == ["on_start", "on_event", "on_done"]

    visit(Adder, story)


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


def test_a_slow_callback_hears_everything_before_its_caller_goes_on() -> None:
    """Slow is not hanging."""

    async def story(room: Room) -> None:
        slow, quick = Slow(), Listener()
        await room.do("chat", "words", slow, request_id="asked")
        await room.do("attach", "asked", quick)
        assert slow.heard == quick.heard

    visit(Adder, story)


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
