"""The supervisor's side of its conversations: one `PeerSession` per peer, and which peers wait for which run.

Nothing here is durable and nothing here decides. After a supervisor's death every peer says hello again, repeats what was not
acknowledged, and names the runs that it waits for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count, repeat
from typing import NamedTuple

from perdure.actors.link.link import Held, Link
from perdure.actors.link.messages import FromSupervisor, Message, Passivate, Reply, RunEnded, RunsEnded
from perdure.actors.link.wire import SupervisorFrame, body_of, decode_all, error_to_plain, frame_of, peer_frame
from perdure.actors.upkeep import upkeep_s
from perdure.ledger import Activation, BadRequest, Run, pack

log = logging.getLogger("perdure.link")


# Holds what is said while the ledger decides, in order, until that is durable: what is said then may speak of it.
class OutputGate:
    def __init__(self) -> None:
        self.is_closed = False
        self.held: list[tuple[PeerSession, FromSupervisor]] = []


class PeerSession:
    """One peer's conversation, seen from the supervisor. `durable` is the number up to which its messages are committed."""

    def __init__(self, peer_id: str, session: int, gate: OutputGate | None = None) -> None:
        self.peer_id = peer_id
        self._gate = gate or OutputGate()
        self.link: Link[bytes] = Link()
        self.link.session = session
        self.durable = 0
        self.is_host = False
        self.node = self.logs = ""  # of a host: its machine, and the key of that one's logs
        self.seen_s = 0.0
        self.held = Held()
        self.kept_back: dict[str, list[str]] = {}  # what a client was told last (`KeptBack`)
        self._commit: asyncio.Future[bool] | None = None
        self._owed = 0  # up to this number the peer, which was answered early, is told when it is durable

    def commit(self, number: int) -> None:
        self.durable = max(self.durable, number)

    # Exchanges wait until their messages are durable.
    def committed(self) -> None:
        self._end_waits(is_committed=True)
        if self.is_due:
            self.held.release()

    # No commit ends soon: what waits for one is answered now with what there is to say, and told later that it is durable.
    def answer_early(self) -> None:
        self._end_waits(is_committed=False)

    @property
    def is_due(self) -> bool:
        # Whether an exchange is to be answered now, though nothing is to be said.
        return 0 < self._owed <= self.durable

    def told_durable(self) -> None:
        if self.is_due:
            self._owed = 0

    def _end_waits(self, *, is_committed: bool) -> None:
        if self._commit is not None and not self._commit.done():
            self._commit.set_result(is_committed)
        self._commit = None

    async def commit_of(self, number: int) -> None:
        while self.durable < min(number, self.link.received):
            if self._commit is None:
                self._commit = asyncio.get_running_loop().create_future()
            if not await asyncio.shield(self._commit):
                self._owed = max(self._owed, number)
                return

    # While the ledger decides, it is held.
    def say(self, message: FromSupervisor) -> None:
        if self._gate.is_closed:
            self._gate.held.append((self, message))
            return
        # A message that cannot be sent harms nothing else: a peer that waits for a reply is told, and the log tells the
        # rest.
        try:
            body = body_of(message)
        except BadRequest as problem:
            log.exception("a %s for %s was not sent", type(message).__name__, self.peer_id)
            if not isinstance(message, Reply):
                return
            body = body_of(Reply(message.ref, ok=False, value=error_to_plain(problem)))
        self.link.push(body)


# A message that waits for the next turn.
class Arrived(NamedTuple):
    session: PeerSession
    number: int
    message: Message


