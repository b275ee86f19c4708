"""Runs that wait for others, as an author asks for them: what they are given, what is refused, and what holds when processes die."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import (
    Agent,
    Detached,
    EndOf,
    MilestoneOf,
    RunContext,
    RunFailed,
    RunHandle,
    RunInfo,
    all_of,
    any_of,
    exposed,
    n_of,
)
from perdure.ledger import AwaitedInsideHandler, BadRequest, ConflictingRequest, UnknownRun
from perdure.policies import DEPTH_MAX, LEAVES_MAX, Of
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from tests.kit import ROOMY, Stage, address, staged


class Source(Agent):
    """Reaches a milestone, works for a while, and returns its number or fails."""

    async def run(self, input: dict[str, Any], run: RunContext) -> dict[str, Any]:
        await run.report_progress(milestone="sources", data=input["n"])
        await asyncio.sleep(input.get("s", 0.1))
        if input.get("fails"):
            raise ValueError("no sources")
        return {"n": input["n"], "padding": "x" * input.get("padding", 0)}


class Writer(Agent):
    """Says what it was given."""

    async def run(self, input: str, run: RunContext) -> list[Any]:
        await run.report_progress(0.5)
        return [_number(each.output) if hasattr(each, "output") else each for each in run.joined]


def _number(output: Any) -> Any:
    return output["n"] if isinstance(output, dict) else output


class Editor(Agent):
    """Has articles written."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS told (run_id VARCHAR, status VARCHAR, error VARCHAR)")

    def on_done(self, run: RunInfo, result: Any) -> None:
        self.sql("INSERT INTO told VALUES ($1, $2, $3)", [run.run_id, result.status, result.error])

    @exposed
    async def told(self) -> list[tuple[str, str, str]]:
        return [tuple(row) for row in self.sql("SELECT * FROM told ORDER BY run_id")]

    async def sources(self, *numbers: int, **more: Any) -> Sequence[RunHandle]:
        """Detached sources, each durable."""
        requests = [{"agent_class": Source, "input": {"n": n, **more}, "run_id": f"s{n}"} for n in numbers]
        return await self.run_agent_tools(requests, detached=True)

    @exposed
    async def write(self, **more: Any) -> list[Any]:
        a, b = await self.sources(1, 2, **more)
        result = await self.run_agent_tool(Writer, "x", after=all_of(a.milestone("sources"), b.end, a))
        return list(result.output)

    @exposed
    async def write_by_ids(self) -> list[Any]:
        await self.sources(1, 2)
        result = await self.run_agent_tool(Writer, "x", after=any_of(MilestoneOf("s1", "never"), EndOf("s2"), "s1"))
        return list(result.output)

    @exposed
    async def write_later(self, **more: Any) -> None:
        (a,) = await self.sources(1, **more)
        watched = Detached(on_finish="on_done")
        await self.run_agent_tool(Writer, "x", run_id="w", detached=watched, after=a.end)
        await self.run_agent_tool(Writer, "x", run_id="never", detached=watched, after=a.milestone("never"))

    @exposed
    async def write_twice(self) -> list[Any]:
        """The same content, waiting for different things: two runs, also when they are asked for at once."""
        a, b = await self.sources(1, 2)
        both = await asyncio.gather(*(self.run_agent_tool(Writer, "x", after=each.end) for each in (a, b)))
        again = await self.run_agent_tool(Writer, "x", run_id="named", after=a.end)
        same = await self.run_agent_tool(Writer, "x", run_id="named", after=a.end)
        return [*(each.output for each in both), again.output, same.output, len({each.run_id for each in both})]

    @exposed
    async def write_all(self, *, detached: bool) -> list[Any]:
        """Sources and what waits for them in one batch, some awaited and some not."""
        requests: list[dict[str, Any]] = [
            {"agent_class": Source, "input": {"n": 1}, "run_id": "a", "detached": detached},
            {"agent_class": Source, "input": {"n": 2}, "run_id": "b"},
            {"agent_class": Writer, "input": "x", "run_id": "w", "after": all_of("b", "a")},
            {"agent_class": Writer, "input": "x", "run_id": "v", "after": "w"},
        ]
        results = await self.run_agent_tools(requests)
        return [result.output for result in results[2:]]

    @exposed
    def write_in_one_transaction(self) -> str:
        with self.transaction():
            a = self.run_agent_tool(Source, {"n": 5}, detached=True)
            writer = self.run_agent_tool(
                Writer, "x", run_id="w", after=a.end, detached=Detached(on_finish="on_done"), losers="cancel"
            )
        return writer.run_id

    @exposed
    def post_sources(self) -> None:
        with self.transaction():
            for n in (1, 2):
                self.run_agent_tool(Source, {"n": n}, run_id=f"s{n}", detached=True)

    @exposed
    def post_writer(self) -> None:
        with self.transaction():
            self.run_agent_tool(Writer, "x", run_id="w", after="s2", detached=True)

    @exposed
    async def race(self, n: int, *numbers: int, fail: int = 0) -> list[int]:
        """Each source takes as many seconds as its number; those up to `fail` fail."""
        requests = [(Source, {"n": each, "s": each, "fails": each <= fail}) for each in numbers]
        return [result.output["n"] for result in await self.first_ok(n, requests)]

    @exposed
    async def wrong(self, case: str) -> str:
        a, b = await self.sources(1, 2)
        twice = (Source, {"n": 9})
        await {
            "id": lambda: self.run_agent_tool(Writer, "x", after="nobody"),
            "itself": lambda: self.run_agent_tool(Writer, "x", run_id="w", after=any_of("w", a)),
            "circle": lambda: self.run_agent_tools(
                [
                    {"agent_class": Writer, "input": "x", "run_id": "v", "after": "w"},
                    {"agent_class": Writer, "input": "x", "run_id": "w", "after": all_of(a, "v")},
                ]
            ),
            "late": lambda: self.run_agent_tools(
                [
                    {"agent_class": Writer, "input": "x", "run_id": "v", "after": "late"},
                    {"agent_class": Source, "input": {"n": 3}, "run_id": "late"},
                ]
            ),
            "losers": lambda: self.run_agent_tool(Writer, "x", after=a, losers="kill"),
            "no after": lambda: self.run_agent_tool(Writer, "x", losers="cancel"),
            "list": lambda: self.run_agent_tool(Writer, "x", after=[a, b]),
            "number": lambda: self.run_agent_tool(Writer, "x", after=3),
            "long id": lambda: self.run_agent_tool(Writer, "x", after="i" * 300),
            "by hand": lambda: self.run_agent_tool(Writer, "x", after=Of(3, (a.end, b.end))),
            "other": lambda: self.run_other(a, b),
            "too many": lambda: self.first_ok(3, [twice, (Source, {"n": 8})]),
            "none": lambda: self.first_ok(1, []),
            "zero": lambda: self.first_ok(0, [twice]),
            "doubled": lambda: self.first_ok(
                1, [{"agent_class": Source, "input": {"n": 1}, "run_id": "d"} for _ in range(2)]
            ),
            "detached": lambda: self.first_ok(
                1, [{"agent_class": Source, "input": {"n": 1}, "run_id": "d", "detached": True}]
            ),
            "conflict": lambda: self.first_ok(1, [twice, {"agent_class": Source, "input": {"n": 99}, "run_id": "s1"}]),
        }[case]()
        return "it was taken"

    async def run_other(self, a: RunHandle, b: RunHandle) -> None:
        await self.run_agent_tool(Writer, "x", run_id="w", after=a.end)
        await self.run_agent_tool(Writer, "x", run_id="w", after=b.end)

    @exposed
    def wait_in_a_transaction(self) -> str:
        with self.transaction():
            self.first_ok(1, [(Source, {"n": 1})])
        return "it was taken"


