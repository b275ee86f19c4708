"""Strikes at processes of anybody's work: whom they hit, and what was on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from perdure.policies import Target, carriers, victims
from perdure.scenarios.stories.victims import Victim, hosts_in, supervisor_in


class Ground(Protocol):
    """What a strike needs of a world: the stage of a story, or a directory that somebody else's processes serve."""

    def now_s(self) -> float:
        """The time, from any beginning."""

    async def ask(self, name: str, *args: Any) -> Any:
        """Ask the supervisor. May raise `SupervisorUnreachable`."""

    async def kill(self, victim: Victim) -> str:
        """Kill a process, and say how. Empty if it had ended before."""


def aimed(
    target: Target, overview: dict[str, Any], fraction: float | None, roll: Callable[[], float], vital: list[Victim]
) -> list[Victim]:
    """Whom a strike hits, by the dice. `vital` are the processes of Ray that may be hit."""
    if target is Target.SUPERVISOR:
        return [supervisor_in(overview)]
    if target is Target.RAY:
        return [vital[int(roll() * len(vital))]] if vital else []
    hosts = hosts_in(overview)
    homes = ((agent, host) for agent, host, _ in overview["agents"] if host)
    return [hosts[each] for each in victims(target, carriers(hosts, homes), fraction, roll)]


def kind_of(target: Target) -> str:
    """The kind of the loss."""
    return {Target.SUPERVISOR: "supervisor", Target.RAY: "cluster"}.get(target, "host")


def in_detail(victim: Victim) -> str:
    """`host h1 (process 42 on box)`."""
    who = victim.name if victim.name in ("supervisor", "gcs", "raylet") else f"host {victim.name}"
    return f"{who} (process {victim.pid} on {victim.node})"


def carried(overview: dict[str, Any], names: set[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """The live runs and the agents on these hosts."""
    runs = [row for row in overview["live"] if row["host"] in names]
    return runs, [agent for agent, host, _ in overview["agents"] if host in names]
