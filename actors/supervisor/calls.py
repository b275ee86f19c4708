"""Calls of agents: made at most once, unless the method is repeatable.

A call is remembered only while it is under way: here, and by the host that it was handed to. As long as that host lives it says what
became of the call: answered, cut off, or come too late for the agent and so not begun. If it dies, the caller is told that it is unknown
whether the call took effect, unless the method was declared repeatable. Work that must survive is a run. A call is no fact: a commit for
each would be dear, and most calls only ask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from perdure.actors.link.caller import THROUGH
from perdure.actors.link.messages import Call, HostNeeds, MakeCall, Reply
from perdure.actors.link.wire import error_to_plain
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.ledger import (
    AgentAborted,
    AgentBeingDeleted,
    AgentUnreachable,
    HostUnavailable,
    OutcomeUnknown,
    PerdureError,
    Standalone,
    Tell,
    View,
    is_cleared,
    is_within,
    last_end,
    pack,
    pool_key,
    route,
)


class CallRouter:
    """The ways that calls and mail take in one supervisor life (`ledger.addressing`): put into each message before anything is done for it.
    `has_storage` tells whether an agent has ever written anything."""

    def __init__(self, view: View, has_storage: Callable[[str], bool]) -> None:
        self._view, self._has_storage = view, has_storage

    def of_call(self, asked: Call) -> Call:
        """The call as it goes to the first agent on its way. Raises `AgentUnreachable`."""
        agent, way = route(self._view.runs, asked.agent_id, asked.sender, Standalone(asked.standalone), self._exists)
        if not way:
            return asked._replace(agent_id=agent)
        hop = pack([[list(step) for step in way], asked.method, asked.body, asked.repeatable])
        return asked._replace(agent_id=agent, method=THROUGH, body=hop, home=None)

    def of_mail(self, asked: Tell) -> Tell:
        """The mail for the agent that it means. Raises `AgentUnreachable`."""
        agent, way = route(self._view.runs, asked.recipient, asked.sender, Standalone(asked.standalone), self._exists)
        if way:
            raise AgentUnreachable(asked.recipient, "only its relatives may tell it something; call it instead")
        return asked._replace(recipient=agent)

    def _exists(self, agent: str) -> bool:
        return agent in self._view.agents or agent in self._view.asleep or self._has_storage(agent)


@dataclass(slots=True)
class OpenCall:
    """A call under way. `host_id` and `incarnation` are the host and the life of the agent that it was handed to, empty before.

    An earlier life of the supervisor may have handed it over already: to the `suspect`, a life of the agent that was there when we heard of
    the call, or to one that had ended by then but may not have ended before the call was made (`is_doubtful`). A suspect that is still
    there can be asked. (`ledger.activation.Lives` says why there is nobody else.)
    """

    peer_id: str
    agent_id: str
    method: str
    body: bytes
    repeatable: bool
    sender: str = ""
    home: HostNeeds = None
    trace: str = ""
    is_doubtful: bool = False
    suspect: int = 0
    host_id: str = ""
    incarnation: int = 0

    # A life other than the one that has it now may have begun it.
    @property
    def may_be_lost(self) -> bool:
        return self.is_doubtful or self.suspect not in (0, self.incarnation)


class Calls:
    """The calls under way in one supervisor life. They are found by their agent while they wait for it, and then by its host."""

    def __init__(self, view: View, sessions: Sessions, router: CallRouter) -> None:
        self._view, self._sessions, self._router = view, sessions, router
        self._calls: dict[str, OpenCall] = {}
        self._waiting: dict[str, dict[str, None]] = {}
        self._handed: dict[str, dict[str, None]] = {}
        self._due: dict[str, None] = {}  # agents whose calls may perhaps be handed over now
        self._is_held_up = False  # by a deletion

    # A peer may ask for the same call again.
    def begin(self, session: PeerSession, ref: str, asked: Call) -> None:
        known = self._calls.get(ref)
        if known is not None:
            known.peer_id = session.peer_id
            return
        try:
            asked = self._router.of_call(asked)
        except AgentUnreachable as refusal:
            was_heard = asked.again and not asked.repeatable  # it may have been let pass before, by an earlier life
            problem: PerdureError = OutcomeUnknown(asked.agent_id, asked.method) if was_heard else refusal
            session.say(Reply(ref, ok=False, value=error_to_plain(problem)))
            return
        agent = asked.agent_id
        call = self._calls[ref] = OpenCall(
            session.peer_id, agent, asked.method, asked.body, asked.repeatable, asked.sender, asked.home, asked.trace
        )
        if asked.again:
            activation = self._view.agents.get(agent)
            call.is_doubtful = last_end(self._view, agent) > asked.heard
            call.suspect = activation.incarnation if activation is not None and activation.host_id else 0
        self._wait(ref, call)

    # The agent is to be deleted. Only calls that have not reached it yet: later ones are for the next agent of that name.
    def refuse(self, agent: str) -> None:
        for ref, call in list(self._calls.items()):
            if not call.host_id and is_within(call.agent_id, agent):
                self.answered(ref, False, error_to_plain(AgentBeingDeleted(call.agent_id)))

    def refuse_unhosted(self, pool: str, problem: HostUnavailable) -> None:
        for ref in list(self._awaiting(pool)):
            self.answered(ref, False, error_to_plain(problem))

    def awaits(self, pool: str) -> bool:
        return any(True for _ in self._awaiting(pool))

    def _awaiting(self, pool: str) -> Iterator[str]:
        for agent, refs in self._waiting.items():
            activation = self._view.agents.get(agent)
            if (activation is None or not activation.host_id) and pool_key(self._view.home_of(agent)) == pool:
                yield from refs

    def by_agent(self) -> dict[str, list[OpenCall]]:
        agents: dict[str, list[OpenCall]] = {}
        for call in self._calls.values():
            agents.setdefault(call.agent_id, []).append(call)
        return agents

    def _waits_for_deletion(self, ref: str, call: OpenCall) -> bool:
        # The name is not free yet, so the call waits. The call of a sender that is being deleted itself is refused.
        if self._view.doomed_by(call.sender):
            self.answered(ref, False, error_to_plain(AgentBeingDeleted(call.sender, "sender")))
            return True
        return bool(self._view.doomed_by(call.agent_id))

    def abort(self, agent: str, reason: str) -> None:
        for ref, call in list(self._calls.items()):
            if is_within(call.agent_id, agent) and call.agent_id in self._view.agents:
                self.answered(ref, False, error_to_plain(AgentAborted(call.agent_id, reason)))

    # The call came too late for the life that it was meant for, and did nothing there.
    def astray(self, ref: str) -> None:
        call = self._calls.get(ref)
        if call is not None:
            call.suspect = 0 if call.suspect == call.incarnation else call.suspect
            self._wait(ref, call)

    def _wait(self, ref: str, call: OpenCall) -> None:
        self._leave(ref, call)
        call.host_id = ""
        self._waiting.setdefault(call.agent_id, {})[ref] = None
        self._due[call.agent_id] = None
        self._want(call)

    def _want(self, call: OpenCall) -> None:
        if call.home is not None:
            self._view.homes[call.agent_id] = call.home
        self._view.want(call.agent_id)

    def _leave(self, ref: str, call: OpenCall) -> None:
        index, key = (self._handed, call.host_id) if call.host_id else (self._waiting, call.agent_id)
        refs = index.get(key)
        if refs is not None and refs.pop(ref, 0) is None and not refs:
            del index[key]

    # The call had begun, or it is unknown whether it had, and will not be answered.
    def cut_off(self, ref: str) -> None:
        call = self._calls.get(ref)
        if call is not None and is_cleared(self._view.runs, call.agent_id):  # no repetition may bring the child back
            self.answered(ref, False, error_to_plain(AgentUnreachable(call.agent_id, "its run was cleared")))
        elif call is not None and call.repeatable:
            self._wait(ref, call)
        elif call is not None:
            activation = self._view.agents.get(call.agent_id)
            cause = activation.cause if activation is not None else ""
            self.answered(ref, False, error_to_plain(OutcomeUnknown(call.agent_id, call.method, cause)))

    def answered(self, ref: str, ok: bool, value: object) -> None:
        call = self._calls.pop(ref, None)
        if call is not None:
            self._leave(ref, call)
        session = self._sessions.by_peer.get(call.peer_id) if call is not None else None
        if session is not None:
            session.say(Reply(ref, ok, value))

    def session_began(self, host_id: str) -> None:
        # What was said to the host in its last session may not have arrived.
        for ref in list(self._handed.get(host_id, ())):
            call = self._calls[ref]
            call.is_doubtful, call.suspect = call.may_be_lost, call.incarnation
            self._wait(ref, call)

    def seen(self, agents: Iterable[str]) -> None:
        self._due.update((agent, None) for agent in agents if agent in self._waiting)

    def hand_over(self) -> None:
        is_held_up = bool(self._view.doomed)
        if is_held_up or self._is_held_up:
            self.seen(list(self._waiting))
        self._is_held_up = is_held_up
        due, self._due = self._due, {}
        for agent in due:
            for ref in list(self._waiting.get(agent, ())):
                call = self._calls[ref]
                if not (is_held_up and self._waits_for_deletion(ref, call)):
                    self._hand(ref, call)

    def _hand(self, ref: str, call: OpenCall) -> None:
        activation = self._view.agents.get(call.agent_id)
        session = self._sessions.by_peer.get(activation.host_id) if activation is not None else None
        if activation is None or not activation.host_id:
            if call.agent_id not in self._view.wanted:
                self._want(call)
                self._sessions.arrived.set()
        elif session is not None and not activation.stopping:
            self._leave(ref, call)
            call.host_id, call.incarnation = activation.host_id, activation.incarnation
            self._handed.setdefault(call.host_id, {})[ref] = None
            life = call.agent_id, call.incarnation
            session.say(MakeCall(*life, ref, call.method, call.body, call.repeatable, call.may_be_lost, call.trace))

    def hosts_changed(self) -> None:
        for host_id in [host_id for host_id in self._handed if host_id not in self._view.hosts]:
            for ref in list(self._handed[host_id]):
                self.cut_off(ref)