class Desk(Agent):
    """Races as a run does that may be entered again, and returns the winners of each of its lives."""

    async def run(self, input: int, run: RunContext) -> list[list[int]]:
        requests = [(Source, {"n": n, "s": 0.3 * n, "fails": n == 2}) for n in range(1, 6)]
        winners = [result.output["n"] for result in await self.first_ok(input, requests)]
        self.state[f"of attempt {run.attempt}"] = winners
        await run.report_progress(0.9)
        await asyncio.sleep(1)
        return list(self.state.values())


# ---------------------------------------------------------------- what it is given


@pytest.mark.parametrize("padding", [0, 3_000])
async def test_a_run_begins_when_what_it_waits_for_is_there_and_is_given_that_in_the_order_of_the_leaves(
    stage: Stage, padding: int
) -> None:
    assert await stage.call(Editor, "write", padding=padding) == [1, 2, 1]


async def test_the_ids_of_runs_stand_for_their_ends(stage: Stage) -> None:
    never, *ends = await stage.call(Editor, "write_by_ids")
    assert never is None
    assert {None, 1, 2} >= set(ends) != {None}


async def test_while_it_waits_no_parent_is_awake_and_no_host_is_used_and_its_end_is_told_by_mail(stage: Stage) -> None:
    await stage.call(Editor, "write_later", s=60)
    await asyncio.sleep(30)
    assert stage.host_of(address(Editor, "p")) == stage.host_of(address(Writer, "w")) == ""
    assert stage.run("w").waits_for_others
    await stage.ended("w", "completed")
    await asyncio.sleep(1)
    told = await stage.call(Editor, "told")
    assert [(run_id, status) for run_id, status, _ in told] == [("never", "error"), ("w", "completed")]
    assert "run s1 has completed without milestone 'never'" in told[0][2]


