"""What those ask for who look after a data directory and what serves it, or who watch it."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias


class ShowAgent(NamedTuple):
    """What does the ledger know of an agent? None if nothing."""

    agent_id: str


class Passivate(NamedTuple):
    """Let idle agents go at once; these, if they are named, as soon as they are idle. For `begin_nothing_s` seconds the host leaves new
    turns and webhooks to the supervisor (`doors`)."""

    agents: list[str] | None = None
    begin_nothing_s: float = 0.0


class WindDown(NamedTuple):
    """Begin nothing new for a while. How many agents are at work?"""


class Upgrade(NamedTuple):
    """Which code stands where, of this type or of all? With `now`, agents that have older code and are at rest leave at once."""

    agent_type: str | None = None
    now: bool = False


class Keep(NamedTuple):
    """A wish with its arguments: `storages`, `hold`, or `cut` (see `actors.supervisor.keeping`)."""

    wish: str
    arguments: list[object]


class PageOfRuns(NamedTuple):
    """A page of runs, newest request first (`ledger.Wanted`), and where the next one begins."""

    parent: str | None
    agent_type: str | None
    statuses: list[str] | None
    words: str
    before: int | None
    limit: int


class KeptFrames(NamedTuple):
    """The kept events of runs that have ended, for the first so many of these. In the place of a run that has not, or of which there are
    too many, stands None."""

    run_ids: list[str]


class ChangedRuns(NamedTuple):
    """Which runs have changed after a fact? See `actors.supervisor.changes`."""

    after: int | None
    limit: int


class AtStake(NamedTuple):
    """How much would be deleted with these runs, or with this agent?"""

    run_ids: list[str]
    agent_id: str = ""


KeepingQuestion: TypeAlias = ShowAgent | WindDown | Upgrade | Keep | PageOfRuns | KeptFrames | ChangedRuns | AtStake
"""The questions among these."""
