"""Performing effects: what is outstanding becomes messages to hosts and to the peers that wait.

Nothing is remembered of it but pacing. A message to a host that is not there yet is not kept: the host's hello touches everybody who lives
on it, and then the same effects are outstanding again.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import compress, takewhile
from typing import Any, Final

from perdure.actors.link.messages import (
    Deliver,
    Fields,
    HoldStorage,
    MailForAgent,
    PauseRun,
    Prepare,
    Start,
    Starts,
    Stop,
    Wake,
)
from perdure.actors.ports import World
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.actors.supervisor.storage_carrier import StorageCarrier
from perdure.ledger import (
    BATCH_MIN,
    INLINE_MAX,
    WAY_OUT,
    DeliverEvents,
    DeliverMail,
    Effect,
    ForgetStorage,
    LedgerDamaged,
    PauseAttempt,
    SignedStorage,
    StartAttempt,
    StartBatch,
    Status,
    StopAgent,
    Store,
    TellEnd,
    View,
    WakeAgent,
    agent_id,
    everything,
    in_parts,
    keys_of,
    letter,
    outcome_of,
    type_of,
)
from perdure.policies import Limits

log = logging.getLogger("perdure.supervisor")
Command = StartAttempt | StartBatch | WakeAgent | DeliverMail | DeliverEvents | PauseAttempt | StopAgent
EVENTS_AGAIN_MS = 30_000  # the link brings them there for certain, so this is for what nobody thought of
STOPS_KEPT: Final = 3  # sweeps after which a life that was told to stop, and was not told again, has ended
ROUND_MAX: Final = 500  # agents that are awake, and come round at one sweep
LifeKey = tuple[str, int]  # an agent, and which of its lives
Part = tuple[str, str]  # of a run: its input, or its output


class EffectExecutor:
    """Carries effects out for one supervisor life. `payloads` are large inputs and outputs that are at hand; `unread` are the agents
    whose storages hosts could not read, and what their bases may have at most so that the supervisor carries them itself."""

    def __init__(
        self,
        world: World,
        view: View,
        sessions: Sessions,
        store: Store,
        limits: Limits,
        carrier: StorageCarrier | None = None,
    ) -> None:
        self._world, self._view, self._sessions, self._store = world, view, sessions, store
        self._carrier = carrier
        self._limits, self._pause_s = limits, limits.sweep_ms / 1000
        self._stopped_s: dict[LifeKey, tuple[float, float]] = {}  # when each was told to stop, first and last
        self.payloads: dict[Part, bytes] = {}
        self.unread: dict[str, tuple[PeerSession, float]] = {}
        self.types: dict[str, None] = {}  # those that began to work in this life of the supervisor

    async def perform(self, effects: list[Effect], at_ms: int) -> list[str]:
        """Carry these effects out; returns the cleared runs and the doomed agents whose storages may be deleted now."""
        mails = {effect.agent_id: self._mails(effect, at_ms) for effect in effects if isinstance(effect, DeliverMail)}
        fetched = await self._fetch(effects, mails)
        if self._carrier is not None:
            await self._hold_storages(self._carrier, effects)
        for effect in effects:
            if isinstance(effect, TellEnd):
                self.tell(effect.run_ids)
            elif isinstance(effect, StartBatch):
                self._start_batch(effect)
            elif isinstance(effect, DeliverEvents | PauseAttempt):
                self._steer(effect, at_ms)
            elif not isinstance(effect, ForgetStorage):
                self._command(effect, mails.get(effect.agent_id, []))
        self.forget_payloads(run_id for run_id, _part in fetched)
        return [effect.run_id or effect.agent_id for effect in effects if isinstance(effect, ForgetStorage)]

    async def _hold_storages(self, carrier: StorageCarrier, effects: list[Effect]) -> None:
        # A host is told what a storage is before the life begins that needs it.
        for session, agent in [each for effect in effects for each in self._beginning(effect)]:
            if carrier.may_exist(agent):
                await self._hold_storage(carrier, session, agent, INLINE_MAX)
        unread, self.unread = self.unread, {}
        for agent, (session, inline_max) in unread.items():
            life = self._view.agents.get(agent)
            if life is not None and life.host_id == session.peer_id and life.begun_in == session.link.session:
                await self._hold_storage(carrier, session, agent, inline_max)

    async def _hold_storage(self, carrier: StorageCarrier, session: PeerSession, agent: str, inline_max: float) -> None:
        try:
            found = await self._world.threads.commit(partial(carrier.begins, agent, inline_max))
        except LedgerDamaged as problem:  # a host tells who asks for the agent
            log.exception("the storage of %s cannot be read", agent)
            session.say(HoldStorage(agent, 0, [], f"{problem}. {WAY_OUT}"))
            return
        base = found.plain() if isinstance(found, SignedStorage) else None
        parts = found.tail if isinstance(found, SignedStorage) else found.parts() if found is not None else ()
        *first, last = map(list, in_parts(parts))
        number = 0 if found is None else found.number
        for each in first:
            session.say(HoldStorage(agent, number, each, more=True))
        session.say(HoldStorage(agent, number, last, base=base))

    # The agents whose lives this effect begins, each with its host.
    def _beginning(self, effect: Effect) -> Iterator[tuple[PeerSession, str]]:
        agents: list[str] = []
        if isinstance(effect, StartAttempt | WakeAgent):
            agents = [effect.agent_id]
        elif isinstance(effect, StartBatch):
            agents = [agent_id(effect.agent_type, run_id) for run_id in effect.run_ids]
        session = self._session_of(effect) if isinstance(effect, StartAttempt | WakeAgent | StartBatch) else None
        if session is not None:
            yield from (
                (session, agent) for agent in agents if self._view.agents[agent].begun_in != session.link.session
            )

    def forget_payloads(self, run_ids: Iterable[str]) -> None:
        if not self.payloads:
            return
        for run_id in run_ids:
            run = self._view.runs.get(run_id)
            if run is None or run.is_settled:
                self.payloads.pop((run_id, "input"), None)
                self.payloads.pop((run_id, "output"), None)

    def tidy(self) -> None:
        past_s = asyncio.get_running_loop().time() - STOPS_KEPT * self._pause_s
        for life in list(takewhile(lambda life: self._stopped_s[life][1] <= past_s, self._stopped_s)):
            del self._stopped_s[life]

    def unheeded(self) -> list[LifeKey]:
        """The lives that were told to stop longer ago than one needs that lets itself be cancelled. Some may have ended just now."""
        past_s = asyncio.get_running_loop().time() - self._limits.teardown_grace_ms / 1000 - self._pause_s
        return [life for life, (first_s, _) in self._stopped_s.items() if first_s <= past_s]

    def tell(self, run_ids: Iterable[str]) -> None:
        """Tell those that wait for these runs how they ended: runs of a type that merely completed together, any other by itself."""
        runs, waiters = self._view.runs, self._sessions.waiters
        plain: dict[str, list[str]] = {}
        for run_id in [run_id for run_id in run_ids if run_id in waiters]:
            run = runs[run_id]
            if run.status is not Status.COMPLETED or run.large_output or run.error or run.trace or run.reason:
                self._sessions.tell_end(run_id, self._outcome(run_id))
            else:
                plain.setdefault(run.agent_type, []).append(run_id)
        for agent_type, alike in plain.items():
            if len(alike) >= BATCH_MIN:
                self._sessions.tell_ends(agent_type, alike, runs)
                continue
            for run_id in alike:
                self._sessions.tell_end(run_id, self._outcome(run_id))

    def _start_batch(self, effect: StartBatch) -> None:
        session = self._session_of(effect)
        if session is None:
            return
        self._foresee(effect.agent_type)
        agent_type, options = effect.agent_type, effect.options
        columns: list[list[Any]] = [effect.run_ids, effect.incarnations, effect.inputs]
        agents, number = self._view.agents, session.link.session
        lives = [agents[agent_id(agent_type, run_id)] for run_id in effect.run_ids]
        fresh = [life.begun_in != number for life in lives]
        if not all(fresh):
            columns = [list(compress(column, fresh)) for column in columns]
        for life in lives:
            life.begun_in = number
        if columns[0]:
            session.say(Starts(agent_type, options, *columns))

    def _session_of(self, effect: Command) -> PeerSession | None:
        host = self._view.hosts.get(effect.host_id)
        return self._sessions.by_peer.get(effect.host_id) if host is not None and host.up else None

    def _mails(self, effect: DeliverMail, at_ms: int) -> list[MailForAgent]:
        if self._session_of(effect) is None:
            return []
        view = self._view
        return [
            letter(view, view.mail[key]) for key in view.mailbox[effect.agent_id].to_hand(at_ms, self._limits.sweep_ms)
        ]

    def _steer(self, effect: DeliverEvents | PauseAttempt, at_ms: int) -> None:
        session, view = self._session_of(effect), self._view
        if session is None:
            return
        if isinstance(effect, PauseAttempt):
            session.say(PauseRun(effect.agent_id, effect.incarnation, effect.run_id))
            return
        # All of them, because the one that the run waits for may be the last.
        keys = view.events[effect.run_id].to_hand(at_ms, EVENTS_AGAIN_MS, most=self._limits.events_max)
        events = [view.mail[key] for key in keys]
        if events:
            session.say(Deliver(effect.agent_id, effect.incarnation, [letter(view, each) for each in events]))

    def _command(self, effect: StartAttempt | WakeAgent | DeliverMail | StopAgent, mails: list[MailForAgent]) -> None:
        session = self._session_of(effect)
        if session is None:
            return
        if isinstance(effect, DeliverMail):
            if mails:
                session.say(Deliver(effect.agent_id, effect.incarnation, [self._with_output(mail) for mail in mails]))
        elif isinstance(effect, StopAgent):
            if self._is_due(effect):
                session.say(Stop(effect.agent_id, effect.incarnation))
        elif self._begins(effect, session):
            self._foresee(type_of(effect.agent_id))
            if isinstance(effect, StartAttempt):
                body = effect.input if effect.input is not None else self.payloads.get((effect.run_id, "input"), b"")
                session.say(Start(*effect[1:5], body, effect.collect, self._with_joined(effect.options), *effect[8:]))
            else:
                session.say(Wake(*effect[1:]))

    def _foresee(self, agent_type: str) -> None:
        # The next agent of a new type may come to any host, and a host that has loaded its code is warm.
        if agent_type in self.types:
            return
        self.types[agent_type] = None
        for session in self._sessions.by_peer.values():
            if session.is_host:
                session.say(Prepare([agent_type]))

    def _begins(self, effect: StartAttempt | WakeAgent, session: PeerSession) -> bool:
        # A life is begun once in a session: the link brings it there for certain, and a host that has let a life go
        # must not begin it again. With a new session comes a hello, and that tells which lives never began.
        life = self._view.agents[effect.agent_id]
        begun, life.begun_in = life.begun_in == session.link.session, session.link.session
        return not begun

    def _is_due(self, effect: StopAgent) -> bool:
        # A stop goes out again only after a sweep's time. It is harmless to repeat.
        life, now = (effect.agent_id, effect.incarnation), asyncio.get_running_loop().time()
        first, last = self._stopped_s.get(life, (now, -math.inf))
        if now - last < self._pause_s:
            return False
        self._stopped_s.pop(life, None)
        self._stopped_s[life] = first, now
        return True

    def _outcome(self, run_id: str) -> dict[str, object]:
        run = self._view.runs[run_id]
        outcome = outcome_of(run)
        if run.large_output:
            outcome["output"] = self.payloads.get((run_id, "output"))
        outcome["agent_type"] = run.agent_type
        return outcome

    def _with_output(self, mail: MailForAgent) -> MailForAgent:
        content = mail[4]
        if content.get("large"):
            content = {**content, "output": self.payloads.get((mail[3]["run_id"], "output"))}
        return *mail[:4], content

    def _with_joined(self, options: Fields) -> Fields:
        if not any(_is_large(given) for given in options.get("joined", ())):
            return options
        joined = [
            {**given, "output": self.payloads.get((given["run_id"], "output"))} if _is_large(given) else given
            for given in options["joined"]
        ]
        return {**options, "joined": joined}

    async def _fetch(self, effects: list[Effect], mails: Mapping[str, list[MailForAgent]]) -> list[Part]:
        missing: dict[Part, None] = {}
        for effect in effects:
            if isinstance(effect, StartAttempt) and effect.input is None:
                missing[effect.run_id, "input"] = None
            if isinstance(effect, StartAttempt):
                large = [given for given in effect.options.get("joined", ()) if _is_large(given)]
                missing.update(((given["run_id"], "output"), None) for given in large)
            elif isinstance(effect, TellEnd):
                told = (run_id for run_id in effect.run_ids if run_id in self._sessions.waiters)
                missing.update(((run_id, "output"), None) for run_id in told if self._view.runs[run_id].large_output)
        for letters in mails.values():
            missing.update(((mail[3]["run_id"], "output"), None) for mail in letters if mail[4].get("large"))
        unread = [part for part in missing if part not in self.payloads]
        for part in unread:
            body: bytes | None = await self._world.threads.commit(partial(self._store.payload, *part))
            self.payloads[part] = body or b""
        return unread


def _is_large(given: object) -> bool:
    return isinstance(given, dict) and bool(given.get("large"))


# What the sweeps of one supervisor life look at: what was outstanding lately, and some of the rest in turn.
# Nothing becomes outstanding for a record unless it is touched, and what is touched is looked at in the same turn. So a sweep has to look
# again only where something was left to do. Should we ever miss a touch, the record comes round in time, however many there are.
class SweepQueue:
    def __init__(self, view: View) -> None:
        self._view = view
        self._left: dict[str, None] = {}
        self._next = 0

    def seen(self, effects: Iterable[Effect]) -> None:
        # What was outstanding may still be so at the next look.
        for effect in effects:
            for key in keys_of(effect):
                self._left[key] = None

    def next_keys(self) -> Iterable[str]:
        left, self._left = self._left, {}
        left.update(dict.fromkeys(everything(self._view, self._next, ROUND_MAX)))
        self._next += ROUND_MAX
        if self._next >= len(self._view.awake):
            self._next = 0
        return left
