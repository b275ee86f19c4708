"""The checks of jobs: desks' reports are compared with a plain loop."""

from __future__ import annotations

from collections import Counter
from typing import Final

from perdure.scenarios.cast.job_desk import Job, Report, total_of

ENDS: Final[dict[str, tuple[str, ...]]] = {
    "hopeless": ("error", "interrupted"),  # its last try may die instead of failing
    "cancelled": ("aborted",),
    "queued": ("unknown",),  # no fiber does it
}


def differences(jobs: list[Job], told: Report) -> list[str]:
    """The problems in the report of a desk, in sentences."""
    wrong = [f"{key} is parked" for key in told.parked]
    results = Counter(key for key, _ in told.results)
    totals, fired = dict(told.results), Counter(key for key, _ in told.fired)
    wrong += [f"{key} fired {early_ms} ms before its time" for key, early_ms in told.fired if early_ms > 0]
    for job in jobs:
        status, written = told.statuses.get(job.key, "unknown"), results[job.key]
        expected = ENDS.get(job.kind, ("completed",))
        if status not in expected:
            wrong.append(f"{job.key} is {status}, and should be {' or '.join(expected)}")
        if written != (expected == ("completed",)):
            wrong.append(f"{job.key} has {written} results")
        elif written and totals[job.key] != total_of(job.number):
            wrong.append(f"{job.key} came to {totals[job.key]}, and should come to {total_of(job.number)}")
        if fired[job.key] != (job.kind == "scheduled"):
            wrong.append(f"{job.key} fired {fired[job.key]} times")
    queued = [job.key for job in jobs if job.kind == "queued"]
    if told.served != queued:
        missing, twice = set(queued) - set(told.served), len(told.served) - len(set(told.served))
        wrong.append(
            f"the queue served {len(told.served)} of {len(queued)}, {twice} twice, {len(missing)} never, or out of order"
        )
    return wrong
