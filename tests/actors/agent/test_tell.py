"""Telling an agent something: exactly once in effect, whoever dies, and not at all if what tells it rolls back."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from perdure.actors import Agent, KillPoint, RunContext, exposed, tell
from perdure.actors.life.mailbox import Letter
from perdure.ledger import BadRequest
from tests.actors.crew import Batch
from tests.kit import Stage, address, play


class Listener(Agent):
    """Writes down what it is told."""

    @exposed
    def hear(self, word: str) -> None:
        if word == "bad":
            raise ValueError("no such word")
        with self.transaction():
            self.state["words"] = [*self.state.get("words", []), word]

    @exposed
    def words(self) -> list[str]:
        return list(self.state.get("words", []))


class Speaker(Agent):
    """Has a listener."""

    stands_alone = True

    def listener(self, name: str) -> Any:
        return self.sub_agent(Listener, name)

    @exposed
    def say(self, words: list[str], fail: bool = False) -> None:
        with self.transaction():
            for word in words:
                tell(self.listener("x").hear, word)
            if fail:
                raise RuntimeError("never mind")

    @exposed
    async def say_now(self, word: str, name: str = "x") -> None:
        await tell(self.listener(name).hear, word)

    @exposed
    async def heard(self, name: str = "x") -> list[str]:
        return list(await self.listener(name).words())

    async def run(self, input: int, run: RunContext) -> int:
        for number in range(input):
            await tell(self.listener("x").hear, str(number))
            await run.report_progress(number / input)
        return run.attempt


class Neighbour(Speaker):
    """Speaks to an agent that is no relative."""

    def listener(self, name: str) -> Any:
        return self.agent(Listener, name)


async def heard(stage: Stage, name: str = "p") -> list[str]:
    await asyncio.sleep(60)
    return list(await stage.call(Speaker, "heard", name=name))


async def test_what_is_told_takes_effect_once_and_in_order(stage: Stage) -> None:
    await stage.call(Speaker, "say", ["a", "b"])
    await stage.call(Speaker, "say_now", "c")
    assert await heard(stage) == ["a", "b", "c"]
    assert stage.deliveries()["delivered"] == 3


async def test_a_client_tells_too_and_what_cannot_be_told_is_refused_at_once(stage: Stage) -> None:
    listener: Any = stage.client.agent(Listener, "x")
    await tell(listener.hear, "a")
    with pytest.raises(BadRequest, match="word"):
        await tell(listener.hear, ["no", "string"])
    with pytest.raises(BadRequest, match="neither an exposed method of a handle nor a run"):
        tell(Listener.hear, "a")
    with pytest.raises(BadRequest, match="no exposed method 'shout'"):
        await tell(listener.shout, "a")
    await asyncio.sleep(5)
    assert await listener.words() == ["a"]


async def test_a_rollback_tells_nothing(stage: Stage) -> None:
    with pytest.raises(Exception, match="never mind"):
        await stage.call(Speaker, "say", ["a"], fail=True)
    assert await heard(stage) == []


async def test_what_a_listener_cannot_hear_is_tried_again_and_parked_and_holds_up_nothing(stage: Stage) -> None:
    await stage.call(Speaker, "say", ["a", "bad", "b"])
    assert await heard(stage) == ["a", "b"]
    await stage.until(lambda: stage.deliveries()["parked"] == 1)
    (parked,) = (await stage.client.ask("audit"))["parked_mail"]
    assert parked["handler"] == "hear"
    assert "no such word" in parked["error"]
    await stage.client.ask("retry", parked["mail_id"])


async def test_mail_that_came_again_and_still_waits_is_not_forgotten_although_it_is_settled_and_takes_effect_once(
    stage: Stage,
) -> None:
    listener: Any = stage.client.agent(Listener, "x")
    assert await listener.words() == []
    agent = address(Listener, "x")
    tenant, came = stage.laboratory.hosts[stage.host_of(agent)].tenants[agent], list[Letter]()
    tenant.mail.deliver = lambda letters, take=tenant.mail.deliver: came.extend(letters) or take(letters)
    await tell(listener.hear, "a")
    await tell(listener.hear, "b")
    await stage.until(lambda: stage.deliveries()["delivered"] == 2)
    inbox = tenant.storage.inbox
    assert list(inbox()) == [letter.mail_id for letter in came]
    tenant.mail.deliver(came[:1])
    tenant.mail.settled(list(inbox()))
    assert list(inbox()) == [came[0].mail_id]
    await asyncio.sleep(1)
    assert await listener.words() == ["a", "b"]
    tenant.mail.settled(list(inbox()))
    assert list(inbox()) == []


async def test_what_was_accepted_does_not_stay_in_the_outbox(stage: Stage) -> None:
    await stage.call(Speaker, "say", ["a"])
    await stage.call(Batch, "ask_under", ["r"])
    await stage.until(lambda: stage.status("r") == "completed")
    for kind in (Speaker, Batch):
        agent = address(kind, "p")
        assert stage.laboratory.hosts[stage.host_of(agent)].tenants[agent].outbox.is_empty


POINTS = [
    KillPoint.AFTER_COMMIT,
    KillPoint.BEFORE_COMMIT,
    KillPoint.MID_HANDLER,
    KillPoint.BEFORE_HANDLER_COMMIT,
    KillPoint.AFTER_HANDLER_COMMIT,
]


@pytest.mark.parametrize("victim", ["supervisor", "hosts", "cluster"])
@pytest.mark.parametrize("point", POINTS)
def test_it_takes_effect_once_whoever_dies(point: KillPoint, victim: str) -> None:
    left, telling = 3, False

    def moment(stage: Stage, process: str, at: KillPoint, _detail: str) -> bool:
        nonlocal left
        if not left or not telling or at is not point:
            return False
        left -= 1
        if victim == "cluster":
            stage.simulation.cluster.power_off()
            stage.simulation.loop.call_later(3, stage.simulation.cluster.power_on)
            return True
        if victim == "supervisor":
            return stage.simulation.kill("supervisor") and process == "supervisor"
        for host in list(stage.view.hosts):
            stage.simulation.kill(host)
        return process != "supervisor"

    async def story(stage: Stage) -> None:
        nonlocal telling
        await stage.call(Speaker, "heard")
        telling = True
        assert (await stage.client.run(Speaker, 6, run_id="s")).status == "completed"
        telling = False
        await asyncio.sleep(60)
        assert sorted(await stage.call(Speaker, "heard", name="s")) == [str(number) for number in range(6)]

    play(story, kill_when=moment)


@pytest.mark.parametrize("victim", ["supervisor", "host"])
@pytest.mark.parametrize("by", ["transaction", "run"])
def test_a_tell_that_is_repeated_to_a_later_life_is_posted_once(by: str, victim: str) -> None:
    """Whoever tells is cut off before it hears that the mail was posted, and the mail is handled meanwhile."""
    is_cut_off = False

    def moment(stage: Stage, process: str, at: KillPoint, _detail: str) -> bool:
        nonlocal is_cut_off
        is_posted = process == "supervisor" and at is KillPoint.AFTER_COMMIT and stage.deliveries()["enqueued"]
        if is_posted and not is_cut_off:
            is_cut_off = True
            stage.simulation.partition(stage.host_of(address(Speaker, "s")), 15_000)
        return False

    async def story(stage: Stage) -> None:
        if by == "run":
            await stage.client.start(Speaker, 1, run_id="s")
        else:
            saying = asyncio.create_task(stage.call(Speaker, "say", ["0"], name="s"))
        await stage.until(lambda: stage.deliveries()["delivered"] == 1)
        stage.simulation.kill("supervisor" if victim == "supervisor" else stage.host_of(address(Speaker, "s")))
        await asyncio.sleep(60)
        assert stage.deliveries()["enqueued"] == 1
        assert await stage.call(Speaker, "heard", name="s") == ["0"]
        if by == "run":
            await stage.ended("s", "completed")
        else:
            await asyncio.wait([saying])
            assert saying.exception() is None or victim == "host"

    play(story, kill_when=moment)


async def test_an_agent_that_is_no_relative_is_told_and_called_too(stage: Stage) -> None:
    await stage.call(Neighbour, "say", ["a", "b"])
    await stage.call(Neighbour, "say_now", "c")
    with pytest.raises(Exception, match="never mind"):
        await stage.call(Neighbour, "say", ["d"], fail=True)
    await asyncio.sleep(5)
    assert await stage.call(Neighbour, "heard") == ["a", "b", "c"]
    listener: Any = stage.client.agent(Listener, "x")
    assert await listener.words() == ["a", "b", "c"], "it is the agent that clients know by this name"
    for name in ("", "\0"):
        with pytest.raises(BadRequest, match="name"):
            await stage.call(Neighbour, "say_now", "a", name)


@pytest.mark.parametrize("place", range(2, 48, 6))
def test_a_run_that_is_entered_again_tells_an_agent_that_is_no_relative_once(place: int) -> None:
    visits = itertools.count()

    async def story(stage: Stage) -> None:
        await stage.client.run(Neighbour, 3, run_id="r")
        await asyncio.sleep(60)
        assert sorted(await stage.call(Neighbour, "heard")) == ["0", "1", "2"]

    play(story, kill_when=lambda *_: next(visits) == place)
