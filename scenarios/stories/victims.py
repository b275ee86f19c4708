"""Processes that can be killed, as the supervisor's overview (`ps`) shows them, and the one place in which they are."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from perdure.actors import Runtime  # which brings Ray with it


class Victim(NamedTuple):
    """A process that can be killed: `supervisor` or the id of a host."""

    name: str
    pid: int
    node: str


def supervisor_in(overview: dict[str, Any]) -> Victim:
    """The supervisor, as its overview (`ps`) shows it."""
    return Victim("supervisor", overview["supervisor"]["pid"], overview["supervisor"]["node"])


def hosts_in(overview: dict[str, Any]) -> dict[str, Victim]:
    """The hosts that are up, by their ids."""
    return {host["host"]: Victim(host["host"], host["pid"], host["node"]) for host in overview["hosts"] if host["up"]}


def home_of(overview: dict[str, Any], agent_id: str) -> str:
    """The id of the host of an agent, or an empty string while it sleeps."""
    return next((host for agent, host, _ in overview["agents"] if agent == agent_id), "")


async def struck(runtime: Runtime, victim: Victim) -> str:
    """Kill this process of what the runtime is connected to, and say how; empty if it has ended since."""
    found = await asyncio.to_thread(runtime.cluster.strike, {victim.name: victim.pid})
    return str(found[0].way) if found else ""