async def test_runs_of_the_same_content_that_wait_for_different_things_are_two(stage: Stage) -> None:
    assert await stage.call(Editor, "write_twice") == [[1], [2], [1], [1], 2]


@pytest.mark.parametrize("detached", [True, False])
async def test_a_batch_may_hold_sources_and_what_waits_for_them(stage: Stage, detached: bool) -> None:
    assert await stage.call(Editor, "write_all", detached=detached) == [[2, 1], [[2, 1]]]


async def test_a_transaction_asks_for_sources_and_what_waits_for_them_with_its_commit(stage: Stage) -> None:
    assert await stage.call(Editor, "write_in_one_transaction") == "w"
    await stage.ended("w", "completed")


@staged(limits=replace(ROOMY, waiting_max=1))
async def test_a_run_whose_source_is_put_off_is_asked_for_again_behind_it(stage: Stage) -> None:
    await stage.call(Editor, "post_sources")  # with two in one turn, the second is refused for a second
    assert stage.record("s2") is None
    await stage.call(Editor, "post_writer")
    await stage.ended("w", "completed")


async def test_a_client_waits_for_runs_of_clients_alone(stage: Stage) -> None:
    handle = await stage.client.start(Source, {"n": 4}, run_id="mine")
    result = await stage.client.run(Writer, "x", run_id="w", after=n_of(2, handle.end, handle.milestone("sources")))
    assert result.output == [4, 4]
    await stage.call(Editor, "write")
    with pytest.raises(UnknownRun, match=r"no run 's1' of a client is known; .* There is one of .*Editor"):
        await stage.client.run(Writer, "x", after="s1")
    with pytest.raises(BadRequest, match="would wait for itself"):
        await stage.client.start(Writer, "x", run_id="me", after="me")
    with pytest.raises(ConflictingRequest, match="waits for something else"):
        await stage.client.run(Writer, "x", run_id="w", after=handle.end)


@staged(limits=replace(ROOMY, retained_in_memory=0))
async def test_a_source_that_only_the_snapshot_has_is_found(stage: Stage) -> None:
    await stage.client.run(Source, {"n": 4}, run_id="old")
    await asyncio.sleep(20)  # a checkpoint is taken
    assert stage.record("old") is None
    assert (await stage.client.run(Writer, "x", run_id="w", after="old")).output == [4]
    handle = await stage.client.start(Source, {"n": 6, "s": 30}, run_id="new")
    await stage.client.start(Writer, "x", run_id="v", after=all_of("old", handle.end))
    await asyncio.sleep(20)
    assert stage.record("old") is not None  # somebody waits for it
    stage.simulation.kill("supervisor")
    await stage.ended("v", "completed")
    assert (await stage.client.run(Writer, "x", run_id="v", after=all_of("old", handle.end))).output == [4, 6]


# ---------------------------------------------------------------- the first good answers


async def test_the_first_that_complete_are_given_in_the_order_of_their_ends_and_the_others_are_cancelled(
    stage: Stage,
) -> None:
    assert await stage.call(Editor, "race", 2, 9, 3, 1, 2, fail=1) == [2, 3]
    (nine,) = [run for run in stage.view.runs.values() if run.status == "aborted"]
    assert "has enough without it" in nine.error
    assert await stage.call(Editor, "race", 2, 1, 2) == [1, 2]
    assert await stage.call(Editor, "race", 1, 1) == [1]


async def test_a_race_that_too_few_can_finish_fails_at_once_and_says_why(stage: Stage) -> None:
    with pytest.raises(RunFailed, match=r"can never complete.*run \w+ has failed \(ValueError: no sources\)"):
        await stage.call(Editor, "race", 2, 1, 2, 900, fail=2)
    assert [str(run.status) for run in stage.view.runs.values()].count("aborted") == 1


@pytest.mark.thorough
def test_a_racer_that_is_entered_again_is_given_the_same_winners_wherever_it_died() -> None:
    entered: list[int] = []

    async def story(client: Any) -> None:
        result = await client.run(Desk, 2, run_id="desk")
        first, *others = result.output
        assert len(first) == len(set(first) - {2}) == 2, result
        assert all(each == first for each in others), result
        entered.append(len(others))

    report = explore(story, stride=2)
    assert max(entered), "no death came after the winners were known"
    assert report.ok, report.failures


