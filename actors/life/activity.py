"""What the current code is doing, and for whom: a context variable that follows tasks and worker threads.

A run that is requested without an id gets one derived from here: of the origin (a run, a mail, a call), the step, the request, and how
often it was made. So code that is entered again after a death requests the same runs.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import NamedTuple, cast

from perdure.actors.life.run_context import RunContext
from perdure.actors.life.steps import WORK, PieceOfWork
from perdure.actors.life.waits import RemembersWaits, Waits
from perdure.actors.tasks import OWNER
from perdure.ledger import derived_run_id


@dataclass(slots=True)
class Activity(PieceOfWork):
    """One piece of an agent's work. `run` is set inside a run: what is reported is reported of it. With `is_repeated`, the
    runtime may break it off, and enters it again then. `began_by` names the person who has it done, where that is known, for the runs that
    it requests. `within` is the origin of the work that this is a part of, and `fiber` whose body it is. `is_start`: it is
    `on_start`, which has not returned."""

    run_id: str = ""
    run: RunContext | None = None
    is_repeated: bool = False
    began_by: str = ""
    within: str = ""
    fiber: RemembersWaits[Waits] | None = None
    is_start: bool = False

    @property
    def own_run(self) -> RunContext | None:
        # The run whose `run` this is the code of. A turn that answers a run, its tools and undos are pieces of work of their own.
        return self.run if self.run is not None and self.origin == self.run_id else None

    def derive(self, agent_type: str, digest: str) -> str:
        nth = self.occurrence(f"{agent_type}|{digest}")
        origin = f"{self.origin}\0{self.step}" if self.step else self.origin
        return derived_run_id(origin, agent_type, digest, nth)


CALL: ContextVar[str] = ContextVar("perdure_call", default="")
"""The call of a tool that is executed in its agent's own process; its milestones are counted apart."""

ACTIVITY = cast("ContextVar[Activity | None]", WORK)  # steps know no more of it than `PieceOfWork`


class Whose(NamedTuple):
    """Whose code runs: the agent's address, the run that it is in, and the piece of work. Empty in code of no agent. `behalf` are the
    agents on whose tool calls' behalf it runs."""

    agent: str = ""
    run: str = ""
    work: str = ""
    behalf: tuple[str, ...] = ()


def whose() -> Whose:
    """Whose code runs here: in a task, on one of our threads, or on a thread that an author's code has started (`inherit_contexts`)."""
    agent = OWNER.get()
    if not agent:
        return Whose()
    activity = ACTIVITY.get()
    if activity is None:
        return Whose(agent)
    return Whose(agent, activity.run_id, activity.origin, () if activity.run is None else activity.run.behalf)
