"""A host and what it is told: each life is begun once, each call is made at most once, and nothing that is late ends what is newer.

The supervisor here decides nothing: a story says what it says, and reads what it hears.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from perdure.actors import Agent, Fleet, Host, PoolSpec, RunContext, Transport, World, exposed
from perdure.actors.link.messages import (
    CallAnswered,
    CallAstray,
    CallCut,
    Deliver,
    MailSettled,
    MakeCall,
    Message,
    Start,
    Stop,
    Wake,
)
from perdure.actors.sim_world.simulation import Simulation, Weather
from perdure.actors.supervisor.sessions import Sessions
from perdure.ledger import Awake, Ended, Handled, Released, Slot, Up, pack
from perdure.ledger.storage.agent_storages import AgentStorages, MemoryDisk
from perdure.scenarios.testing.laboratory import QUICK
from tests.actors.cast import Stubborn
from tests.kit import address, played

M = TypeVar("M")


class Counter(Agent):
    """Counts how often it was entered."""

    stands_alone = True

    @exposed
    async def count(self, ms: float) -> int:
        self.state["count"] = self.state.get("count", 0) + 1
        await asyncio.sleep(ms / 1000)
        return int(self.state["count"])

    async def run(self, input: float, run: RunContext) -> int:
        return await self.count(input)


class Sulky(Agent):
    """Raises when it is told to stop."""

    async def run(self, input: float, run: RunContext) -> None:
        try:
            await asyncio.sleep(input / 1000)
        except asyncio.CancelledError:
            raise RuntimeError("not now") from None


COUNTER, CHILD, SULKY = address(Counter, "c"), address(Stubborn, "r"), address(Sulky, "r")


class Script:
    """A supervisor with one host, `h`."""

    def __init__(self, fleet: Fleet) -> None:
        self.sessions = Sessions()
        self.sessions.epoch = 1
        self.heard: list[Message] = []
        self._fleet = fleet

    async def serve(self) -> None:
        await self._fleet.spawn("h", PoolSpec())
        while True:
            await self.sessions.arrived.wait()
            self.sessions.arrived.clear()
            for session, number, message in self.sessions.take(math.inf):
                self.heard.append(message)
                session.commit(number)
                session.committed()
            self.sessions.flush()

    async def exchange(self, frame: bytes) -> bytes:
        return await self.sessions.exchange(frame)

    async def say(self, *messages: Any) -> None:
        for message in messages:
            self.sessions.by_peer["h"].say(message)
        self.sessions.flush()
        await asyncio.sleep(0.5)

    def all_of(self, kind: type[M]) -> list[M]:
        return [message for message in self.heard if isinstance(message, kind)]


def play(story: Callable[[Script], Awaitable[None]]) -> None:
    scripts: list[Script] = []
    disk = MemoryDisk()

    def supervisor(_world: World, fleet: Fleet) -> Script:
        scripts.append(Script(fleet))
        return scripts[0]

    def host(world: World, transport: Transport, host_id: str) -> Host:
        return Host(world, transport, AgentStorages(disk), host_id, QUICK)

    async def main(_world: World, _transport: Transport) -> None:
        await asyncio.sleep(5)
        await story(scripts[0])

    with Simulation(1, Weather.calm(), supervisor, host) as simulation:
        simulation.run(main)
        simulation.raise_errors()
    disk.close()


def call(ref: str, ms: float = 0, *, life: int = 2, repeatable: bool = False, lost: bool = False) -> MakeCall:
    return MakeCall(COUNTER, life, ref, "count", pack([[ms], {}]), repeatable, lost)


def start(life: int, attempt: int, agent: str = CHILD, ms: float = 2_000) -> Start:
    return Start(agent, life, agent.partition("@")[0], attempt, pack(ms), False, {})


@pytest.mark.parametrize("late", [Wake(COUNTER, 1), start(1, 1, COUNTER), Stop(COUNTER, 1)])
@played(play)
async def test_a_command_for_an_older_life_does_not_end_a_newer_one(script: Script, /, late: Message) -> None:
    await script.say(Wake(COUNTER, 2))
    await script.say(late)
    await script.say(call("a"))
    assert script.all_of(Awake) == [Awake(COUNTER, 2)]
    assert script.all_of(CallAnswered) == [CallAnswered("a", True, pack(1))]
    assert [said.incarnation for said in script.all_of(Released)] == ([1] if isinstance(late, Stop) else [])


@played(play)
async def test_only_the_life_that_has_the_place_reports_its_result(script: Script, /) -> None:
    await script.say(start(1, 1))
    await script.say(start(2, 2))
    await asyncio.sleep(10)
    assert [said.incarnation for said in script.all_of(Ended)] == [2]


@pytest.mark.parametrize(("agent", "outputs"), [(CHILD, [pack("done")]), (SULKY, [])])
@played(play)
async def test_of_a_run_that_was_told_to_stop_only_a_true_result_still_counts(
    script: Script, /, agent: str, outputs: list[bytes]
) -> None:
    await script.say(start(1, 1, agent))
    await script.say(Stop(agent, 1))
    await asyncio.sleep(5)
    assert [said.output for said in script.all_of(Ended)] == outputs
    assert len(script.all_of(Released)) == 1


@played(play)
async def test_a_life_that_is_over_is_not_begun_again_by_a_command_that_comes_late(script: Script, /) -> None:
    await script.say(Stop(COUNTER, 3), Wake(COUNTER, 3))
    assert script.all_of(Released) == [Released(COUNTER, 3)]
    assert script.all_of(Awake) == []
    await script.say(Wake(COUNTER, 4), Stop(COUNTER, 4), Wake(COUNTER, 4))
    assert [said.incarnation for said in script.all_of(Released)] == [3, 4]


@played(play)
async def test_an_attempt_that_is_begun_twice_is_entered_once(script: Script, /) -> None:
    await script.say(start(1, 1, COUNTER), start(1, 1, COUNTER))
    await script.say(start(1, 1, COUNTER))
    await asyncio.sleep(5)
    assert [said.output for said in script.all_of(Ended)] == [pack(1)]
    assert script.all_of(Up) == [Up("c", 1)]


@played(play)
async def test_a_call_that_comes_again_is_made_once_and_answered_the_same(script: Script, /) -> None:
    await script.say(Wake(COUNTER, 2))
    await script.say(call("a", 1_000), call("a", 1_000))
    assert script.all_of(CallAnswered) == []
    await asyncio.sleep(2)
    await script.say(call("a", lost=True))
    assert script.all_of(CallAnswered) == [CallAnswered("a", True, pack(1))] * 2
    await script.say(call("b"))
    assert script.all_of(CallAnswered)[-1] == CallAnswered("b", True, pack(2)), "it was entered twice in all"
    assert script.all_of(CallCut) == []


@pytest.mark.parametrize("repeatable", [False, True])
@played(play)
async def test_a_call_that_may_have_been_made_elsewhere_is_made_only_if_it_may_be_repeated(
    script: Script, /, repeatable: bool
) -> None:
    await script.say(Wake(COUNTER, 2))
    await script.say(call("a", lost=True, repeatable=repeatable), call("b"))
    assert script.all_of(CallCut) == ([] if repeatable else [CallCut("a")])
    assert script.all_of(CallAnswered)[-1] == CallAnswered("b", True, pack(2 if repeatable else 1))


@played(play)
async def test_a_call_whose_life_is_told_to_stop_is_cut_off_and_not_made_when_it_comes_again(script: Script, /) -> None:
    await script.say(Wake(COUNTER, 2))
    await script.say(call("a", 60_000))
    await script.say(Stop(COUNTER, 2))
    assert script.all_of(CallCut) == [CallCut("a")]
    await script.say(Wake(COUNTER, 3), call("a", life=3))
    assert script.all_of(CallCut) == [CallCut("a")] * 2
    await script.say(call("b", life=3))
    assert script.all_of(CallAnswered) == [CallAnswered("b", True, pack(2))]


@pytest.mark.parametrize("life", [1, 3])
@played(play)
async def test_a_call_for_a_life_that_is_not_here_is_not_made(script: Script, /, life: int) -> None:
    await script.say(Wake(COUNTER, 2))
    await script.say(call("a", life=life))
    assert script.all_of(CallAstray) == [CallAstray("a")]
    assert script.all_of(CallAnswered) == []


def mail(mail_id: str) -> tuple[Any, ...]:
    return mail_id, Slot.TELL, "count", {}, {"sender": "", "body": pack([[0], {}]), "home": None}


@played(play)
async def test_mail_that_comes_again_is_acknowledged_again_and_handled_once_also_by_the_next_life(
    script: Script, /
) -> None:
    await script.say(Wake(COUNTER, 2), Deliver(COUNTER, 2, [mail("m")]))
    await script.say(Deliver(COUNTER, 2, [mail("m")]), Deliver(COUNTER, 1, [mail("late")]))
    await script.say(Stop(COUNTER, 2), Wake(COUNTER, 3), Deliver(COUNTER, 3, [mail("m")]))
    heard = [(said.incarnation, said.mail_ids, said.failures) for said in script.all_of(Handled)]
    assert heard == [(life, ["m"], []) for life in (2, 2, 3)]
    await script.say(call("a", life=3))
    assert script.all_of(CallAnswered) == [CallAnswered("a", True, pack(2))], "once by mail, once by the call"


@played(play)
async def test_one_poisonous_mail_costs_the_others_of_its_group_nothing(script: Script, /) -> None:
    bad = ("bad", Slot.TELL, "vanished", *mail("bad")[3:])
    await script.say(Wake(COUNTER, 2), Deliver(COUNTER, 2, [mail("m"), bad, mail("n")]))
    (said,) = script.all_of(Handled)
    assert (said.mail_ids, [failure[0] for failure in said.failures]) == (["m", "n"], ["bad"])
    await script.say(call("a"))
    assert script.all_of(CallAnswered) == [CallAnswered("a", True, pack(3))], "what rolled back counts once"


@played(play)
async def test_what_the_ledger_will_not_send_again_is_forgotten(script: Script, /) -> None:
    await script.say(Wake(COUNTER, 2), Deliver(COUNTER, 2, [mail("m"), mail("n")]))
    await script.say(MailSettled(COUNTER, 2, ["m"]), Deliver(COUNTER, 2, [mail("m"), mail("n")]))
    await script.say(call("a"))
    assert script.all_of(CallAnswered) == [CallAnswered("a", True, pack(4))], "what was settled is new again"
