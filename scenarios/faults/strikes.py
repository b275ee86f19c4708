"""A strike: which processes of a directory it kills, what they carried, and when all of that was at work again.

`perdure kill` makes one strike. `chaos` makes them by the clock, and the scenarios of `perdure run` after amounts of work (`by_progress`).
All of them read the supervisor's overview (`ps`): the one before the strike says what was hit, and the later ones what is not yet back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self

from perdure.policies import StrikeTarget, carriers, victims
from perdure.scenarios.live_view import were

if TYPE_CHECKING:
    from perdure import Runtime  # which brings Ray with it

Overview = dict[str, Any]
EVERYTHING: Final = ("cluster", StrikeTarget.RAY)  # kinds of strikes that every process feels
NAMED_MAX: Final = 3


class Victim(NamedTuple):
    """A process that can be killed: `supervisor`, the id of a host, or `gcs` or `raylet`."""

    name: str
    pid: int
    node: str

    def __str__(self) -> str:
        who = self.name if self.name in ("supervisor", "gcs", "raylet") else f"host {self.name}"
        return f"{who} (process {self.pid} on {self.node})"


class System(Protocol):
    def now_s(self) -> float:
        """The time, from any beginning."""

    async def ask(self, name: str, *args: object) -> Any:
        """Ask the supervisor. May raise `SupervisorUnreachable`."""

    async def kill(self, victim: Victim) -> str:
        """Kill a process, and say how. Empty if it had ended before."""


def supervisor_in(overview: Overview) -> Victim:
    return Victim("supervisor", overview["supervisor"]["pid"], overview["supervisor"]["node"])


def hosts_in(overview: Overview) -> dict[str, Victim]:
    return {host["host"]: Victim(host["host"], host["pid"], host["node"]) for host in overview["hosts"] if host["up"]}


def home_of(overview: Overview, agent_id: str) -> str:
    # Empty while it sleeps.
    return next((host for agent, host, _ in overview["agents"] if agent == agent_id), "")


def chosen(
    target: StrikeTarget,
    overview: Overview,
    roll: Callable[[], float],
    fraction: float | None = None,
    vital: Sequence[Victim] = (),
) -> list[Victim]:
    """The victims of a strike, by the dice. `vital` are the processes of Ray that may be hit."""
    if target is StrikeTarget.SUPERVISOR:
        return [supervisor_in(overview)]
    if target is StrikeTarget.RAY:
        return [vital[int(roll() * len(vital))]] if vital else []
    hosts = hosts_in(overview)
    homes = ((agent, host) for agent, host, _ in overview["agents"] if host)
    return [hosts[each] for each in victims(target, carriers(hosts, homes), fraction, roll)]


async def kill_by(runtime: Runtime, victim: Victim) -> str:
    """Kill this process of what the runtime is connected to, and say how; empty if it has ended since."""
    found = await asyncio.to_thread(runtime.cluster.strike, {victim.name: victim.pid})
    return str(found[0].way) if found else ""


@dataclass
class Strike:
    """Processes that were killed.

    Attributes:
        kind: `supervisor`, a kind that every process feels, or anything else for hosts.
        victims: how each was killed.
        epoch: the life of the supervisor that ended, or None.
        runs: the runs that were on the killed hosts, with their attempts.
        agents: the agents there that had live runs, with their incarnations.
        left: what is not at work again.
        took_ms: until all of it was at work again or had ended.
    """

    kind: str
    victims: dict[Victim, str]
    at_s: float
    epoch: int | None = None
    runs: dict[str, int] = field(default_factory=dict)
    agents: dict[str, int] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    took_ms: float | None = None

    @classmethod
    def of(cls, kind: str, hit: dict[Victim, str], overview: Overview, at_s: float) -> Self:
        """By the last overview before it."""
        is_all, names = kind in EVERYTHING, {each.name for each in hit}
        strike = cls(kind, hit, at_s, overview["epoch"] if is_all or kind == StrikeTarget.SUPERVISOR else None)
        parents = {row["parent"] for row in overview["live"]}
        for row in overview["live"]:
            if row["host"] and (is_all or row["host"] in names):
                strike.runs[row["run_id"]] = row["attempt"]
        for agent, host, incarnation in overview["agents"]:
            if agent in parents and host and (is_all or host in names):
                strike.agents[agent] = incarnation
        return strike

    def __str__(self) -> str:
        if self.epoch is not None and not self.runs:
            return "nothing is decided until it is back"
        if not self.runs and not self.agents:
            return "no live run was on it"
        runs = were(len(self.runs), "run")
        if len(self.agents) > 1:
            return f"{runs} on it, and {len(self.agents)} agents that have live runs"
        return f"{runs} on it" + (", and their parent" if self.agents else "")

    def has_recovered(self, overview: Overview, at_s: float) -> bool:
        # An agent that sleeps was put to sleep by a later life.
        if self.took_ms is None:
            self.left = self._left(overview)
            self.took_ms = None if self.left else (at_s - self.at_s) * 1000
        return self.took_ms is not None

    def _left(self, overview: Overview) -> list[str]:
        if self.epoch is not None and overview["epoch"] <= self.epoch:
            return ["supervisor"]
        rows = {row["run_id"]: row for row in overview["live"]}
        lives = {agent: (bool(host), incarnation) for agent, host, incarnation in overview["agents"]}
        runs = [run_id for run_id, attempt in self.runs.items() if not _is_again(rows.get(run_id), attempt)]
        return runs + [each for each, life in self.agents.items() if lives.get(each, (True, life + 1)) <= (True, life)]


def _is_again(row: Overview | None, attempt: int) -> bool:
    return row is None or (row["attempt"] > attempt and row["status"] == "running")


def some(names: Sequence[object]) -> str:
    more = len(names) - NAMED_MAX
    return ", ".join(map(str, names[:NAMED_MAX])) + (f" and {more} more" if more > 0 else "")
