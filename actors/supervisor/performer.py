"""Performing effects: what is outstanding becomes messages to hosts and to whoever waits.

Nothing is remembered of it but pacing. A message to a host that is not there yet is not kept: the host's hello touches everybody who lives
on it, and then the same effects are outstanding again.
"""

from __future__ import annotations

import asyncio
from functools import partial

from perdure.actors.link.messages import Deliver, Fields, MailForAgent, Prepare, Start, Stop, Wake
from perdure.actors.ports import World
from perdure.actors.supervisor.sessions import Sessions
from perdure.ledger import (
    DeliverMail,
    Effect,
    ForgetStorage,
    StartAttempt,
    StopAgent,
    Store,
    TellEnd,
    View,
    WakeAgent,
    outcome_of,
    type_of,
)
from perdure.policies import Limits

Command = StartAttempt | WakeAgent | DeliverMail | StopAgent


class Performer:
    """Carries effects out for one supervisor life. `payloads` are large inputs and outputs that are at hand."""

    def __init__(self, world: World, view: View, sessions: Sessions, store: Store, limits: Limits) -> None:
        self._world, self._view, self._sessions, self._store = world, view, sessions, store
        self._pause_s = limits.sweep_ms / 1000
        self._paced: dict[tuple[object, ...], float] = {}
        self._begun: dict[tuple[str, int, int], None] = {}
        self.payloads: dict[tuple[str, str], bytes] = {}
        self.types: dict[str, None] = {}  # those that began to work in this life of the supervisor

    async def perform(self, effects: list[Effect]) -> list[str]:
        """Carry these effects out; returns the cleared runs and the doomed agents whose storages may be deleted now."""
        await self._fetch(effects)
        for effect in effects:
            if isinstance(effect, TellEnd):
                self._tell(effect.run_id)
            elif not isinstance(effect, ForgetStorage):
                self._command(effect)
        return [effect.run_id or effect.agent_id for effect in effects if isinstance(effect, ForgetStorage)]

    def tidy(self) -> None:
        """Forget the pacing of long ago, and payloads of runs that are settled."""
        now, runs = asyncio.get_running_loop().time(), self._view.runs
        alive = {activation.incarnation for activation in self._view.agents.values()}
        self._begun = {key: None for key in self._begun if key[2] in alive}
        self._paced = {key: at for key, at in self._paced.items() if now - at < self._pause_s}
        self.payloads = {
            key: body for key, body in self.payloads.items() if key[0] in runs and not runs[key[0]].is_settled
        }

    def _tell(self, run_id: str) -> None:
        if run_id in self._sessions.waiters:
            self._sessions.tell_end(run_id, self._outcome(run_id))

    def _command(self, effect: Command) -> None:
        session = self._sessions.by_peer.get(effect.host_id)
        host = self._view.hosts.get(effect.host_id)
        if session is None or host is None or not host.up or not self._is_due(effect, session.link.session):
            return
        if isinstance(effect, StartAttempt | WakeAgent):
            self._foresee(type_of(effect.agent_id))
        if isinstance(effect, StartAttempt):
            body = effect.input if effect.input is not None else self.payloads.get((effect.run_id, "input"), b"")
            session.say(Start(*effect[1:5], body, effect.collect, effect.options, *effect[8:]))
        elif isinstance(effect, WakeAgent):
            session.say(Wake(*effect[1:]))
        elif isinstance(effect, DeliverMail):
            mails = [self._with_output(mail) for mail in effect.mails]
            session.say(Deliver(effect.agent_id, effect.incarnation, mails))
        elif isinstance(effect, StopAgent):
            session.say(Stop(effect.agent_id, effect.incarnation))

    def _foresee(self, agent_type: str) -> None:
        """Let every host load the code of a type that is new: the next agent of it may come to any of them, and a loaded host is warm."""
        if agent_type in self.types:
            return
        self.types[agent_type] = None
        for session in self._sessions.by_peer.values():
            if session.is_host:
                session.say(Prepare([agent_type]))

    def _is_due(self, effect: Command, session: int) -> bool:
        """Pacing: mail and stops go out again only after a sweep's time; both are harmless to repeat.

        A life is begun once in a session: the link brings it there for certain, and a host that has let a life go must not begin it
        again. With a new session comes a hello, and that tells which lives never began.
        """
        if isinstance(effect, StartAttempt | WakeAgent):
            key = (effect.host_id, session, effect.incarnation)
            begun, self._begun[key] = key in self._begun, None
            return not begun
        if isinstance(effect, DeliverMail):
            attempts = self._view.mail
            effect.mails[:] = [
                mail for mail in effect.mails if self._first((mail[0], effect.incarnation, attempts[mail[0]].attempts))
            ]
            return bool(effect.mails)
        return self._first((type(effect), effect.agent_id, effect.incarnation))

    def _first(self, key: tuple[object, ...]) -> bool:
        now = asyncio.get_running_loop().time()
        last = self._paced.get(key)
        if last is not None and now - last < self._pause_s:
            return False
        self._paced[key] = now
        return True

    def _outcome(self, run_id: str) -> Fields:
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

    async def _fetch(self, effects: list[Effect]) -> None:
        """Read the large inputs and outputs that these effects carry, if they are not at hand."""
        missing: list[tuple[str, str]] = []
        for effect in effects:
            if isinstance(effect, StartAttempt) and effect.input is None:
                missing.append((effect.run_id, "input"))
            elif (
                isinstance(effect, TellEnd)
                and effect.run_id in self._sessions.waiters
                and self._view.runs[effect.run_id].large_output
            ):
                missing.append((effect.run_id, "output"))
            elif isinstance(effect, DeliverMail):
                missing.extend((mail[3]["run_id"], "output") for mail in effect.mails if mail[4].get("large"))
        for key in missing:
            if key not in self.payloads:
                body: bytes | None = await self._world.threads.archive(partial(self._store.payload, *key))
                self.payloads[key] = body or b""