def test_storms_change_neither_winners_nor_what_is_given() -> None:
    async def story(client: Any) -> None:
        handle = await client.start(Source, {"n": 1}, run_id="one")
        again = await client.start(Source, {"n": 2, "padding": 3_000}, run_id="two")
        result = await client.run(Writer, "x", run_id="w", after=all_of(handle.end, again.milestone("sources"), again))
        assert result.output == [1, 2, 2] or "progress in between" in result.error, result

    report = swarm(6, story=story)
    assert report.ok, report.failures


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("case", "field", "words"),
    [
        ("id", "after", "no run 'nobody' of .* is known; ask for it before what waits for it"),
        ("itself", "after", "run 'w' would wait for itself"),
        ("circle", "after", "these runs would wait for each other: v, w, v|w, v, w"),
        ("late", "after", "run 'v' waits for 'late', which comes later in the batch; put that before it"),
        ("losers", "losers", "'kill' is none of leave, cancel"),
        ("no after", "losers", "there are none without `after`"),
        ("list", "after", r"is no condition: .* Name several by all_of"),
        ("number", "after", "3 is no condition"),
        ("long id", "after", "has 300 characters; the limit is 256"),
        ("by hand", "n", "3 of 2 can never come true"),
        ("other", "after", "waits for something else"),
        ("too many", "n", "3 of 2 requests can never complete"),
        ("none", "n", "1 of 0 requests can never complete"),
        ("zero", "n", "0"),
        ("doubled", "requests", "run 'd' is in it twice"),
        ("detached", "detached", "nobody would wait for a detached run"),
        ("conflict", "input", "run 's1' exists with another input"),
    ],
)
async def test_what_cannot_be_waited_for_is_refused_by_name(stage: Stage, case: str, field: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        await stage.call(Editor, "wrong", case)
    assert refused.value.field == field


A, B = EndOf("a"), EndOf("b")


def nested(depth: int) -> Any:
    """So many conditions in each other."""
    return any_of(nested(depth - 1)) if depth else A


@pytest.mark.parametrize(
    ("make", "field", "words"),
    [
        (lambda: n_of(3, A, B), "n", "3 of 2 can never come true"),
        (lambda: n_of(0, A, B), "n", "0"),
        (lambda: n_of(1.5, A, B), "n", "1.5"),  # type: ignore[arg-type]
        (lambda: n_of(True, A, B), "n", "True"),
        (lambda: n_of("2", A, B), "n", "'2'"),  # type: ignore[arg-type]
        (lambda: n_of(2, A, B, "a"), "n_of", "the end of a is named twice, and would count twice"),
        (all_of, "all_of", "nothing was named"),
        (lambda: n_of(1), "n_of", "nothing was named"),
        (lambda: any_of([A, B]), "any_of", "no condition"),  # type: ignore[arg-type]
        (lambda: any_of(None), "any_of", "None is no condition"),  # type: ignore[arg-type]
        (lambda: any_of(""), "any_of", "is blank"),
        (lambda: all_of(MilestoneOf("a", "")), "milestone", "is blank"),
        (lambda: all_of(MilestoneOf("a", 3)), "milestone", "3 is not a string"),  # type: ignore[arg-type]
        (lambda: RunHandle("a", "m:T").milestone(" "), "milestone", "is blank"),
        (lambda: all_of(*(EndOf(str(n)) for n in range(10_000))), "all_of", f"10000 leaves; the limit is {LEAVES_MAX}"),
        (lambda: nested(DEPTH_MAX + 1), "any_of", f"{DEPTH_MAX + 1} deep in each other; the limit is {DEPTH_MAX}"),
    ],
)
def test_a_condition_that_makes_no_sense_is_refused_where_it_is_made(make: Any, field: str, words: str) -> None:
    with pytest.raises(BadRequest, match=words) as refused:
        make()
    assert refused.value.field == field


def test_a_handle_says_its_end_and_its_milestones_as_conditions() -> None:
    handle = RunHandle("a", "m:T")
    assert all_of(handle, "a", handle.end) == Of(3, (A, A, A))
    assert n_of(1, handle.milestone("m"), any_of(B)) == Of(1, (MilestoneOf("a", "m"), Of(1, (B,))))


async def test_nobody_can_wait_for_the_first_ones_in_a_transaction(stage: Stage) -> None:
    with pytest.raises(AwaitedInsideHandler):
        await stage.call(Editor, "wait_in_a_transaction")
