"""Many things that are said at once go a frame at a time, and what others report meanwhile goes between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from perdure.actors.life.life import Life
from perdure.actors.link.link import FRAME_MAX
from perdure.actors.link.messages import HostHello, HostVitals, Message, Patches, Wait
from perdure.actors.link.peer import Peer
from perdure.actors.link.wire import PeerFrame, SupervisorFrame, decode_all, pieces_of
from perdure.actors.ray_world.system import system_world
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.actors.tasks import Tasks
from perdure.ledger import Handled, pack, unpack
from perdure.policies import Limits

COUNT = 3 * FRAME_MAX
NOW = Wait(["now"])
MANY: list[Message] = [NOW, *(Wait([f"r{number}"]) for number in range(1, COUNT))]
REPORT = HostVitals(1, False, 0, 0)


class Speaker:
    """A process that says many things, and its supervisor. The supervisor answers each frame after a millisecond, and `frames` are what it
    was told. `between` is done when `NOW` comes, with the first frame of many."""

    def __init__(self, between: Callable[[Peer], None]) -> None:
        self.tasks, self.frames = Tasks("a host"), list[list[Message]]()
        self.peer = Peer(system_world(), self.tasks, self, "h1", Limits(), self.hello, self.receive)
        self._between = between

    def hello(self, _again: bool) -> Message:
        return HostHello(1, "here", 1, [], [], [])

    def receive(self, _message: Message) -> None:
        """It is told nothing."""

    async def exchange(self, frame: bytes) -> bytes:
        said = PeerFrame(*unpack(frame))
        messages = list(decode_all(said.messages))
        if NOW in messages:
            self._between(self.peer)
        self.frames.append(messages)
        if not messages:
            return await asyncio.get_running_loop().create_future()
        await asyncio.sleep(0.001)
        heard = said.first + len(messages) - 1
        return pack(SupervisorFrame(1, said.session, heard, 1, [], missed=False, seq=0))

    def heard(self) -> list[Message]:
        """What was told after the hello."""
        return [each for frame in self.frames for each in frame if not isinstance(each, HostHello)]

    async def _live(self, say: Callable[[Peer], object]) -> None:
        async with self.tasks:
            self.tasks.start(self.peer.serve())
            await asyncio.sleep(1)
            said = say(self.peer)
            assert not self.peer.is_clear or asyncio.iscoroutine(said)
            if asyncio.iscoroutine(said):
                await said
            await asyncio.sleep(1)
            assert self.peer.is_clear
            assert not self.peer.pending

    def run(self, say: Callable[[Peer], object]) -> list[Message]:
        """Say it, and return what the supervisor was told."""
        loop = VirtualLoop()
        loop.run_until_complete(self._live(say))
        loop.close()
        return self.heard()


def test_what_others_report_goes_before_what_is_left_of_the_many_things_that_one_agent_says() -> None:
    heard = Speaker(lambda peer: peer.report(REPORT, "other")).run(lambda peer: peer.push_many(pieces_of(MANY), "asks"))
    assert FRAME_MAX <= heard.index(REPORT) <= 2 * FRAME_MAX, "two frames may be under way"
    heard.remove(REPORT)
    assert heard == MANY, "in order"


def test_an_agents_own_report_goes_after_everything_that_it_said() -> None:
    heard = Speaker(lambda peer: peer.report(REPORT, "asks")).run(lambda peer: peer.push_many(pieces_of(MANY), "asks"))
    assert heard == [*MANY, REPORT]


def test_what_else_is_said_goes_after_everything_that_was_said_before() -> None:
    for say in (Peer.push, Peer.push_awaited, Peer.push_later):
        heard = Speaker(lambda peer, say=say: say(peer, REPORT)).run(
            lambda peer: peer.push_many(pieces_of(MANY), "asks")
        )  # type: ignore[misc]
        assert heard == [*MANY, REPORT], say


def test_many_things_are_durable_when_the_last_of_them_is() -> None:
    speaker = Speaker(lambda peer: peer.report(REPORT, "other"))

    async def say(peer: Peer) -> None:
        await peer.durable_many(pieces_of(MANY), "asks")
        assert speaker.heard()[-1] == MANY[-1]

    heard = speaker.run(say)
    assert heard.index(REPORT) < COUNT
    heard.remove(REPORT)
    assert heard == MANY


def test_when_all_is_said_that_an_agent_said_its_reports_go_before_what_others_say() -> None:
    async def say(peer: Peer) -> None:
        await peer.durable_many(pieces_of(MANY[1:]), "asks")
        peer.push_many(pieces_of(MANY), "other")

    heard = Speaker(lambda peer: peer.report(REPORT, "asks")).run(say)
    assert heard.index(REPORT) <= COUNT + 2 * FRAME_MAX


def test_what_became_of_mail_waits_for_no_runs_that_its_agent_asks_for() -> None:
    handled = Handled("asks", 1, ["m"], [])

    def say(peer: Peer) -> None:
        life = SimpleNamespace(services=SimpleNamespace(peer=peer), agent_id="asks", _with_sequence=lambda said: said)
        Life.push_of_mail(cast("Life", life), handled)

    heard = Speaker(say).run(lambda peer: peer.push_many(pieces_of(MANY), "asks"))
    assert heard.index(handled) <= 2 * FRAME_MAX


@pytest.mark.parametrize(
    "say", [lambda peer: peer.push(REPORT), lambda peer: peer.say_first()], ids=["push", "say_first"]
)
def test_what_a_thread_commits_while_an_earlier_commit_is_being_said_is_said_after_it(
    say: Callable[[Peer], None],
) -> None:
    commits: list[Message] = [Patches([b"1"]), Patches([b"2"]), Patches([b"3"])]

    def speak(peer: Peer) -> None:
        peer.said_first = lambda: [commits.pop(0)] if commits else []  # each time there is one more
        say(peer)
        peer.push(NOW)
        peer.push(NOW)

    heard = Speaker(lambda _peer: None).run(speak)
    assert [each for each in heard if isinstance(each, Patches)] == [Patches([b"1"]), Patches([b"2"]), Patches([b"3"])]
