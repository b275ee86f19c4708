"""What REST tells: the overview, runs by pages, one run, the processes, the account; each as its description says."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.actors import Agent, RunContext
from perdure.actors.link.questions import Audited
from perdure.actors.rest import models
from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.gateway.cast import Walker
from tests.gateway.door import Door
from tests.gateway.world import visiting


class Teller(Agent):
    """Reports a milestone, and ends as it is told."""

    async def run(self, input: str, run: RunContext) -> str:
        await run.report_progress(fraction=0.5, phase="half", milestone="half-way", data={"input": input})
        if input == "fail":
            raise ValueError("as asked")
        return input.upper()


async def client_of(laboratory: Laboratory) -> Any:
    return laboratory._client  # noqa: SLF001 - the story's own


async def tell(laboratory: Laboratory, *inputs: str) -> None:
    """Play runs to their ends, one after the other; their ids are their inputs and numbers."""
    client = await client_of(laboratory)
    for number, each in enumerate(inputs):
        await client.run(Teller, each, run_id=f"{each}-{number}")


def fits(model: type[BaseModel], told: Any) -> None:
    """Nothing is missing, nothing is of another type, and nothing is told that is not described."""
    known = model.model_validate(told)
    assert set(told) <= set(type(known).model_fields), set(told) - set(type(known).model_fields)


@visiting(Teller)
async def test_pages_of_runs_follow_each_other_without_a_gap_while_new_ones_come(
    door: Door, laboratory: Laboratory, /
) -> None:
    await tell(laboratory, *"abcdefg")
    first = (await door.get("/api/runs?limit=3")).json()
    assert [each["run_id"] for each in first["runs"]] == ["g-6", "f-5", "e-4"]
    client = await client_of(laboratory)
    await client.run(Teller, "new", run_id="new")
    second = (await door.get(f"/api/runs?limit=3&before={first['next']}")).json()
    third = (await door.get(f"/api/runs?limit=3&before={second['next']}")).json()
    assert [each["run_id"] for each in second["runs"] + third["runs"]] == ["d-3", "c-2", "b-1", "a-0"]
    assert third["next"] is None
    fits(models.RunsPage, first)
    for each in first["runs"]:
        fits(models.RunLine, each)


@visiting(Teller)
async def test_runs_are_chosen_by_status_type_parent_and_words(door: Door, laboratory: Laboratory, /) -> None:
    await tell(laboratory, "good", "fail", "better")

    async def found(query: str) -> list[str]:
        return [each["run_id"] for each in (await door.get(f"/api/runs?{query}")).json()["runs"]]

    assert await found("status=error") == ["fail-1"]
    assert await found("status=error&status=completed") == ["better-2", "fail-1", "good-0"]
    assert await found("q=BETT") == ["better-2"]
    assert await found("q=teller&limit=1") == ["better-2"]
    assert await found("type=nobody:Nothing") == []
    assert await found("parent=nobody@m:N") == []
    assert len(await found(f"type={Teller.__module__}:Teller")) == 3
    assert await found("error=As%20Asked") == ["fail-1"]
    assert await found("prefix=be&status=completed") == ["better-2"]
    assert await found("ended_before_ms=5") == await found("parked=true") == []
    assert await found("requested_since_ms=5&ended_since_ms=5") == ["better-2", "fail-1", "good-0"]
    refused = await door.get("/api/runs?parked=true&status=error")
    assert (refused.status, refused.json()["error"]["field"]) == (400, "parked")


@visiting(Teller, limits=replace(QUICK, retained_in_memory=3))
async def test_a_run_that_left_memory_is_on_its_page_like_the_others(door: Door, laboratory: Laboratory, /) -> None:
    names = [f"r{number}" for number in range(12)]
    await tell(laboratory, *names)
    await asyncio.sleep(60)  # idle, so a checkpoint is taken, and what is settled leaves memory
    assert len(laboratory.supervisors[-1].view.runs) == 3
    await tell(laboratory, "late")
    seen, before = [], ""
    while before is not None:
        page = (await door.get(f"/api/runs?limit=5{before}")).json()
        seen += [each["run_id"] for each in page["runs"]]
        before = page["next"] and f"&before={page['next']}"
    assert seen == ["late-0", *(f"r{number}-{number}" for number in reversed(range(12)))]


@visiting(Teller)
async def test_everything_about_a_run_is_told_as_it_is_described(door: Door, laboratory: Laboratory, /) -> None:
    await tell(laboratory, "good", "fail")
    good, failed = [(await door.get(f"/api/runs/{each}")).json() for each in ("good-0", "fail-1")]
    assert (good["status"], good["output"], failed["status"]) == ("completed", "GOOD", "error")
    assert "as asked" in failed["error"]
    fits(models.RunTold, good)
    fits(models.RunTold, failed)
    explained = (await door.get("/api/runs/good-0/explain")).json()
    assert "completed" in " ".join(explained["lines"])
    assert (await door.get("/api/runs/nobody/explain")).status == 404


@visiting(Walker)
async def test_the_overview_the_processes_the_account_and_the_limits_are_told_as_described(
    door: Door, laboratory: Laboratory, /
) -> None:
    client = await client_of(laboratory)
    await client.start(Walker, 5, run_id="walk")
    told = (await door.get("/api/overview")).json()
    fits(models.OverviewTold, told)
    assert [each["run_id"] for each in told["live"]] == ["walk"]
    assert told["supervisor"]["commits"] > 0
    assert (await door.get("/api/overview?live=0")).json()["live"] == []
    fits(models.HostsTold, (await door.get("/api/hosts")).json())
    audit = (await door.get("/api/audit")).json()
    assert set(audit) == set(Audited.__annotations__)
    assert audit["balanced"]
    limits = (await door.get("/api/limits")).json()["limits"]
    assert limits["ended_kept_ms"] is None, "infinity is null"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=many", "limit"),
        ("before=-1", "before"),
        ("before=99999999999999999999", "before"),
        ("status=odd", "status.0"),
        ("unknown=1", "unknown"),
        (f"q={'x' * 300}", "q"),
        ("limit=1&limit=2", "limit"),
    ],
)
@visiting(Walker)
async def test_a_question_that_does_not_fit_names_the_field(
    door: Door, laboratory: Laboratory, /, query: str, field: str
) -> None:
    answer = await door.get(f"/api/runs?{query}")
    assert (answer.status, answer.json()["error"]["field"]) == (400, field)


@visiting(Teller)
async def test_what_no_route_takes_is_refused_in_the_same_form_as_everything_else(
    door: Door, laboratory: Laboratory, /
) -> None:
    for method, path, status, kind in (
        ("GET", "/api/nothing", 404, "NotFound"),
        ("GET", "/nothing/at/all", 404, "NotFound"),
        ("PUT", "/api/runs", 405, "MethodNotAllowed"),
    ):
        answer = await door.ask(method, path)
        assert (answer.status, answer.json()["error"]["type"]) == (status, kind)
        assert answer.json()["error"]["message"] == f"{method} {path} is nothing that is served here"
    assert set(answer.headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}
    assert (await door.ask("HEAD", "/api/runs")).status == 200
