"""Runs over HTTP: what is known of one, and its events from a number on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perdure.actors import Agent, RunContext
from perdure.actors.gateway.run_feed import WINDOW, Batch, RunFeeds
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door, events
from tests.gateway.world import visit


class Walker(Agent):
    """Reports each step."""

    async def run(self, input: int, run: RunContext) -> str:
        for step in range(input):
            await self.report_progress(fraction=(step + 1) / input, message=f"step {step}")
            await asyncio.sleep(1)
        return "there"


class Talker(Agent):
    """Says some words, a few at a time."""

    async def run(self, input: int, run: RunContext) -> str:
        for number in range(input):
            if number % 50 == 0:
                await asyncio.sleep(0.05)
            run.emit({"word": number})
        return "said"


class Watcher:
    """Watches a run until its end, and keeps what it was given."""

    def __init__(self, feeds: RunFeeds, client: Any, last: int = -1) -> None:
        self._batches = feeds.watch(client, "talk", last)
        self.given: list[Batch] = []

    async def take(self) -> bool:
        """Take a batch, and return whether there was one."""
        batch = await anext(self._batches, None)
        self.given += [batch] if batch is not None else []
        return batch is not None

    async def take_all(self, upto: int | None = None) -> None:
        """Take what there is to the end, or until a number is passed."""
        while (upto is None or not self.given or self.given[-1][-1].sequence < upto) and await self.take():
            pass

    @property
    def numbers(self) -> list[int]:
        return [each.sequence for batch in self.given for each in batch]


async def begin(laboratory: Laboratory, steps: int, run_id: str) -> None:
    """Start a run, as anybody in the cluster would."""
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    await client.start(Walker, steps, run_id=run_id)


def test_a_run_is_shown_and_an_unknown_one_is_not_found() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        await begin(laboratory, 2, "walk")
        found = await door.get("/api/runs/walk")
        assert (found.status, found.json()["run_id"]) == (200, "walk")
        missing = await door.get("/api/runs/nobody")
        assert (missing.status, missing.json()["error"]["type"]) == (404, "UnknownRun")
        unknown = await door.get("/api/runs/nobody/events")
        assert unknown.status == 404

    visit([Walker], story)


def test_events_are_streamed_from_a_number_on_across_the_death_of_the_host() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        await begin(laboratory, 20, "walk")
        async with door.stream("GET", "/api/runs/walk/events") as (head, pieces):
            assert head.status == 200
            assert head.headers["content-type"].startswith("text/event-stream")
            told: list[bytes] = []
            async for piece in pieces:
                told.append(piece)
                if b'"progress"' in piece and len(told) == 3:
                    host = next(iter(laboratory.hosts))
                    laboratory.simulation.kill(host)
        frames = [each for each in events(b"".join(told)) if each]
        numbers = [each["sequence"] for each in frames]
        assert numbers == list(range(len(numbers)))
        assert frames[-1]["event"]["kind"] == "finished"
        again = await door.get("/api/runs/walk/events", headers={"last-event-id": str(numbers[-2])})
        assert [each["sequence"] for each in events(again.body) if each] == [numbers[-1]]

    visit([Walker], story)


def test_who_is_slow_or_late_gets_each_event_once_while_others_are_ahead() -> None:
    words = WINDOW + 1_500

    async def story(_door: Door, laboratory: Laboratory) -> None:
        client: Any = laboratory._client  # noqa: SLF001 - the story's own
        await client.start(Talker, words, run_id="talk")
        feeds = RunFeeds()
        ahead, slow = Watcher(feeds, client), Watcher(feeds, client)
        await slow.take()
        await ahead.take_all(upto=words // 2)
        late, further = Watcher(feeds, client), Watcher(feeds, client, 1_000)
        await asyncio.gather(late.take_all(), further.take_all(), ahead.take_all())
        behind = slow.numbers[-1]
        assert behind < ahead.numbers[-1] - WINDOW, "it has to be read for it once more"
        await slow.take_all()
        whole = list(range(words + 2))
        assert ahead.numbers == whole
        assert slow.numbers == whole
        assert late.numbers == whole
        assert further.numbers == whole[1_001:]
        assert ahead.given[-1][-1].is_last

    visit([Talker], story)


@pytest.mark.parametrize("last", [8, 9, 10, 11])
def test_who_comes_later_gets_all_after_the_last_event_that_it_has_wherever_the_window_of_others_begins(
    last: int,
) -> None:
    async def story(_door: Door, laboratory: Laboratory) -> None:
        client: Any = laboratory._client  # noqa: SLF001 - the story's own
        await client.start(Talker, 200, run_id="talk")
        feeds = RunFeeds()
        ahead = Watcher(feeds, client, 9)
        await ahead.take_all(upto=60)
        late = Watcher(feeds, client, last)
        await asyncio.gather(late.take_all(), ahead.take_all())
        assert late.numbers == list(range(last + 1, 202))
        assert ahead.numbers == list(range(10, 202))

    visit([Talker], story)


def test_a_crowd_shares_the_text_of_what_it_is_given() -> None:
    words, count = 500, 200

    async def story(_door: Door, laboratory: Laboratory) -> None:
        client: Any = laboratory._client  # noqa: SLF001 - the story's own
        await client.start(Talker, words, run_id="talk")
        feeds = RunFeeds()
        crowd = [Watcher(feeds, client) for _ in range(count)]
        await asyncio.gather(*(each.take_all() for each in crowd))
        assert all(each.numbers == list(range(words + 2)) for each in crowd)
        texts = {id(batch.stream) for each in crowd for batch in each.given}
        assert len(texts) < 2 * len(crowd[-1].given), "and not one for each watcher"
        told = [frame["sequence"] for batch in crowd[0].given for frame in events(batch.stream)]
        assert told == crowd[0].numbers

    visit([Talker], story)


def test_a_page_elsewhere_and_a_foreign_host_name_are_refused() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        assert (await door.get("/api/runs/x", headers={"origin": "https://evil.example"})).status == 403
        assert (await door.get("/api/runs/x", headers={"host": "evil.example"})).status == 403
        assert (await door.get("/api/runs/x", headers={"origin": "http://127.0.0.1:8787"})).status == 404

    visit([Walker], story)


def test_the_text_of_an_event_is_its_frame() -> None:
    assert events(b'id: 3\ndata: {"a":1}\n\n: still here\n\ndata: [DONE]\n\n')[0] == json.loads('{"a":1}')
