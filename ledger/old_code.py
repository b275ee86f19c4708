"""Where older code stands: for `perdure upgrade`, and for the counts of `perdure ps`.

A run has the code that it is pinned to, an agent that is awake that of its host. A newer version is one whose contents differ (`Code`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from perdure.ledger.activation import Activation, package_of
from perdure.ledger.ids import origin_of, root_of, type_of
from perdure.ledger.run import Run, run_of
from perdure.ledger.view import View

NAMED_MAX: Final = 100  # agents, runs of each type that are told by name


@dataclass(slots=True)
class CodeVersion:
    """What there is of one agent type now; `since_ms` is when its newest code came."""

    agent_type: str
    newest: str | None
    since_ms: int | None
    awake: int = 0
    awake_older: list[dict[str, object]] = field(default_factory=list)
    runs: int = 0
    runs_older: list[dict[str, object]] = field(default_factory=list)
    parked: list[dict[str, object]] = field(default_factory=list)

    def to_plain(self) -> dict[str, object]:
        # With the first of each kind by name.
        return {
            "agent_type": self.agent_type,
            "newest": self.newest,
            "since_at_ms": self.since_ms,
            "awake": self.awake,
            "awake_older": len(self.awake_older),
            "runs": self.runs,
            "runs_older": len(self.runs_older),
            "agents_with_older_code": self.awake_older[:NAMED_MAX],
            "runs_with_older_code": self.runs_older[:NAMED_MAX],
            "parked_runs": self.parked[:NAMED_MAX],
            "parked": len(self.parked),
        }


def code_standings(view: View, agent_type: str | None, *, served: bool) -> list[dict[str, object]]:
    """Every type that has an agent awake or a live run, and every origin of code that came, or this type alone."""
    found: dict[str, CodeVersion] = {}

    def of(kind: str, origin: str) -> CodeVersion:
        if kind not in found:
            found[kind] = CodeVersion(kind, view.code.newest.get(origin), view.code.since_ms.get(origin))
        return found[kind]

    for activation in _awake(view) if served else ():
        kind, package = type_of(activation.agent_id), package_of(activation.home)
        standing = of(kind, origin_of(kind))
        standing.awake += 1
        if not view.code.is_newest(package, origin_of(kind)):
            because = _why_awake(view, activation)
            standing.awake_older.append({"agent": activation.agent_id, "version": package, "because": because})
    for run in _live(view):
        package, origin = package_of(run.options.get("pool")), view.origin_of_code(run)
        standing = of(run.agent_type, origin)
        standing.runs += 1
        if run.parked:
            standing.parked.append({"run_id": run.run_id, "version": package, "error": run.parked})
        elif has_older_code(view, run):
            standing.runs_older.append({"run_id": run.run_id, "version": package})
    seen = {origin_of(kind) for kind in found}
    for origin in view.code.newest:
        if origin not in seen:
            of(origin, origin)
    rows = [each for kind, each in sorted(found.items()) if agent_type in (None, kind, origin_of(kind))]
    return [each.to_plain() for each in rows]


def has_older_code(view: View, run: Run) -> bool:
    """Whether a run is pinned to other code than came last for its class."""
    return not view.code.is_newest(package_of(run.options.get("pool")), view.origin_of_code(run))


def older_awake(view: View, agent_type: str | None) -> Iterator[Activation]:
    for activation in _awake(view):
        kind = type_of(activation.agent_id)
        is_meant = agent_type in (None, kind, origin_of(kind))
        if is_meant and not view.code.is_newest(package_of(activation.home), origin_of(kind)):
            yield activation


def code_counts(view: View, *, served: bool) -> dict[str, int]:
    """How many runs are parked for their input or their storage, and how many agents and live runs have older code."""
    has_older = not served or _may_have_older(view)
    runs = _live(view) if has_older else ()
    return {
        "parked_runs": len(view.parked),
        "agents_with_older_code": sum(1 for _ in older_awake(view, None)) if served and has_older else 0,
        "runs_with_older_code": sum(not each.parked and has_older_code(view, each) for each in runs),
    }


# In the usual case all that has or waits for a host has the same code, and to find that costs nothing.
def _may_have_older(view: View) -> bool:
    newest = set(view.code.newest.values())
    if not newest:
        return False
    waiting = [view.runs[run_id] for line in view.queues.keys for run_id in view.queues.first(line)[:1]]
    here = {package_of(host.spec) for host in view.hosts.values() if host.tenants}
    return len(newest | here | {package_of(run.options.get("pool")) for run in waiting}) > 1 or bool(view.held)


def _why_awake(view: View, activation: Activation) -> str:
    agent = activation.agent_id
    waits = view.awaiting.get(agent, 0)
    if waits:
        return "it waits for a run" if waits == 1 else f"it waits for {waits} runs"
    if agent in view.mailbox:
        return "mail is being handled"
    return "it is at work, with a call, a turn, a fiber or a callback, or has just come to rest"


def _awake(view: View) -> Iterator[Activation]:
    """The agents that are on a host, but for those that keep the code of a run: its child, and what belongs to that."""
    for agent in view.awake:
        activation, root = view.agents[agent], root_of(agent)
        if activation.host_id and run_of(view.runs, root) is None:
            yield activation


def _live(view: View) -> Iterator[Run]:
    return (view.runs[run_id] for family in view.children.values() for run_id in family)