class Sessions:
    """All sessions. `inbox` holds the messages of each peer that wait for a turn, `waiters` the peers that wait for a run's end. They
    `are_attended` as soon as a client has come, who says first which code it has."""

    def __init__(self) -> None:
        self.epoch = 0
        self.seq = 0
        self.by_peer: dict[str, PeerSession] = {}
        self.inbox: dict[str, deque[Arrived]] = {}
        self.are_attended = False
        self._gate = OutputGate()
        self.arrived = asyncio.Event()
        self.waiters: dict[str, dict[str, None]] = {}

    async def exchange(self, frame: bytes) -> bytes:
        """Take in a peer's frame and answer it, now or when there is something to say. Raises `VersionMismatch`."""
        said = peer_frame(frame)
        session = self.by_peer.get(said.peer_id)
        if session is None or said.session > session.link.session:
            is_late = not said.messages or said.first != 1 or said.epoch != self.epoch
            if is_late:  # a hello to an earlier life tells of another time
                return pack(SupervisorFrame(self.epoch, 0, 0, 0, [], missed=False, seq=0))
            if session is not None:
                session.held.release()
            session = self.by_peer[said.peer_id] = PeerSession(said.peer_id, said.session, self._gate)
        link = session.link
        if said.session < link.session:
            return pack(SupervisorFrame(self.epoch, link.session, 0, 0, [], missed=False, seq=0))
        session.seen_s = upkeep_s()
        link.acknowledge(said.ack)
        if said.rewind:
            link.rewind()
        heard_now = decode_all(said.messages)
        if self._take_in(session, said.first, heard_now):
            heard = (self.epoch, link.session, session.durable, link.next_number)
            return pack(SupervisorFrame(*heard, [], missed=True, seq=self.seq))
        if said.hold and not (link.unsent or session.is_due):
            await session.held.hold()
        elif heard_now:
            await session.commit_of(said.first + len(heard_now) - 1)
        session.told_durable()
        first, bodies = link.take(weigh=len)
        heard = (self.epoch, link.session, session.durable, first)
        return frame_of(SupervisorFrame(*heard, (), missed=False, seq=self.seq), bodies)

    # True if earlier messages are missing, so that these must come again after them.
    def _take_in(self, session: PeerSession, first: int, messages: Sequence[object]) -> bool:
        number = session.link.received
        fresh, gap = session.link.receive(first, messages)
        if fresh:
            line = self.inbox.setdefault(session.peer_id, deque())
            line.extend(map(Arrived._make, zip(repeat(session), count(number + 1), fresh, strict=False)))
            self.arrived.set()
        return gap

    # Inside, nothing is said to anybody: it is when `made_durable` follows.
    @contextmanager
    def deciding(self) -> Iterator[None]:
        self._gate.is_closed = True
        try:
            yield
        finally:
            self._gate.is_closed = False

    # What these messages led to is durable now, so what was said meanwhile may leave.
    def made_durable(self, arrived: Iterable[Arrived]) -> None:
        for session, number in {each.session: each.number for each in arrived}.items():  # the last number of each
            session.commit(number)
        held, self._gate.held = self._gate.held, []
        for session, message in held:
            session.say(message)

    @property
    def waiting(self) -> int:
        return sum(map(len, self.inbox.values()))

    def take(self, most: float) -> list[Arrived]:
        """The first messages that wait, at least one; what is left is announced again.

        If not all are taken, each peer has the same share: one with one question does not wait behind one with thousands.
        """
        count = max(1, min(most, self.waiting))
        taken: list[Arrived] = []
        while self.inbox and len(taken) < count:
            left = int(count) - len(taken)
            share = max(1, left // len(self.inbox))
            for peer_id in list(self.inbox)[:left]:
                line = self.inbox.pop(peer_id)
                taken += [line.popleft() for _ in range(min(share, len(line)))]
                if line:
                    self.inbox[peer_id] = line  # behind the others
        if self.inbox:
            self.arrived.set()
        return taken

    def flush(self) -> None:
        for session in self.by_peer.values():
            if session.link.unsent:
                session.held.release()

    def wait(self, session: PeerSession, run_id: str) -> None:
        self.waiters.setdefault(run_id, {})[session.peer_id] = None
        session.kept_back.pop(run_id, None)  # whoever begins to wait is told again

    # The runs are of one type, and have completed.
    def tell_ends(self, agent_type: str, run_ids: Sequence[str], runs: Mapping[str, Run]) -> None:
        by_peer: dict[str, list[str]] = {}
        for run_id in run_ids:
            for peer_id in self.waiters.pop(run_id, ()):
                by_peer.setdefault(peer_id, []).append(run_id)
        for peer_id, theirs in by_peer.items():
            session = self.by_peer.get(peer_id)
            if session is not None:
                ended = [runs[run_id] for run_id in theirs]
                outputs, summaries = [run.output for run in ended], [run.summary for run in ended]
                session.say(RunsEnded(agent_type, theirs, outputs, summaries))

    def tell_end(self, run_id: str, outcome: dict[str, object]) -> None:
        for peer_id in self.waiters.pop(run_id, ()):
            session = self.by_peer.get(peer_id)
            if session is not None:
                session.say(RunEnded(run_id, outcome))

    def let_go(self, agents: Iterable[Activation]) -> None:
        by_host: dict[str, list[str]] = {}
        for each in agents:
            by_host.setdefault(each.host_id, []).append(each.agent_id)
        for host_id, theirs in by_host.items():
            session = self.by_peer.get(host_id)
            if session is not None:
                session.say(Passivate(theirs))

    def hold_back(self, for_s: float) -> None:
        """For so long hosts leave new turns and webhooks to the supervisor."""
        for session in self.by_peer.values():
            if session.is_host:
                session.say(Passivate([], for_s))
        self.flush()

    def drop(self, peer_id: str) -> None:
        session = self.by_peer.pop(peer_id, None)
        if session is not None:
            session.held.release()
