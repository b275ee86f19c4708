"""What peers say, taken in: each message goes to the part that it is for, and what must be decided because of it is handed back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, cast

from perdure.actors.link.messages import (
    Abort,
    Ask,
    Call,
    CallAnswered,
    CallAstray,
    CallCut,
    ClientHello,
    Explain,
    Follow,
    Frames,
    Happened,
    HostHello,
    HostVitals,
    InboxKept,
    Inspect,
    Known,
    Message,
    Observe,
    Prepare,
    Question,
    Retire,
    RunEnded,
    Settled,
    Show,
    Stop,
    Wait,
)
from perdure.actors.supervisor.calls import Calls
from perdure.actors.supervisor.publisher import Bulletin
from perdure.actors.supervisor.queries import Queries
from perdure.actors.supervisor.sessions import Port, Switchboard
from perdure.ledger import (
    Cancel,
    Chunk,
    Clear,
    Ended,
    Forget,
    HostUp,
    Milestone,
    Progress,
    Request,
    Requeue,
    Stimulus,
    StopLives,
    Tell,
    Unstarted,
    Up,
    View,
    name_of,
    type_of,
)

OF_ONE_RUN: Final = frozenset({Request, Up, Progress, Milestone, Chunk, Ended, Unstarted})


class Intake:
    """Takes in the messages that are no stimuli themselves, for one supervisor life."""

    def __init__(
        self, view: View, switchboard: Switchboard, calls: Calls, queries: Queries, bulletin: Bulletin
    ) -> None:
        self._view, self._switchboard, self._calls, self._queries = view, switchboard, calls, queries
        self._bulletin = bulletin
        self._inboxes: list[tuple[Port, InboxKept]] = []

    def receive(self, port: Port, message: Message) -> Iterable[Stimulus]:
        """Take in a message. What must be decided because of it is handed back."""
        match message:
            case CallAnswered(ref, ok, value):
                self._calls.answered(ref, ok, value)
            case CallCut(ref):
                self._calls.cut_off(ref)
            case CallAstray(ref):
                self._calls.astray(ref)
            case HostVitals(rss_mb, is_worn):
                host = self._view.hosts.get(port.peer_id)
                if host is not None:
                    host.rss_mb, host.worn = rss_mb, is_worn
            case InboxKept():
                self._inboxes.append((port, message))
            case Happened():
                self._bulletin.pass_on(message)
            case Wait(run_ids):
                for run_id in run_ids:
                    self._waits(port, run_id)
            case Follow(topic, wanted):
                (self._bulletin.follow if wanted else self._bulletin.unfollow)(port.peer_id, topic)
            case Observe(wanted):
                self._bulletin.observe(port.peer_id, wanted=wanted)
            case ClientHello(waits):
                self._wait_again(port, waits)
            case HostHello():
                return self._host_hello(port, message)
        return ()

    def _wait_again(self, port: Port, run_ids: list[str]) -> None:
        for run_id in run_ids:
            self._switchboard.wait(port, run_id)
            self._view.touched[run_id] = None

    def _host_hello(self, port: Port, said: HostHello) -> Iterator[Stimulus]:
        """A host begins a session. One that was given up meanwhile is told to leave; tenants of earlier lives are stopped."""
        self._wait_again(port, said.waits)
        port.is_host = True
        host = self._view.hosts.get(port.peer_id)
        if host is None:
            port.say(Retire())
            return
        host.pid, host.node, host.rss_mb = said.pid, said.node, said.rss_mb
        port.say(Prepare(list(dict.fromkeys(type_of(agent) for agent in islice(self._view.agents, 200)))[:8]))
        self._calls.session_began(port.peer_id)
        for agent, incarnation in said.tenants:
            activation = self._view.agents.get(agent)
            if activation is None or activation.incarnation != incarnation or activation.host_id != port.peer_id:
                port.say(Stop(agent, incarnation))
        if self._bulletin.observers:
            self._bulletin.welcome(port)
        yield HostUp(port.peer_id, [(agent, incarnation) for agent, incarnation in said.tenants], said.farewells)

    def _waits(self, port: Port, run_id: str) -> None:
        """Somebody still waits for this run. If it is unknown it was cleared, and will never end."""
        if run_id in self._view.runs:
            self._switchboard.wait(port, run_id)
            self._view.touched[run_id] = None
        else:
            empty = {"summary": "", "output": None, "agent_type": ""}
            port.say(RunEnded(run_id, {**empty, "status": "aborted", "error": "the run was cleared"}))

    def asked(self, port: Port, asked: Ask) -> Stimulus | None:
        """Take in a question. What must be decided first is handed back; anything else is answered after the turn."""
        match asked.question:
            case Cancel() | Clear() | Requeue() | Tell() as wish:
                return wish
            case Forget(agent_id) as wish:
                self._calls.refuse(agent_id)
                return wish
            case Abort(agent_id, reason):
                self._calls.abort(agent_id, reason)
                return StopLives(agent_id)
            case Call() as call:
                self._calls.begin(port, asked.ref, call)
            case query:
                self._queries.add(port, asked.ref, query)
        return None

    def tell_settled(self) -> None:
        """Tell lives of agents which of the mail that they have handled may be forgotten: what is settled, durably.

        Mail that is on its way to such a life was said to it before this, on the same link. Others have no say any more.
        """
        inboxes, self._inboxes = self._inboxes, []
        for port, (agent, incarnation, mail_ids) in inboxes:
            activation = self._view.agents.get(agent)
            if activation is None or (activation.incarnation, activation.host_id) != (incarnation, port.peer_id):
                continue
            mail = self._view.mail
            settled = [key for key in mail_ids if key not in mail or not mail[key].is_open]
            port.say(Settled(agent, incarnation, settled))


def runs_of(message: Message) -> Sequence[str]:
    """The runs that a message speaks of, so that they can be brought back into memory first."""
    if type(message) in OF_ONE_RUN:
        return [cast("Request", message).run_id]
    match message:
        case ClientHello(waits) | HostHello(waits=waits) | Wait(waits):
            return waits
        case Ask(_, question):
            return _runs_of_question(question)
    return ()


def _runs_of_question(question: Question) -> Sequence[str]:
    match question:
        case Call(again=True):
            return [name_of(question.agent_id)]  # asked again: was it a child, when did it live?
        case Cancel() | Inspect() | Show() | Explain() | Frames():
            return [question.run_id]
        case Known(run_ids) | Clear(run_ids):
            return run_ids
    return ()
