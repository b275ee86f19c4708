"""What a killed process carried, and whether all of it runs again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any


@dataclass
class Loss:
    """What killed processes carried, which must run again.

    Attributes:
        epoch: the life of the supervisor that ended, or None.
        runs: those that were on the killed hosts, with their attempts.
        agents: those that lived there and had live runs, with their incarnations.
    """

    epoch: int | None
    runs: dict[str, int]
    agents: dict[str, int]

    @classmethod
    def of(cls, kind: str, names: Collection[str], overview: dict[str, Any]) -> Loss:
        """By the last look before the kill. `kind` is `supervisor`, `cluster` (everything), or anything else for hosts of these ids."""
        if kind == "supervisor":
            return cls(overview["epoch"], {}, {})
        everything = kind == "cluster"
        runs = {
            row["run_id"]: row["attempt"]
            for row in overview["live"]
            if row["host"] and (everything or row["host"] in names)
        }
        parents = {row["parent"] for row in overview["live"]}
        agents = {
            agent: incarnation
            for agent, host, incarnation in overview["agents"]
            if agent in parents and host and (everything or host in names)
        }
        return cls(overview["epoch"] if everything else None, runs, agents)

    @property
    def told(self) -> str:
        """In words."""
        if self.epoch is not None and not self.runs:
            return "nothing is decided until it is back"
        if not self.runs and not self.agents:
            return "no live run was on it"
        runs = "1 run was" if len(self.runs) == 1 else f"{len(self.runs)} runs were"
        if len(self.agents) > 1:
            return f"{runs} on it, and {len(self.agents)} agents that have live runs"
        return f"{runs} on it" + (", and their parent" if self.agents else "")

    def left(self, overview: dict[str, Any]) -> list[str]:
        """The runs and agents of it that neither run again nor have ended. An agent that sleeps was put to sleep by a later life."""
        if self.epoch is not None and overview["epoch"] <= self.epoch:
            return ["supervisor"]
        rows = {row["run_id"]: row for row in overview["live"]}
        lives = {agent: (bool(host), incarnation) for agent, host, incarnation in overview["agents"]}
        runs = [run_id for run_id, attempt in self.runs.items() if not _is_again(rows.get(run_id), attempt)]
        return runs + [
            agent for agent, before in self.agents.items() if lives.get(agent, (True, before + 1)) <= (True, before)
        ]

    def is_mended(self, overview: dict[str, Any]) -> bool:
        """Whether all of it runs again or has ended."""
        return not self.left(overview)


def _is_again(row: dict[str, Any] | None, attempt: int) -> bool:
    return row is None or (row["attempt"] > attempt and row["status"] == "running")
