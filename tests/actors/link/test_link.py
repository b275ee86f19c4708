"""Over a road that loses, doubles and reorders frames, every message is delivered once and in order."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.actors.link.link import FRAME_BYTES_MAX, FRAME_MAX, Link
from perdure.actors.link.messages import (
    CallAnswered,
    CallCut,
    ClientHello,
    Exists,
    HostHello,
    HostVitals,
    Message,
    Ping,
    Reply,
    Wait,
)
from perdure.actors.link.peer import ANSWER_S, MOMENT_S, Peer, said_again
from perdure.actors.link.wire import (
    PROTOCOL,
    PeerFrame,
    SupervisorFrame,
    decode,
    decode_all,
    encode,
    messages_in,
    pieces_of,
)
from perdure.actors.ray_world.system import system_world
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.actors.supervisor.sessions import Arrived, PeerSession, Sessions
from perdure.actors.tasks import Tasks
from perdure.ledger import Ended, Request, VersionMismatch, pack, unpack
from perdure.policies import Limits

Frame = tuple[int, list[Any], int]


class Pair:
    """Two sides of one session, and the frames under way in both directions."""

    def __init__(self) -> None:
        self.sides = (Link(), Link())
        self.under_way: tuple[list[Frame], list[Frame]] = ([], [])
        self.heard: tuple[list[Any], list[Any]] = ([], [])
        self.let_go = [0, 0]

    def push(self, side: int, message: Any) -> None:
        self.sides[side].push(message)

    def send(self, side: int) -> None:
        link = self.sides[side]
        first, messages = link.take()
        self.under_way[1 - side].append((first, messages, link.received))

    def arrive(self, side: int, index: int, *, keep: bool) -> None:
        """One of the frames that are under way to this side arrives; with `keep` it will arrive again."""
        frames = self.under_way[side]
        if not frames:
            return
        frame = frames[index % len(frames)]
        if not keep:
            frames.remove(frame)
        first, messages, ack = frame
        link = self.sides[side]
        self.let_go[side] += link.acknowledge(ack)
        fresh, _gap = link.receive(first, messages)
        self.heard[side].extend(fresh)

    def lose(self, side: int, index: int) -> None:
        if self.under_way[side]:
            self.under_way[side].pop(index % len(self.under_way[side]))

    def heal(self) -> None:
        """A few quiet rounds in which everybody sends again what is not acknowledged."""
        for _ in range(3):
            for side in (0, 1):
                self.sides[side].rewind()
                self.send(side)
                self.arrive(1 - side, len(self.under_way[1 - side]) - 1, keep=False)


steps: Any = st.lists(
    st.tuples(
        st.sampled_from(["push", "send", "arrive", "double", "lose", "rewind"]), st.integers(0, 1), st.integers(0, 9)
    ),
    max_size=80,
)


@given(steps)
def test_every_message_is_delivered_once_and_in_order_in_both_directions(road: list[tuple[str, int, int]]) -> None:
    pair = Pair()
    pushed: tuple[list[int], list[int]] = ([], [])
    for number, (step, side, index) in enumerate(road):
        if step == "push":
            pair.push(side, number)
            pushed[side].append(number)
        elif step == "send":
            pair.send(side)
        elif step in ("arrive", "double"):
            pair.arrive(side, index, keep=step == "double")
        elif step == "lose":
            pair.lose(side, index)
        else:
            pair.sides[side].rewind()
        for one in (0, 1):
            assert pair.heard[one] == pushed[1 - one][: len(pair.heard[one])], "in order, without holes, once"
    pair.heal()
    assert pair.heard == (pushed[1], pushed[0])
    assert pair.sides[0].is_clear
    assert pair.sides[1].is_clear


@given(steps, st.integers(0, 79))
def test_in_a_new_session_everything_unacknowledged_comes_again_after_the_hello(road: list[Any], until: int) -> None:
    pair = Pair()
    pushed = 0
    for number, (step, side, index) in enumerate(road[:until]):
        if step == "push":
            pair.push(0, number)
            pushed += 1
        elif step == "send":
            pair.send(side)
        else:
            pair.arrive(side, index, keep=False)
    link = pair.sides[0]
    link.restart(link.session + 1, "hello")
    first, messages = link.take()
    assert (first, messages[0]) == (1, "hello")
    assert len(messages) - 1 == pushed - pair.let_go[0]


def test_a_hello_that_nobody_heard_is_not_said_twice() -> None:
    link = Link()
    link.restart(1, "hello 1")
    link.push("a")
    assert link.restart(2, "hello 2")
    assert link.take() == (1, ["hello 2", "a"])


def test_an_acknowledged_hello_is_simply_followed_by_the_next_sessions() -> None:
    link = Link()
    link.restart(1, "hello 1")
    link.take()
    link.push("a")
    assert link.acknowledge(1) == 1
    assert not link.restart(2, "hello 2")
    assert link.take() == (1, ["hello 2", "a"])


def test_a_frame_carries_so_many_messages_and_the_next_one_the_rest() -> None:
    link = Link()
    for number in range(1, FRAME_MAX + 4):
        link.push(number)
    assert link.take() == (1, list(range(1, FRAME_MAX + 1)))
    assert link.unsent
    assert link.acknowledge(2) == 2
    assert link.take() == (FRAME_MAX + 1, [FRAME_MAX + 1, FRAME_MAX + 2, FRAME_MAX + 3])
    assert not link.unsent
    link.rewind()
    assert link.take(2) == (3, [3, 4])


def test_what_goes_together_is_let_go_together_and_said_again_without_what_was_heard() -> None:
    link = Link()
    link.restart(1, "hello")
    assert (link.push("four", 4), link.push("one")) == (5, 6)
    assert link.take(2) == (1, ["hello", "four"])
    assert (link.unsent, link.acknowledge(3), link.unsent) == (1, 1, 1)
    link.rewind()
    assert link.take() == (2, ["four", "one"])
    assert not link.is_clear
    link.restart(2, "hello", lambda said, had: (f"{said} but {had}", {"four": 4, "one": 1}[said] - had))
    assert link.take() == (1, ["hello", "four but 2", "one but 0"])
    assert (link.next_number, link.acknowledge(4), link.is_clear) == (5, 3, True)


def test_a_peer_says_the_rest_of_a_batch_again_to_another_life_of_the_supervisor() -> None:
    asked = [Request(f"r{number}", "m:T", "p@m:P", "", "d", b"", {}, 1, wait=True) for number in range(8)]
    ((messages, _),) = pieces = pieces_of(asked)
    renewed, count = said_again(pieces[0], 3)
    assert (messages_in([renewed[1]]), count) == (list(messages[3:]), 5)
    assert said_again(pieces[0], 0) == (pieces[0], 8)


def test_what_the_supervisor_cannot_say_harms_nobody_else() -> None:
    session = PeerSession("p", 1)
    for said in (Reply("a", ok=True, value=1), Reply("b", ok=True, value=object()), Exists("r", "\udce9"), Ping()):
        session.say(said)
    first, second, third = messages_in(session.link.take()[1])
    assert (first, third) == (Reply("a", ok=True, value=1), Ping())
    assert (second[:2], second[2][0]) == (("b", False), "BadRequest")


def test_a_frame_that_came_too_early_is_dropped_whole_and_its_gap_is_told() -> None:
    link = Link()
    assert link.receive(3, ["c"]) == ([], True)
    assert link.receive(1, ["a", "b"]) == (["a", "b"], False)
    assert link.receive(2, ["b", "c"]) == (["c"], False)
    assert link.receive(1, ["a"]) == ([], False)
    assert link.received == 3


def test_an_acknowledgement_beyond_what_was_sent_or_of_the_past_lets_nothing_else_go() -> None:
    link = Link()
    link.push("a")
    link.take()
    assert link.acknowledge(99) == 1
    assert link.acknowledge(-5) == 0
    assert link.is_clear
    assert link.push("b") == 2
    assert link.take() == (2, ["b"])


@pytest.mark.parametrize(("most", "taken"), [(2, 2), (0, 1), (math.inf, 3)])
async def test_a_turn_takes_the_first_messages_and_what_is_left_is_announced_again(most: float, taken: int) -> None:
    sessions = Sessions()
    session = PeerSession("p", 1)
    sessions.inbox = {"p": deque(Arrived(session, number, Ping()) for number in (1, 2, 3))}
    assert [number for _, number, _ in sessions.take(most)] == [1, 2, 3][:taken]
    assert sum(map(len, sessions.inbox.values())) == 3 - taken
    assert sessions.arrived.is_set() == (taken < 3)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=5), st.integers(1, 20))
def test_who_has_one_thing_to_say_does_not_wait_behind_one_who_has_thousands(waiting: list[int], most: int) -> None:
    async def story() -> None:
        sessions = Sessions()
        for peer, count in enumerate(waiting):
            session = PeerSession(f"p{peer}", 1)
            sessions.inbox[session.peer_id] = deque(Arrived(session, number, Ping()) for number in range(count))
        heard: list[tuple[str, int]] = []
        while sessions.inbox:
            taken = [(session.peer_id, number) for session, number, _ in sessions.take(most)]
            assert len(taken) == min(most, sum(waiting) - len(heard))
            heard += taken
        for peer, count in enumerate(waiting):
            assert [number for peer_id, number in heard if peer_id == f"p{peer}"] == list(range(count))
            turn = heard.index((f"p{peer}", 0)) // most
            assert turn <= len(waiting) // most  # each has its first message heard when the others had one turn at most

    asyncio.run(story())


HELLO, SECOND = encode(ClientHello([])), encode(Wait(["r"]))


@pytest.mark.parametrize(
    ("epoch", "first", "said"), [(1, 1, [HELLO]), (0, 1, [HELLO]), (2, 2, [SECOND]), (2, 1, [])], ids=str
)
async def test_a_late_hello_to_an_earlier_life_is_refused_and_so_is_what_comes_without_one(
    epoch: int, first: int, said: list[Any]
) -> None:
    sessions = Sessions()
    sessions.epoch = 2
    for each, confirmed, heard in (((epoch, first, said), 0, 0), ((2, 1, [HELLO]), 7, 1)):
        frame = PeerFrame("p", 7, each[0], 0, each[1], each[2], hold=False, rewind=False, protocol=PROTOCOL)
        asking = asyncio.create_task(sessions.exchange(pack(frame)))
        await asyncio.sleep(0)
        for session in sessions.by_peer.values():
            session.commit(1)
            session.committed()
        answer = SupervisorFrame(*unpack(await asking))
        assert (answer.epoch, answer.session, len(sessions.inbox)) == (2, confirmed, heard)


async def test_acknowledged_means_durable() -> None:
    sessions = Sessions()
    asking = []
    for first, said in ((1, HELLO), (2, SECOND), (3, SECOND)):  # each releases the one before
        frame = PeerFrame("p", 1, 0, 0, first, [said], hold=True, rewind=False, protocol=PROTOCOL)
        asking.append(asyncio.create_task(sessions.exchange(pack(frame))))
        for _ in range(3):
            await asyncio.sleep(0)
        if first == 2:
            sessions.by_peer["p"].commit(1)
    heard = [SupervisorFrame(*unpack(await each)) for each in asking[:2]]
    assert [answer.ack for answer in heard] == [0, 1]
    asking[2].cancel()


@pytest.mark.parametrize("is_held", [False, True], ids=["the next exchange comes later", "the next exchange is held"])
def test_an_exchange_may_be_answered_before_its_commit_and_the_next_one_tells_of_it_at_once(*, is_held: bool) -> None:
    async def exchanged(sessions: Sessions, first: int, said: list[Any], *, hold: bool) -> asyncio.Task[bytes]:
        frame = PeerFrame("p", 1, 0, 0, first, said, hold=hold, rewind=False, protocol=PROTOCOL)
        exchange = asyncio.create_task(sessions.exchange(pack(frame)))
        await asyncio.sleep(0)
        return exchange

    async def story() -> None:
        sessions = Sessions()
        greeting = await exchanged(sessions, 1, [HELLO], hold=False)
        session = sessions.by_peer["p"]
        session.answer_early()
        assert SupervisorFrame(*unpack(await greeting)).ack == 0
        held = await exchanged(sessions, 2, [], hold=True) if is_held else None
        session.commit(1)
        session.committed()
        told = held or await exchanged(sessions, 2, [], hold=True)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert told.done()
        assert SupervisorFrame(*unpack(told.result())).ack == 1
        again = await exchanged(sessions, 2, [], hold=True)
        assert not again.done(), "it has been told"
        again.cancel()

    asyncio.run(story())


def test_a_peer_of_another_version_is_refused_with_both_versions_unless_its_messages_are_the_same() -> None:
    version, digest = PROTOCOL.rsplit(" ", 1)

    async def story() -> None:
        sessions = Sessions()
        frame = PeerFrame("p", 1, 0, 0, 1, [HELLO], hold=True, rewind=False, protocol="9.9 (0badf00d)")
        with pytest.raises(VersionMismatch) as refused:
            await sessions.exchange(pack(frame))
        assert (refused.value.supervisor, refused.value.peer) == (PROTOCOL, "9.9 (0badf00d)")
        assert f"what serves it is Perdure {PROTOCOL}, and this process is Perdure 9.9 (0badf00d)" in str(refused.value)
        assert "`perdure stop`" in str(refused.value)
        assert not sessions.by_peer
        asking = asyncio.create_task(sessions.exchange(pack(frame._replace(protocol=f"{version}.1 {digest}"))))
        await asyncio.sleep(0)
        assert list(sessions.inbox) == ["p"]
        asking.cancel()

    asyncio.run(story())
    assert pickle.loads(pickle.dumps(VersionMismatch("1", "2"))).args == ("1", "2")


async def test_a_frame_of_an_earlier_session_is_not_heard_any_more() -> None:
    sessions = Sessions()
    for session, heard in ((2, 1), (1, 1), (3, 2)):
        frame = PeerFrame("p", session, 0, 0, 1, [HELLO], hold=True, rewind=False, protocol=PROTOCOL)
        asking = asyncio.create_task(sessions.exchange(pack(frame)))
        await asyncio.sleep(0)
        assert sum(map(len, sessions.inbox.values())) == heard
        assert asking.done() == (session == 1)


class Echoing:
    """A host that answers each ping with its vitals, and the supervisor to which it talks. `said` has what each of its frames carried."""

    def __init__(self, pings: int) -> None:
        self.tasks, self.said, self.pings = Tasks("a host"), list[list[str]](), pings
        self.peer = Peer(system_world(), self.tasks, self, "h1", Limits(), self.hello, self.receive)

    def hello(self, _again: bool) -> Message:
        return HostHello(1, "here", 1, [], [], [])

    def receive(self, _message: Message) -> None:
        answer = HostVitals(1, False, 0, 0)
        asyncio.get_running_loop().call_later(ANSWER_S / 2, self.peer.push, answer)

    async def exchange(self, frame: bytes) -> bytes:
        said = PeerFrame(*unpack(frame))
        self.said.append([type(decode(each)).__name__ for each in said.messages])
        if said.ack == self.pings:
            self.tasks.finish("enough was said")
            return await asyncio.get_running_loop().create_future()
        heard = said.first + len(said.messages) - 1
        return pack(SupervisorFrame(1, said.session, heard, said.ack + 1, [encode(Ping())], missed=False, seq=0))

    async def live(self) -> None:
        async with self.tasks:
            self.tasks.start(self.peer.serve())
            await self.tasks.over()


def test_what_a_peer_says_because_of_what_it_heard_goes_with_its_next_exchange() -> None:
    host = Echoing(pings=5)
    loop = VirtualLoop()
    loop.run_until_complete(host.live())
    loop.close()
    assert host.said == [["HostHello"], *[["HostVitals"]] * 5]


class Crowded:
    """A host that has much to do, and its supervisor: it holds what says nothing. `heard_at_s` says when each message came."""

    def __init__(self) -> None:
        self.tasks, self.heard_at_s = Tasks("a host"), dict[str, float]()
        self.peer = Peer(system_world(), self.tasks, self, "h1", Limits(), self.hello, self.receive)
        self.peer.is_busy = lambda: True

    def hello(self, _again: bool) -> Message:
        return HostHello(1, "here", 1, [], [], [])

    def receive(self, _message: Message) -> None:
        """It is told nothing."""

    async def exchange(self, frame: bytes) -> bytes:
        said = PeerFrame(*unpack(frame))
        for each in said.messages:
            self.heard_at_s.setdefault(type(decode(each)).__name__, asyncio.get_running_loop().time())
        if not said.messages:
            return await asyncio.get_running_loop().create_future()
        heard = said.first + len(said.messages) - 1
        return pack(SupervisorFrame(1, said.session, heard, 1, [], missed=False, seq=0))

    async def live(self) -> None:
        async with self.tasks:
            self.tasks.start(self.peer.serve())
            await asyncio.sleep(1)  # the first exchange is held open
            for kind in (CallAnswered, CallCut):
                self.peer.push(HostVitals(1, False, 0, 0))
                await asyncio.sleep(0.001)  # more of this kind may follow
                self.peer.push_awaited(kind("c", *[True, None][: len(kind._fields) - 1]))
                await asyncio.sleep(0.001)
                assert kind.__name__ in self.heard_at_s
            self.peer.push(Ping())
            await asyncio.sleep(0.001)
            assert "Ping" not in self.heard_at_s
            await asyncio.sleep(MOMENT_S)
            assert "Ping" in self.heard_at_s


def test_on_a_crowded_host_an_answer_is_said_at_once_and_what_nobody_waits_for_goes_together() -> None:
    host, loop = Crowded(), VirtualLoop()
    loop.run_until_complete(host.live())
    loop.close()
    assert list(host.heard_at_s) == ["HostHello", "HostVitals", "CallAnswered", "CallCut", "Ping"]


def test_heavy_messages_go_in_several_frames() -> None:
    link: Link[bytes] = Link()
    for _ in range(5):
        link.push(bytes(FRAME_BYTES_MAX // 2))
    taken = [len(link.take(weigh=len)[1]) for _ in range(3)]
    assert taken == [3, 2, 0]
    link.rewind()
    assert len(link.take()[1]) == 5


class Laden(Echoing):
    """Says at once how many runs ended, each with a large output."""

    async def exchange(self, frame: bytes) -> bytes:
        said = PeerFrame(*unpack(frame))
        self.said.append([type(each).__name__ for each in decode_all(said.messages)])
        if sum(map(len, self.said)) == self.pings:
            self.tasks.finish("enough was said")
        heard = said.first + len(self.said[-1]) - 1
        return pack(SupervisorFrame(1, said.session, heard, 1, [], missed=False, seq=0))

    async def live(self) -> None:
        for number in range(self.pings - 1):
            self.peer.push(Ended(f"r{number}", 1, bytes(FRAME_BYTES_MAX // 2), "", None, True, "", 0))
        await super().live()


def test_large_outputs_go_to_the_supervisor_in_several_frames() -> None:
    host, loop = Laden(pings=6), VirtualLoop()
    loop.run_until_complete(host.live())
    loop.close()
    assert host.said == [["HostHello"], ["Ended"] * 3, ["Ended"] * 2]
