"""The story of jobs: what is drawn, what is complained about, and the whole of it in the simulated world."""

from __future__ import annotations

from collections import Counter

import pytest

from perdure.scenarios.cast.job_desk import KINDS, Job, Report, draw_jobs, total_of, wrong_jobs
from tests.scenarios.command import perdure_json


def test_the_jobs_are_those_of_the_seed_and_of_every_kind() -> None:
    jobs = draw_jobs(500, 7, 4.0)
    assert jobs == draw_jobs(500, 7, 4.0)
    assert Counter(job.kind for job in jobs).keys() == KINDS.keys()
    assert len({job.key for job in jobs}) == 500
    assert {job.key for job in jobs}.isdisjoint(job.key for job in draw_jobs(500, 8, 4.0))


JOBS = [
    Job(key="plain-1", kind="plain", number=1),
    Job(key="hopeless-2", kind="hopeless", number=2),
    Job(key="cancelled-3", kind="cancelled", number=3),
    Job(key="scheduled-4", kind="scheduled", number=4),
    Job(key="queued-5", kind="queued", number=5),
    Job(key="queued-6", kind="queued", number=6),
]
RIGHT = Report(
    statuses={"plain-1": "completed", "hopeless-2": "error", "cancelled-3": "aborted", "scheduled-4": "completed"},
    results=[("plain-1", total_of(1)), ("scheduled-4", total_of(4))],
    fired=[("scheduled-4", -3)],
    served=["queued-5", "queued-6"],
    parked=[],
)


def test_what_is_as_it_should_be_is_not_complained_about() -> None:
    assert wrong_jobs(JOBS, RIGHT) == []


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"statuses": {**RIGHT.statuses, "plain-1": "running"}}, "plain-1 is running, and should be completed"),
        ({"statuses": {**RIGHT.statuses, "cancelled-3": "completed"}}, "cancelled-3 is completed"),
        ({"results": RIGHT.results[1:]}, "plain-1 has 0 results"),
        ({"results": [*RIGHT.results, *RIGHT.results[:1]]}, "plain-1 has 2 results"),
        ({"results": [("plain-1", 0), *RIGHT.results[1:]]}, "plain-1 came to 0"),
        ({"fired": []}, "scheduled-4 fired 0 times"),
        ({"fired": RIGHT.fired * 2}, "scheduled-4 fired 2 times"),
        ({"fired": [("scheduled-4", 5)]}, "5 ms before its time"),
        ({"served": ["queued-6", "queued-5"]}, "out of order"),
        ({"parked": ["queued-5"]}, "queued-5 is parked"),
    ],
)
def test_whatever_differs_is_told(change: dict[str, object], complaint: str) -> None:
    told = wrong_jobs(JOBS, RIGHT.model_copy(update=change))
    assert any(complaint in each for each in told), told


def test_jobs_in_the_simulated_world_are_verified_though_hosts_and_supervisors_die() -> None:
    asked = ["run", "jobs", "--world", "sim", "--jobs", "80", "--desks", "3", "--kills", "4", "--seed", "3"]
    told = perdure_json(*asked)
    assert told["verified"]
    assert told["kills"] == {"desk": 2, "supervisor": 2}
    assert sum(told["jobs"][status] for status in ("completed", "error", "aborted", "interrupted")) <= 80
    assert told["schedules"]["fired"] > 0
    assert told["queue"]["served"] > 0
    assert told["deliveries"]["pending"] == 0
