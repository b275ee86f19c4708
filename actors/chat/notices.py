"""The words in which a chat is told of runs that went on without it."""

from __future__ import annotations

from typing import ClassVar

from perdure.actors.life.results import MilestoneInfo, RunInfo, RunResult
from perdure.ledger import Status


class Notices:
    """The default texts; a chat agent overrides the methods that ask for them."""

    _ENDS: ClassVar[dict[str, str]] = {
        Status.COMPLETED: "has completed",
        Status.ERROR: "has failed",
        Status.ABORTED: "was cancelled",
        Status.INTERRUPTED: "was interrupted, and its end is not known",
    }

    @classmethod
    def completion(cls, run: RunInfo, result: RunResult) -> str:
        """The end of a detached run, with what it came to."""
        told = result.summary or (result.output if isinstance(result.output, str) else "")
        detail = result.error if not result.ok else told
        what = f"The background run {run.run_id} ({_kind(run)}) {cls._ENDS.get(result.status, result.status)}."
        return f"{what}\n\n{detail}" if detail else what

    @classmethod
    def milestone(cls, run: RunInfo, milestone: MilestoneInfo) -> str:
        """A milestone that a detached run reached."""
        what = f"The background run {run.run_id} ({_kind(run)}) reached {milestone.name}."
        return f"{what} {milestone.message}" if milestone.message else what


def _kind(run: RunInfo) -> str:
    name = (run.display or {}).get("name")
    return str(name) if name else run.agent_type.rpartition(":")[2]
