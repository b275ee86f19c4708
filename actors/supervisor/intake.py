"""What peers say, taken in: each message goes to the part that it is for, and what must be decided because of it is handed back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from perdure.actors.link.messages import (
    Abort,
    Ask,
    Call,
    CallAnswered,
    CallAstray,
    CallCut,
    ClientHello,
    CopyStorage,
    Follow,
    Happened,
    HostHello,
    HostRests,
    HostVitals,
    InboxKept,
    LogsRead,
    MailSettled,
    Message,
    Observe,
    Prepare,
    Prepared,
    Refused,
    Reply,
    RetireHost,
    RunEnded,
    Stop,
    Wait,
)
from perdure.actors.link.questions import Query
from perdure.actors.link.wire import content_of, error_to_plain
from perdure.actors.supervisor.calls import CallRouter, Calls
from perdure.actors.supervisor.publisher import Publisher
from perdure.actors.supervisor.queries import Queries
from perdure.actors.supervisor.sessions import Arrived, PeerSession, Sessions
from perdure.ledger import (
    Adopt,
    AgentUnreachable,
    Ended,
    Forget,
    HostUp,
    Request,
    Steer,
    Stimulus,
    StopLives,
    Tell,
    View,
    WorldError,
    are_alike,
    is_plain_end,
    is_plain_request,
    type_of,
)
from perdure.policies import Limits, is_behind, room_after

RESTING_MAX: Final = 20
"""For each agent that may be at work on a host, so many runs that merely wait in its memory give up their places."""


class Intake:
    """Takes in the messages that are no stimuli themselves, for one supervisor life."""

    def __init__(
        self,
        view: View,
        sessions: Sessions,
        limits: Limits,
        calls: Calls,
        queries: Queries,
        publisher: Publisher,
        router: CallRouter,
    ) -> None:
        self._view, self._sessions, self._calls, self._queries = view, sessions, calls, queries
        self._publisher, self._limits, self._router = publisher, limits, router
        self._inboxes: list[tuple[PeerSession, InboxKept]] = []

    def receive(self, session: PeerSession, message: Message) -> Iterable[Stimulus]:
        """Take in a message. What must be decided because of it is handed back."""
        match message:
            case CallAnswered(ref, ok, value):
                self._calls.answered(ref, ok, value)
            case CallCut(ref):
                self._calls.cut_off(ref)
            case CallAstray(ref):
                self._calls.astray(ref)
            case HostRests(runs):
                self._host_rests(session, runs)
            case HostVitals():
                self._host_vitals(session, message)
            case Prepared():
                if (host := self._view.hosts.get(session.peer_id)) is not None:
                    host.is_loading = False
            case InboxKept():
                self._inboxes.append((session, message))
            case Happened():
                self._publisher.pass_on(message)
            case LogsRead():
                self._queries.machine_logs.told(message)
            case Wait(run_ids):
                for run_id in run_ids:
                    self._waits(session, run_id)
            case Follow(topic, wanted):
                (self._publisher.follow if wanted else self._publisher.unfollow)(session.peer_id, topic)
            case Observe(wanted):
                self._publisher.observe(session.peer_id, wanted=wanted)
            case ClientHello(waits):
                self._sessions.are_attended, self._view.code_due_ms = True, 0
                self._wait_again(session, waits)
            case Adopt():
                return [message]
            case HostHello():
                return self._host_hello(session, message)
        return ()

    def refuse_waiting(self, trouble: WorldError, is_answered: Callable[[PeerSession, Request | Wait], bool]) -> None:
        """Nothing becomes durable now: of what waits for a turn, refuse the new work of clients, and take in what only asks. What speaks of
        runs that exist is answered if it can be. What hosts say waits, and so does what may have been accepted before. Clients that greet
        are answered, so that they can ask."""
        for line in self._sessions.inbox.values():
            for at, (session, number, message) in enumerate(line):
                session.is_host |= isinstance(message, HostHello)  # its turn has yet to come
                if isinstance(message, Ask) and isinstance(message.question, Query):
                    self._queries.add(session, message.ref, message.question)
                elif isinstance(message, LogsRead):  # it says nothing of what is durable
                    self._queries.machine_logs.told(message)
                elif session.is_host:
                    continue
                elif isinstance(message, Request | Wait) and is_answered(session, message):
                    pass
                elif not self._is_new(message):
                    continue
                elif isinstance(message, Request):
                    session.say(Refused(message.run_id, error_to_plain(trouble), content_of(message)))
                elif isinstance(message, Ask):
                    session.say(Reply(message.ref, ok=False, value=error_to_plain(trouble)))
                line[at] = Arrived(session, number, Wait([]))  # it has its number, and asks for nothing
        for session in self._sessions.by_peer.values():
            if not session.is_host:
                session.answer_early()

    def _is_new(self, message: Message) -> bool:
        if isinstance(message, Request):
            return message.run_id not in self._view.runs
        if isinstance(message, Ask):
            return not (isinstance(message.question, Call) and message.question.again)
        return False

    def _host_rests(self, session: PeerSession, count: int) -> None:
        host = self._view.hosts.get(session.peer_id)
        if host is not None:
            count = min(count, RESTING_MAX * self._limits.pack_max)
            host.load, host.resting = host.load + host.resting - count, count

    def _host_vitals(self, session: PeerSession, said: HostVitals) -> None:
        host = self._view.hosts.get(session.peer_id)
        if host is None:
            return
        host.rss_mb, host.worn = said.rss_mb, said.is_worn
        behind = is_behind(said.late_ms, said.writes_waiting, self._limits)
        host.room = room_after(host.room, host.load, behind=behind)
        if behind:
            host.late_at_ms = self._publisher.now_ms()

    def _wait_again(self, session: PeerSession, run_ids: list[str]) -> None:
        for run_id in run_ids:
            self._sessions.wait(session, run_id)
            self._view.touched[run_id] = None

    def _host_hello(self, session: PeerSession, said: HostHello) -> Iterator[Stimulus]:
        self._wait_again(session, said.waits)
        session.is_host, session.node, session.logs = True, said.node, said.logs
        host = self._view.hosts.get(session.peer_id)
        if host is None:
            session.say(RetireHost())
            return
        host.pid, host.node, host.rss_mb = said.pid, said.node, said.rss_mb
        self._host_rests(session, 0)
        types = list(dict.fromkeys(type_of(agent) for agent in islice(self._view.agents, 200)))[:8]
        if types:
            session.say(Prepare(types))
        host.is_loading = bool(types)
        self._calls.session_began(session.peer_id)
        for agent, incarnation in said.tenants:
            activation = self._view.agents.get(agent)
            if activation is None or activation.incarnation != incarnation or activation.host_id != session.peer_id:
                session.say(Stop(agent, incarnation))
        if self._publisher.observers:
            self._publisher.welcome(session)
        yield HostUp(session.peer_id, [(agent, incarnation) for agent, incarnation in said.tenants], said.farewells)

    def _waits(self, session: PeerSession, run_id: str) -> None:
        # An unknown run was cleared, and will never end.
        if run_id in self._view.runs:
            self._sessions.wait(session, run_id)
            self._view.touched[run_id] = None
        else:
            empty = {"summary": "", "output": None, "agent_type": ""}
            session.say(RunEnded(run_id, {**empty, "status": "aborted", "error": "the run was cleared"}))

    def asked(self, session: PeerSession, asked: Ask) -> Stimulus | Steer | CopyStorage | None:
        """Take in a question. What must be decided first is handed back; anything else is answered after the turn."""
        question = asked.question
        match question:
            case Call():
                self._calls.begin(session, asked.ref, question)
                return None
            case Tell():
                try:
                    return self._router.of_mail(question)
                except AgentUnreachable as refusal:
                    session.say(Reply(asked.ref, ok=False, value=error_to_plain(refusal)))
                    return None
            case Abort(agent_id, reason):
                self._calls.abort(agent_id, reason)
                return StopLives(agent_id)
            case Forget(agent_id):
                self._calls.refuse(agent_id)
        if isinstance(question, Query):
            self._queries.add(session, asked.ref, question)
            return None
        return question

    def tell_settled(self) -> None:
        """Tell lives of agents which of the mail that they have handled may be forgotten: what is settled, durably.

        Mail that is on its way to such a life was said to it before this, on the same link. Others have no say any more.
        """
        inboxes, self._inboxes = self._inboxes, []
        for session, (agent, incarnation, mail_ids) in inboxes:
            activation = self._view.agents.get(agent)
            if activation is None or (activation.incarnation, activation.host_id) != (incarnation, session.peer_id):
                continue
            mail = self._view.mail
            settled = [key for key in mail_ids if key not in mail or not mail[key].is_open]
            session.say(MailSettled(agent, incarnation, settled))


def batch_alike(arrived: Iterable[Arrived], limits: Limits) -> Iterator[tuple[PeerSession, list[Message]]]:
    """What has arrived, in order: ends that follow each other and are plain, and requests that are alike besides, together; everything else
    by itself."""
    session, group, first = None, list[Message](), None
    for sender, _number, message in arrived:
        if sender is session and first is not None and _goes_with(first, message, limits):
            group.append(message)
            continue
        if session is not None:
            yield session, group
        session, group = sender, [message]
        first = message if _is_plain(message, limits) else None
    if session is not None:
        yield session, group


def _is_plain(message: Message, limits: Limits) -> bool:
    match message:
        case Request():
            return is_plain_request(message, limits)
        case Ended():
            return is_plain_end(message, limits)
    return False


def _goes_with(first: Message, message: Message, limits: Limits) -> bool:
    if isinstance(message, Ended):
        return type(first) is Ended and is_plain_end(message, limits)
    return isinstance(message, Request) and isinstance(first, Request) and are_alike(first, message, limits)
