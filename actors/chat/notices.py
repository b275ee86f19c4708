"""The messages that tell a chat of its detached runs."""

from __future__ import annotations

import json
from typing import Final

from pydantic_core import to_jsonable_python

from perdure.actors.code.author_call import without_middle
from perdure.actors.life.results import MilestoneInfo, RunInfo, RunResult
from perdure.ledger import Status, preview_of

NOTICE_CHARS_MAX: Final = 8_000
"""Of a structured result in the message that tells a chat of the end of a detached run."""


def notice_of_end(run: RunInfo, result: RunResult) -> str:
    """The message that tells of the end of a run."""
    detail = _shown_result(result) if result.ok else result.error
    what = f"The background run {run.run_id} ({_shown_name(run)}) {_ENDS.get(result.status, result.status)}."
    return f"{what}\n\n{detail}" if detail else what


def notice_of_milestone(run: RunInfo, milestone: MilestoneInfo) -> str:
    """The message that tells of a milestone."""
    what = f"The background run {run.run_id} ({_shown_name(run)}) reached {milestone.name}."
    return f"{what} {milestone.message}" if milestone.message else what


_ENDS: dict[str, str] = {
    Status.COMPLETED: "has completed",
    Status.ERROR: "has failed",
    Status.ABORTED: "was cancelled",
    Status.INTERRUPTED: "was interrupted, and its end is not known",
}


def _shown_result(result: RunResult) -> str:
    """The summary of a run, and its output if that is more: what the model knows of the result."""
    output = result.output_or(None)
    if output is None or isinstance(output, str):
        return result.summary or output or ""
    whole = json.dumps(
        to_jsonable_python(output, by_alias=True, fallback=str), ensure_ascii=False, separators=(",", ":")
    )
    if not result.summary or whole == result.summary or result.summary == preview_of(json.loads(whole)):
        return without_middle(whole, NOTICE_CHARS_MAX)
    return f"{result.summary}\n\n{without_middle(whole, NOTICE_CHARS_MAX)}"


def _shown_name(run: RunInfo) -> str:
    name = (run.display or {}).get("name")
    return str(name) if name else run.agent_type.rpartition(":")[2]
