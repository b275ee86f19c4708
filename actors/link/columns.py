"""Messages in columns: what many runs that are alike have in common is said once.

A batch of first attempts goes to its host as one `Starts`, and their ends to whoever waits for them as one `RunsEnded`. Runs that are not
alike have a `Start` and a `RunEnded` of their own, and both sides do with the members of a batch what they do with those.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple


class Starts(NamedTuple):
    """Carry the first attempts at many runs of one type, with the same options: `Start` for each."""

    agent_type: str
    options: dict[str, object]
    run_ids: list[str]
    incarnations: list[int]
    inputs: list[bytes]


class RunsEnded(NamedTuple):
    """Many runs of one type that were waited for have completed: `RunEnded` for each."""

    agent_type: str
    run_ids: list[str]
    outputs: list[bytes | None]
    summaries: list[str]

    def outcomes(self) -> Iterator[tuple[str, dict[str, object]]]:
        """Each run with its outcome."""
        for run_id, output, summary in zip(self.run_ids, self.outputs, self.summaries, strict=True):
            yield (
                run_id,
                {
                    "status": "completed",
                    "summary": summary,
                    "error": "",
                    "output": output,
                    "agent_type": self.agent_type,
                },
            )
