"""Runs over HTTP: what is known of one, and its events from a number on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from perdure.actors import Agent, RunContext
from perdure.actors.gateway.feeds import WINDOW, Batch, RunFeeds, Shared, Watched
from perdure.scenarios.testing.laboratory import Laboratory
from tests.gateway.door import Door, events
from tests.gateway.world import visiting


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


@visiting(Walker)
async def test_a_run_is_shown_and_an_unknown_one_is_not_found(door: Door, laboratory: Laboratory, /) -> None:
    await begin(laboratory, 2, "walk")
    found = await door.get("/api/runs/walk")
    assert (found.status, found.json()["run_id"]) == (200, "walk")
    missing = await door.get("/api/runs/nobody")
    assert (missing.status, missing.json()["error"]["type"]) == (404, "UnknownRun")
    unknown = await door.get("/api/runs/nobody/events")
    assert unknown.status == 404


@visiting(Walker)
async def test_events_are_streamed_from_a_number_on_across_the_death_of_the_host(
    door: Door, laboratory: Laboratory, /
) -> None:
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
    for behind in (numbers[-1], numbers[-1] + 4):
        over = await door.get("/api/runs/walk/events", headers={"last-event-id": str(behind)})
        assert (over.status, over.body.count(b"event: end")) == (200, 1)
        assert not [each for each in events(over.body) if each]


@visiting(Talker)
async def test_who_is_slow_or_late_gets_each_event_once_while_others_are_ahead(
    door: Door, laboratory: Laboratory, /
) -> None:
    words = WINDOW + 1_500
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


@pytest.mark.parametrize("last", [8, 9, 10, 11])
@visiting(Talker)
async def test_who_comes_later_gets_all_after_the_last_event_that_it_has_wherever_the_window_of_others_begins(
    door: Door, laboratory: Laboratory, /, last: int
) -> None:
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    await client.start(Talker, 200, run_id="talk")
    feeds = RunFeeds()
    ahead = Watcher(feeds, client, 9)
    await ahead.take_all(upto=60)
    late = Watcher(feeds, client, last)
    await asyncio.gather(late.take_all(), ahead.take_all())
    assert late.numbers == list(range(last + 1, 202))
    assert ahead.numbers == list(range(10, 202))


class Stubborn(Agent):
    """Fails until it is tried again."""

    async def run(self, input: None, run: RunContext) -> str:
        run.emit({"attempt": run.attempt})
        await asyncio.sleep(1)
        if run.attempt == 1:
            raise ValueError("not yet")
        return "said"


@visiting(Stubborn)
async def test_who_has_all_of_an_ended_run_is_told_what_comes_if_it_is_tried_again_though_others_have_not_read_it(
    door: Door, laboratory: Laboratory, /
) -> None:
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    await client.start(Stubborn, None, run_id="talk")
    await asyncio.sleep(5)
    feeds = RunFeeds()
    slow = Watcher(feeds, client)
    assert await slow.take()
    late = Watcher(feeds, client, slow.numbers[-1])
    waiting = asyncio.ensure_future(late.take())
    await asyncio.sleep(1)
    assert (await door.post("/api/runs/talk/retry", {})).status == 200
    async with asyncio.timeout(60):
        await waiting
    assert late.numbers[0] == slow.numbers[-1] + 1


@visiting(Talker)
async def test_a_batch_shares_the_text_of_what_it_is_given(door: Door, laboratory: Laboratory, /) -> None:
    words, count = 500, 200
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    await client.start(Talker, words, run_id="talk")
    feeds = RunFeeds()
    batch = [Watcher(feeds, client) for _ in range(count)]
    await asyncio.gather(*(each.take_all() for each in batch))
    assert all(each.numbers == list(range(words + 2)) for each in batch)
    texts = {id(batch.stream) for each in batch for batch in each.given}
    assert len(texts) < 2 * len(batch[-1].given), "and not one for each watcher"
    told = [frame["sequence"] for batch in batch[0].given for frame in events(batch.stream)]
    assert told == batch[0].numbers


@visiting(Walker)
async def test_a_page_elsewhere_and_a_foreign_host_name_are_refused(door: Door, laboratory: Laboratory, /) -> None:
    assert (await door.get("/api/runs/x", headers={"origin": "https://evil.example"})).status == 403
    assert (await door.get("/api/runs/x", headers={"host": "evil.example"})).status == 403
    assert (await door.get("/api/runs/x", headers={"origin": "http://127.0.0.1:8787"})).status == 404


def test_the_text_of_an_event_is_its_frame() -> None:
    assert events(b'id: 3\ndata: {"a":1}\n\n: still here\n\ndata: [DONE]\n\n')[0] == json.loads('{"a":1}')


class Lingering:
    """A client whose following of a run takes a moment to end."""

    async def ask(self, _name: str, _run_id: str, last: int) -> list[dict[str, Any]]:
        return [{"sequence": number, "event": {"kind": "progress"}} for number in range(last + 1, 3)]

    async def follow(self, _run_id: str, _last: int) -> AsyncGenerator[dict[str, Any], None]:
        try:
            await asyncio.Event().wait()
            yield {}
        finally:
            await asyncio.sleep(0.05)


async def test_who_comes_while_the_last_watcher_leaves_is_told_what_comes() -> None:
    feeds, client = RunFeeds(), Lingering()
    first = Watcher(feeds, client)
    await first.take()
    waiting = asyncio.ensure_future(first.take())
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.sleep(0.01)
    second = Watcher(feeds, client)
    await second.take()
    upcoming = asyncio.ensure_future(second.take())
    await asyncio.wait({waiting})
    await asyncio.wait({upcoming}, timeout=0.1)
    assert (second.numbers, upcoming.done()) == ([0, 1, 2], False)
    upcoming.cancel()
    await asyncio.wait({upcoming})


class Broken(Lingering):
    """A client that cannot follow."""

    async def follow(self, _run_id: str, _last: int) -> AsyncGenerator[dict[str, Any], None]:
        raise ConnectionError("nobody can be asked")
        yield {}


async def test_what_ends_the_following_of_a_run_is_raised_by_its_watchers_and_no_end_of_the_run() -> None:
    watcher = Watcher(RunFeeds(), Broken())
    await watcher.take()
    with pytest.raises(ConnectionError, match="nobody can be asked"):
        await watcher.take()


class Thing(Watched):
    """Is begun and stopped."""

    def __init__(self, told: list[str], name: str, problem: Exception | None = None) -> None:
        super().__init__()
        self.told, self.name, self.problem = told, name, problem

    async def begin(self) -> None:
        self.told.append(f"begin {self.name}")
        if self.problem is not None:
            raise self.problem

    async def stop(self) -> None:
        self.told.append(f"stop {self.name}")
        await asyncio.sleep(0.01)
        self.told.append(f"stopped {self.name}")


def test_what_is_shared_is_made_for_the_first_and_put_away_after_the_last() -> None:
    told: list[str] = []
    names = iter("abcde")

    def make() -> Thing:
        return Thing(told, next(names))

    async def story() -> None:
        shared: Shared[Thing] = Shared()

        async def visited() -> str:
            async with shared.watched("key", make) as thing:
                return thing.name

        async with shared.watched("key", make) as one, shared.watched("other", make) as other:
            async with shared.watched("key", make) as two:
                assert (one is two, one is other) == (True, False)
            assert told == ["begin a", "begin b", "begin a"]
        assert told[3:] == ["stop b", "stopped b", "stop a", "stopped a"]
        first = asyncio.ensure_future(visited())
        await asyncio.sleep(0)
        assert (await visited(), await first) == ("d", "c"), "who comes while it is put away gets another one"
        failing = Thing(told, "broken", ValueError("it does not begin"))
        with pytest.raises(ValueError, match="it does not begin"):
            async with shared.watched("key", lambda: failing):
                raise AssertionError("it has not begun")
        assert told[-3:] == ["begin broken", "stop broken", "stopped broken"]
        assert await visited() == "e"

    asyncio.run(story())
