"""What the supervisor publishes after a commit: events to followers, signals to parents, and happenings to observers."""

from __future__ import annotations

from typing import Any

from actors.observability import Metrics
from actors.switchboard import Switchboard
from ledger import FactRow, Run, View, about, frame_of, unpack

SIGNALS = {"ProgressReported", "MilestoneReached"}

HAPPENINGS = {
    "RunRequested": "agent_tool:dispatched",
    "RunStarted": "agent_tool:started",
    "AttemptStarted": "agent_tool:attempt",
    "RunCompleted": "agent_tool:finished",
    "RunFailed": "agent_tool:finished",
    "RunAborted": "agent_tool:cancelled",
    "RunInterrupted": "agent_tool:gave_up",
    "RunReattached": "agent_tool:recovery:reattach",
    "AttemptLost": "agent_tool:recovery:row",
    "MilestoneReached": "agent_tool:milestone",
    "RunCleared": "agent_tool:cleared",
    "MailFailed": "agent_tool:detached:delivery_failed",
}
"""What a fact is called on the `agent_tool` channel."""


class Bulletin:
    """Who follows what. Followers are remembered for this life only; they ask again after the next hello."""

    def __init__(self, view: View, switchboard: Switchboard) -> None:
        self._view, self._switchboard = view, switchboard
        self.followers: dict[str, dict[str, None]] = {}
        self.observers: dict[str, None] = {}

    def follow(self, peer_id: str, topic: str) -> None:
        """Send this peer the events of a run, or of all runs of a parent (`topic` is its address), from now on."""
        self.followers.setdefault(topic, {})[peer_id] = None

    def drop(self, peer_id: str) -> None:
        """Forget a follower that is gone."""
        self.observers.pop(peer_id, None)
        for followers in self.followers.values():
            followers.pop(peer_id, None)

    def measure(self, metrics: Metrics) -> None:
        """Hand the numbers of this moment to whoever collects them."""
        view = self._view
        metrics.gauge("runs_live", sum(map(len, view.children.values())))
        metrics.gauge("runs_waiting", sum(map(len, view.queues.values())))
        metrics.gauge("hosts_up", sum(host.up for host in view.hosts.values()))
        metrics.gauge("agents_awake", sum(bool(each.host_id) for each in view.agents.values()))
        metrics.gauge("facts", view.seq)
        for state, count in view.tally.items():
            metrics.gauge("mail", count, {"state": state})

    def publish(self, rows: list[FactRow]) -> None:
        """Tell whoever wants to know what these rows say. They are durable."""
        if not (self.followers or self.observers):
            for row in rows:
                if row.kind in SIGNALS:
                    self._signal(row)
            return
        for row in rows:
            if row.kind in SIGNALS:
                self._signal(row)
            self._frame(row)
            self._happening(row)

    def _frame(self, row: FactRow) -> None:
        run = self._view.runs.get(row.subject)
        if row.frame is None or run is None:
            return
        peers = [*self.followers.get(run.run_id, ()), *self.followers.get(run.parent, ())]
        if peers:
            frame = frame_of(row, run.options.get("tool_call"))
            for peer_id in dict.fromkeys(peers):
                self._say(peer_id, "frame", frame)

    def _happening(self, row: FactRow) -> None:
        name = HAPPENINGS.get(row.kind)
        run = self._view.runs.get(row.subject)
        if name is None or not self.observers:
            return
        payload: dict[str, Any] = {"fact": row.kind}
        if run is not None:
            payload |= {
                "run_id": run.run_id,
                "agent_type": run.agent_type,
                "status": str(run.status),
                "attempt": run.attempt,
            }
            payload |= {"reason": run.reason or run.cause or None, "parent": run.parent}
        for peer_id in self.observers:
            self._say(peer_id, "happening", "agent_tool", name, row.subject, payload, row.at_ms)

    def _signal(self, row: FactRow) -> None:
        """Progress of a child, to a parent that has an `on_progress` of its own and is awake."""
        run = self._view.runs.get(row.subject)
        if run is None or not run.options.get("on_progress"):
            return
        activation = self._view.agents.get(run.parent)
        if activation is not None and activation.host_id:
            self._say(
                activation.host_id, "signal", run.parent, activation.incarnation, about(run), snapshot_of(run, row)
            )

    def _say(self, peer_id: str, *message: Any) -> None:
        port = self._switchboard.ports.get(peer_id)
        if port is not None:
            port.say(*message)


def snapshot_of(run: Run, row: FactRow) -> dict[str, Any]:
    """A progress or milestone fact as the parent's `on_progress` sees it."""
    if row.kind == "MilestoneReached":
        number, name, _, at_ms, body = run.milestones[-1]
        return {**unpack(body), "milestone": name, "sequence": number, "at_ms": at_ms}
    return {**(unpack(run.progress) if run.progress else {}), "at_ms": row.at_ms}
