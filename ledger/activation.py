"""Where agents live: the activation of an agent, and the host that the supervisor sees.

An activation is kept in the ledger. A host is not: it is seen, and a boot looks again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

from perdure.ledger.wording import counted
from perdure.policies import INFINITY, NodeDrain, amount_in_words, label_in_words

PACKAGE: Final = "package"  # beside what a class asks of Ray in its `runtime_env`
FORGIVEN_AFTER_MS: Final = 600_000  # twice the longest pause before anything is tried again, by the default limits


HostSpec: TypeAlias = "list[Any]"
"""What an agent class asks of its host: processors, other resources as `(name, amount)`, the text of its `runtime_env` or an empty one,
whether it wants a host to itself, and its label selector as `(label, expression)`, which is left out if it is empty."""


@dataclass(slots=True)
class Activation:
    """Where an agent lives, whether it must be woken, and when. `run_id` names the run that it executes, if any.

    `owes` is set when its alarm rings while it is awake, until it has set the next one: it may have been leaving. A `doomed` agent is being
    deleted with its descendants. A life that is `stopping` was told to end. `confirmed` says that the agent came up, and `begun_in` names
    the session in which its host was told to begin this life: these are seen, not recorded.

    `losses` counts the hosts that died under it since it last handled mail or left cleanly; the pause before it is woken grows with it.
    `deaths` counts the same, but only time resets it. An agent with too many deaths must be alone (`placements`).

    `reported` is the highest sequence of its storage that it has reported, which its next life must find again; None if it has yet to be
    looked up in the snapshot. `cause` says how its last life ended, if it was lost, and `excused` whether that was on purpose.
    `called` says that a call or a letter woke it: then the child of a run is also an agent of its own standing.
    `calls` are those that wait for people (`CallsAsked`), or None.
    """

    agent_id: str
    incarnation: int = 0
    host_id: str = ""
    run_id: str = ""
    unclean: bool = False
    wake_at_ms: int = 0
    losses: int = 0
    home: HostSpec | None = None
    alarm_at_ms: int = 0
    owes: bool = False
    doomed: bool = False
    deaths: int = 0
    died_at_ms: int = 0
    stopping: bool = False
    reported: int | None = None
    cause: str = ""
    called: bool = False
    calls: dict[str, bytes] | None = None
    excused: bool = False
    confirmed: bool = False
    begun_in: int = 0

    def at_rest(self) -> Activation:
        return Activation(self.agent_id, self.incarnation, reported=self.reported, called=self.called)

    def died(self, at_ms: int) -> None:
        self.forgive(at_ms)
        self.losses, self.deaths, self.died_at_ms = self.losses + 1, self.deaths + 1, at_ms

    def forgive(self, at_ms: int) -> None:
        # By time alone: reset by mail or sleep, an agent that kills its host at each try would be innocent again.
        if at_ms - self.died_at_ms >= FORGIVEN_AFTER_MS:
            self.deaths = 0


@dataclass(slots=True)
class HostView:
    """A host as the supervisor sees it. `load` counts the tenants that do not merely wait for their children, without the `resting` ones,
    which merely wait otherwise, as the host says; `worn` says that a tenant
    left a thread behind; `late_at_ms` is when it was last seen to be behind with its work; `blocked` says what keeps its event loop now;
    `room` is how many agents may be at work there; `is_loading` says that it has come up, and has not yet told that it has imported the
    code of the agents that were awake then; `waits` says that its start waits for a node, or for what is in use on one;
    `found` says that a life of the supervisor before this one started it, so that its past is unknown.
    """

    host_id: str
    spec: HostSpec | None
    up: bool = False
    is_loading: bool = False
    waits: bool = False
    found: bool = False
    draining: bool = False
    worn: bool = False
    pid: int = 0
    node: str = ""
    rss_mb: int = 0
    tenancies: int = 0
    load: int = 0
    resting: int = 0
    exclusive: bool = False
    late_at_ms: int = 0
    blocked: str = ""
    room: float = INFINITY
    tenants: dict[str, None] = field(default_factory=dict)


STARTS_MAX: Final = 4  # hosts of a pool that do not come up, in a row, until those that wait for one are told


@dataclass(slots=True)
class PoolTrouble:
    """Why no host of a pool comes up: seen, not recorded. `starts` counts those that failed in a row, since `since_at_ms`. `is_lack` says
    that no node of the cluster has what they ask for."""

    spec: HostSpec | None
    cause: str
    starts: int
    since_at_ms: int
    is_lack: bool = False

    @property
    def is_plain(self) -> bool:
        return self.is_lack or self.starts >= STARTS_MAX  # fewer failed starts may be a mishap

    def __str__(self) -> str:
        return self.told(f", after {self.starts} tries")

    def told(self, tries: str = "") -> str:
        """In words; those without the number of `tries` are the same for as long as the cause is."""
        kind = _asked_of_host(self.spec)
        if self.is_lack:
            return f"no host{kind} can be had: {self.cause}"
        return f"no host{kind} comes up{tries}: {self.cause}"


def blind(elsewhere: Mapping[str, str]) -> str:
    """The nodes that do not see the data directory, in words."""
    return "; ".join(
        f"node {node} has {instead} at its path, so no host goes there" for node, instead in elsewhere.items()
    )


def drained(node: str, drain: NodeDrain) -> str:
    """A node that drains, in words."""
    end = (
        f" until {datetime.fromtimestamp(drain.until_ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC" if drain.until_ms else ""
    )
    leave = [counted(len(drain.hosts), "host")] * bool(drain.hosts) + ["the supervisor"] * drain.is_here
    return f"node {node} drains{end}: no host goes there" + (
        f", and what is there leaves ({', '.join(leave)})" if leave else ""
    )


def _asked_of_host(spec: HostSpec | None) -> str:
    if spec is None:
        return ""
    environment = {name: value for name, value in json.loads(spec[2] or "{}").items() if name != PACKAGE}
    asked = [f"num_cpus={spec[0]:g}"] if spec[0] else []
    asked += [amount_in_words(name, amount) for name, amount in spec[1]]
    asked += [label_in_words(label) for labels in spec[4:] for label in labels]
    asked += ["runtime_env with " + ", ".join(sorted(environment))] if environment else []
    asked += [f"code {package[:8]}"] if (package := package_of(spec)) else []
    return f" ({', '.join(asked)})" if asked else ""


def pool_key(spec: HostSpec | None) -> str:
    """The name of the pool for what an agent class asks of its host; empty for the default pool. Whether an agent wants a host to itself,
    and how its number of processors is written, makes no other pool."""
    wishes = [] if spec is None else [*spec[:3], *spec[4:]]
    return repr([float(wishes[0]), *wishes[1:]]) if any(wishes) else ""


def wants_to_be_alone(spec: HostSpec | None) -> bool:
    return bool(spec and spec[3])


def package_of(spec: HostSpec | None) -> str:
    """The package of code that hosts of this pool are started with; empty if there is none."""
    return str(json.loads(spec[2]).get(PACKAGE, "")) if spec is not None and spec[2] else ""


def with_package(spec: HostSpec | None, package: str) -> HostSpec | None:
    """The same wishes, for hosts with this package of code instead; None for the default pool."""
    cpus, resources, text, exclusive, *labels = spec or [0, [], "", False]
    environment = {name: value for name, value in json.loads(text or "{}").items() if name != PACKAGE}
    if package:
        environment[PACKAGE] = package
    text = json.dumps(environment, sort_keys=True) if environment else ""
    wishes = [cpus, resources, text, exclusive, *labels]
    return wishes if any(wishes) else None


LIVES_KEPT: Final = 1000


class Lives:
    """When each agent's last life ended, as far as that may still be asked.

    A call is no fact, so nothing durable says to which life of the agent it was handed. Only a life that was there when the call was made
    can have had it. One that is still there can be asked; one that ended since may have taken the call with it. So the end of the last life
    is enough, as the number of the fact that tells of it. The oldest ends beyond `LIVES_KEPT` are forgotten: from then on, an agent without
    an end of its own counts as if its last life had ended with the latest of those.
    """

    def __init__(self, forgotten: int = 0, ends: dict[str, int] | None = None) -> None:
        self._forgotten, self._ends = forgotten, ends or {}

    def ended(self, agent: str, seq: int) -> None:
        self._ends.pop(agent, None)  # entered again at the end: the oldest is the first
        self._ends[agent] = seq
        if len(self._ends) > LIVES_KEPT:
            self.forget(self._ends.pop(next(iter(self._ends))))

    def forget(self, seq: int) -> None:
        self._forgotten = max(self._forgotten, seq)

    def last_end(self, agent: str) -> int:
        # No life of this agent has ended after this fact.
        return self._ends.get(agent, self._forgotten)

    def to_plain(self) -> list[object]:
        return [self._forgotten, self._ends]
