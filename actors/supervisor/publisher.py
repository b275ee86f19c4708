"""What the supervisor publishes after a commit: events to followers, signals to parents, and happenings to observers."""

from __future__ import annotations

import logging
import shlex
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final

from perdure.actors.events.observability import Channel, EventType, Metrics, happening_of
from perdure.actors.link.messages import FromSupervisor, Happened, Observed, RunEvent, Signal
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.ledger import (
    FactRow,
    MilestoneReached,
    Row,
    Status,
    View,
    about,
    count_of,
    counts,
    decode,
    expand_rows,
    frame_of,
    unpack,
)

SIGNALS = {"ProgressReported", "MilestoneReached"}
ENDS = {
    "RunSucceeded": Status.COMPLETED,
    "RunsSucceeded": Status.COMPLETED,
    "RunErrored": Status.ERROR,
    "RunAborted": Status.ABORTED,
    "RunInterrupted": Status.INTERRUPTED,
}


_PARKED: Final = (
    "run %r is parked, and whoever waits for it goes on waiting: %s. `perdure explain %s` says what can be done"
)
log = logging.getLogger("perdure.supervisor")


class Publisher:
    """Who follows what. Followers are remembered for this life only; they ask again after the next hello.

    Hosts are asked to pass on what happens to their agents only while a client observes, and may take their time with what is not followed.
    """

    def __init__(self, view: View, sessions: Sessions, now_ms: Callable[[], int]) -> None:
        self._view, self._sessions, self.now_ms = view, sessions, now_ms
        self.followers: dict[str, dict[str, None]] = {}
        self.observers: dict[str, None] = {}
        self.booted: dict[str, object] = {}
        self._ended: Counter[Status] = Counter()
        self._recoveries = 0

    # The topic is a run, or the address of a parent for all of its runs.
    def follow(self, peer_id: str, topic: str) -> None:
        is_first = not self.followers
        self.followers.setdefault(topic, {})[peer_id] = None
        if is_first:
            self._welcome_all()

    def unfollow(self, peer_id: str, topic: str) -> None:
        followers = self.followers.get(topic, {})
        followers.pop(peer_id, None)
        if not followers and self.followers.pop(topic, None) is not None and not self.followers:
            self._welcome_all()

    def observe(self, peer_id: str, *, wanted: bool) -> None:
        # An observer hears first whose life this is.
        if wanted:
            self.observers[peer_id] = None
            booted = (Channel.SUPERVISOR, EventType.SUPERVISOR_BOOTED, "", self.booted, self.now_ms())
            self._say(peer_id, Happened(*booted))
        else:
            self.observers.pop(peer_id, None)
        self._welcome_all()

    def welcome(self, session: PeerSession) -> None:
        if session.is_host:
            session.say(Observed(bool(self.observers), bool(self.followers)))

    def _welcome_all(self) -> None:
        for session in self._sessions.by_peer.values():
            self.welcome(session)

    def drop(self, peer_id: str) -> None:
        if peer_id in self.observers:
            self.observe(peer_id, wanted=False)
        for topic in list(self.followers):
            self.unfollow(peer_id, topic)

    def happened(
        self, channel: str, type: str, agent: str, payload: Mapping[str, object], at_ms: int | None = None
    ) -> None:
        if self.observers:
            self.pass_on(Happened(channel, type, agent, payload, self.now_ms() if at_ms is None else at_ms))

    def pass_on(self, said: Happened) -> None:
        for peer_id in self.observers:
            self._say(peer_id, said)

    def measure(self, metrics: Metrics) -> None:
        view = self._view
        metrics.gauge("runs_live", view.live)
        metrics.gauge("runs_waiting", len(view.queues))
        metrics.gauge("hosts_up", sum(host.up for host in view.hosts.values()))
        metrics.gauge("agents_awake", sum(len(host.tenants) for host in view.hosts.values()))
        metrics.gauge("facts", view.seq)
        for status, count in counts(view).items():
            metrics.gauge("runs", count, {"status": status})
        for state, count in view.tally.items():
            metrics.gauge("mail", count, {"state": state})
        for status, count in self._ended.items():
            metrics.count("runs_ended", count, {"status": status})
        if self._recoveries:
            metrics.count("recoveries", self._recoveries)
        self._ended, self._recoveries = Counter(), 0

    # These rows are durable.
    def publish(self, rows: list[Row]) -> None:
        for row in rows:
            if row.kind in ENDS:
                self._ended[ENDS[row.kind]] += count_of([row])
            elif row.kind == "AttemptStarted" and isinstance(row, FactRow) and row.frame is not None:
                self._recoveries += 1  # it is an event from the second attempt on
            elif row.kind == "RunParked" and isinstance(row, FactRow):
                fact: Any = decode(row.kind, row.body)
                log.warning(_PARKED, row.subject, fact.error, shlex.quote(row.subject))
        if not (self.followers or self.observers):
            for row in rows:
                if row.kind in SIGNALS and isinstance(row, FactRow):
                    self._signal(row)
            return
        for fact in expand_rows(rows):
            if fact.kind in SIGNALS:
                self._signal(fact)
            self._frame(fact)
            happening = happening_of(fact, self._view) if self.observers else None
            if happening is not None:
                self.happened(Channel.AGENT_TOOL, *happening, fact.at_ms)

    def _frame(self, row: FactRow) -> None:
        run = self._view.runs.get(row.subject)
        if row.frame is None or run is None:
            return
        peers = [*self.followers.get(run.run_id, ()), *self.followers.get(run.parent, ())]
        frame = frame_of(row, run) if peers else None
        if frame is not None:
            for peer_id in dict.fromkeys(peers):
                self._say(peer_id, RunEvent(frame))

    def _signal(self, row: FactRow) -> None:
        run = self._view.runs.get(row.subject)
        if run is None or not run.options.get("on_progress"):
            return
        activation = self._view.agents.get(run.parent)
        if activation is not None and activation.host_id:
            fact: Any = decode(row.kind, row.body)
            named = {"milestone": fact.name, "sequence": fact.number} if isinstance(fact, MilestoneReached) else {}
            snapshot = {**unpack(fact.body), **named, "at_ms": row.at_ms}
            self._say(activation.host_id, Signal(run.parent, activation.incarnation, about(run), snapshot))

    def _say(self, peer_id: str, message: FromSupervisor) -> None:
        session = self._sessions.by_peer.get(peer_id)
        if session is not None:
            session.say(message)
