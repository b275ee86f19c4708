"""The supervisor's side of its conversations: one `Port` per peer, and who waits for which run.

Nothing here is durable and nothing here decides. After a supervisor's death every peer says hello again, repeats what was not
acknowledged, and names the runs that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from perdure.actors.link.link import Link
from perdure.actors.link.messages import Fields, FromSupervisor, Message, Plain, RunEnded
from perdure.actors.link.wire import PeerFrame, SupervisorFrame, decode, encode
from perdure.ledger import pack, unpack

HOLD_S = 10.0


class Port:
    """One peer's conversation, seen from the supervisor. `durable` is the number up to which its messages are committed."""

    def __init__(self, peer_id: str, session: int) -> None:
        self.peer_id = peer_id
        self.link: Link[FromSupervisor] = Link()
        self.link.session = session
        self.durable = 0
        self.is_host = False
        self.seen_s = 0.0
        self._held: asyncio.Future[None] | None = None
        self._commit: asyncio.Future[None] | None = None

    def committed(self, number: int) -> None:
        """The peer's messages up to this number are durable now."""
        self.durable = max(self.durable, number)
        if self._commit is not None and not self._commit.done():
            self._commit.set_result(None)
        self._commit = None

    async def commit_of(self, number: int) -> None:
        """Wait until the peer's messages up to this number are durable."""
        while self.durable < min(number, self.link.received):
            if self._commit is None:
                self._commit = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._commit)

    def say(self, message: FromSupervisor) -> None:
        """Queue a message to the peer."""
        self.link.push(message)

    def release(self) -> None:
        """SupervisorFrame the exchange that is held open, if there is one."""
        if self._held is not None and not self._held.done():
            self._held.set_result(None)
        self._held = None

    async def hold(self) -> None:
        """Keep this exchange open until there is something to say, or a newer exchange takes its place."""
        self.release()
        held = self._held = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(HOLD_S, self.release)
        try:
            await held
        finally:
            timer.cancel()


class Arrived(NamedTuple):
    """A message that waits for the next turn."""

    port: Port
    number: int
    message: Message


class Switchboard:
    """All ports. `inbox` is what has come in and waits for the next turn."""

    def __init__(self) -> None:
        self.epoch = 0
        self.seq = 0
        self.ports: dict[str, Port] = {}
        self.inbox: list[Arrived] = []
        self.arrived = asyncio.Event()
        self.waiters: dict[str, dict[str, None]] = {}
        self.watchers: dict[str, dict[str, None]] = {}

    async def exchange(self, frame: bytes) -> bytes:
        """Take in a peer's frame and answer it, now or when there is something to say."""
        peer_id, session, epoch, ack, first, messages, hold, rewind = PeerFrame(*unpack(frame))
        port = self.ports.get(peer_id)
        if port is None or session > port.link.session:
            if (
                not messages or first != 1 or epoch != self.epoch
            ):  # a late hello to an earlier life tells of another time
                return pack(SupervisorFrame(self.epoch, 0, 0, 0, [], missed=False, seq=0))
            if port is not None:
                port.release()
            port = self.ports[peer_id] = Port(peer_id, session)
        if session < port.link.session:
            return pack(SupervisorFrame(self.epoch, port.link.session, 0, 0, [], missed=False, seq=0))
        port.seen_s = asyncio.get_running_loop().time()
        port.link.acknowledge(ack)
        if rewind:
            port.link.rewind()
        session = port.link.session
        if self._take_in(port, first, messages):
            return pack(
                SupervisorFrame(self.epoch, session, port.durable, port.link.next_number, [], missed=True, seq=self.seq)
            )
        if hold and not port.link.has_unsent:
            await port.hold()
        elif messages:
            await port.commit_of(first + len(messages) - 1)
        first_out, out = port.link.take()
        said = [encode(message) for message in out]
        return pack(
            SupervisorFrame(self.epoch, port.link.session, port.durable, first_out, said, missed=False, seq=self.seq)
        )

    def _take_in(self, port: Port, first: int, messages: Sequence[Sequence[Plain]]) -> bool:
        """Take new messages in; returns whether earlier ones are missing, so that these must come again after them."""
        number = port.link.received
        fresh, gap = port.link.receive(first, messages)
        for message in fresh:
            number += 1
            self.inbox.append(Arrived(port, number, decode(message)))
        if fresh:
            self.arrived.set()
        return gap

    def take(self, most: float) -> list[Arrived]:
        """The first messages that wait, at least one; what is left is announced again."""
        count = int(max(1, min(most, len(self.inbox))))
        taken, self.inbox = self.inbox[:count], self.inbox[count:]
        if self.inbox:
            self.arrived.set()
        return taken

    def flush(self) -> None:
        """SupervisorFrame every held exchange for which there is something to say."""
        for port in self.ports.values():
            if port.link.has_unsent:
                port.release()

    def wait(self, port: Port, run_id: str) -> None:
        """Tell this peer when the run has ended."""
        self.waiters.setdefault(run_id, {})[port.peer_id] = None

    def tell_end(self, run_id: str, outcome: Fields) -> None:
        """Tell everybody who waits for this run how it ended."""
        for peer_id in self.waiters.pop(run_id, ()):
            port = self.ports.get(peer_id)
            if port is not None:
                port.say(RunEnded(run_id, outcome))

    def drop(self, peer_id: str) -> None:
        """Forget a peer that is gone."""
        port = self.ports.pop(peer_id, None)
        if port is not None:
            port.release()
