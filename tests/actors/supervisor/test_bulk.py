"""Many runs are cancelled, tried again or cleared by a filter: thousands of them, whoever dies meanwhile, and again after that."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, Client, KillPoint, RunContext
from perdure.actors.life.results import BulkReport
from perdure.actors.runtime.bulk import BulkPass, RunFilter, chosen_by, wanted_by
from perdure.ledger import GROUP_MAX, BadRequest, Verb, Wanted
from perdure.ledger.store.memory_store import MemoryStore
from perdure.policies import Limits
from perdure.scenarios.swarm.explorer import explore
from tests.actors.cast import Sleeper
from tests.kit import ROOMY, Stage, address, play, some, staged

entered: Counter[str] = Counter()
"""How often each run was entered, outside of every process."""

HELD = replace(ROOMY, hosts_max=1, pack_max=1, hosts_warm=0)
"""Runs wait for a place, but for one."""


class Breaking(Agent):
    """Breaks always."""

    attempts_max = 1

    async def run(self, input: str, run: RunContext) -> str:
        entered[run.run_id] += 1
        raise ValueError(f"{input} is broken")


class Caller(Agent):
    """Waits for a child, and leaves another one alone."""

    async def run(self, input: str, run: RunContext) -> Any:
        await self.run_agent_tool(Sleeper, 3_600_000, run_id=f"{run.run_id}-apart", detached=True)
        return (await self.run_agent_tool(Sleeper, 3_600_000, run_id=f"{run.run_id}-below")).status


@pytest.fixture(autouse=True)
def _nothing_has_happened() -> None:
    entered.clear()


async def many(
    stage: Stage, count: int, kind: type[Agent] = Sleeper, prefix: str = "r", input: Any = 3_600_000
) -> None:
    """Start so many runs, which wait or break."""
    ids = [f"{prefix}{number}" for number in range(count)]
    for first in range(0, count, 500):
        await asyncio.gather(*(stage.client.start(kind, input, run_id=each) for each in ids[first : first + 500]))


async def steer(stage: Stage, verb: str, everything: bool = False, dry_run: bool = False, **which: Any) -> BulkReport:
    return await stage.client.steer_runs(
        Verb(verb), RunFilter(**which), everything=everything, dry_run=dry_run, reason="enough"
    )


def counts(report: BulkReport) -> tuple[int, int, int, int, int]:
    return report.found, report.hit, report.already, report.gone, sum(report.refused.values())


@pytest.mark.thorough
def test_ten_thousand_runs_are_counted_cancelled_and_cleared_in_groups() -> None:
    async def story(stage: Stage) -> None:
        await many(stage, 10_000)
        counted = await steer(stage, "cancel", prefix="r", dry_run=True)
        assert (counted.found, counted.hit, counted.sample[0], len(counted.sample)) == (10_000, 0, "r9999", 10)
        assert sum(counted.statuses.values()) == 10_000
        assert stage.status("r7") in ("starting", "running"), "only counted"
        done = await steer(stage, "cancel", prefix="r")
        assert (counts(done), done.next) == ((10_000, 10_000, 0, 0, 0), None)
        assert (await stage.client.ask("ps", 0))["runs"]["aborted"] == 10_000
        assert counts(await steer(stage, "cancel", prefix="r")) == (0, 0, 0, 0, 0), "nothing is left to be cancelled"
        cleared = await steer(stage, "clear", status="aborted")
        assert counts(cleared) == (10_000, 10_000, 0, 0, 0)
        await stage.until(lambda: not stage.view.runs)

    with_turns = replace(HELD, turn_max=Limits().turn_max, retained_in_memory=2_000)
    play(story, limits=with_turns)


@pytest.mark.parametrize("point", [KillPoint.BEFORE_COMMIT, KillPoint.AFTER_COMMIT])
@pytest.mark.parametrize("verb", some(1, ["cancel", "retry", "clear"]))
def test_a_supervisor_that_dies_in_the_middle_takes_nothing_along_and_the_next_one_goes_on(
    verb: str, point: KillPoint
) -> None:
    armed: list[int] = []

    def strike(stage: Stage, process: str, at: KillPoint, _detail: str) -> bool:
        if process != "supervisor" or at is not point or not armed:
            return False
        armed[0] -= 1
        if armed[0]:
            return False
        armed.clear()
        return True

    async def story(stage: Stage) -> None:
        count = GROUP_MAX + 200
        if verb == "retry":
            await many(stage, count, Breaking, input="glass")
            await stage.until(lambda: stage.view.live == 0, 3_000_000)
        else:
            await many(stage, count)
        tries = sum(entered.values())
        armed.append(2)
        done = await steer(stage, verb, prefix="r")
        assert not armed, "it was struck"
        assert (done.found, done.hit + done.already, done.gone, done.refused) == (count, count, 0, {})
        assert point is KillPoint.AFTER_COMMIT or done.already == 0, "what was not durable is done by the next life"
        if verb == "retry":
            await stage.until(lambda: stage.view.live == 0, 3_000_000)
            assert sum(entered.values()) == tries + count, "each was tried again once"
        elif verb == "cancel":
            assert (await stage.client.ask("ps", 0))["runs"]["aborted"] == count
        else:
            await stage.until(lambda: not stage.view.runs)

    limits = replace(HELD, hosts_max=4, pack_max=50) if verb == "retry" else HELD
    play(story, limits=limits, kill_when=strike, timeout_ms=30_000_000)


async def round_trip(client: Client) -> None:
    """Some runs fail, some go on. The failed ones are tried again, the live ones are cancelled, and all are cleared."""
    for number in range(5):
        await client.start(Sleeper, 3_600_000, run_id=f"slow{number}")
        await client.start(Breaking, "glass", run_id=f"broken{number}")
    while (await client.ask("ps", 0))["runs"]["error"] < 5:
        await asyncio.sleep(1)
    again = await client.steer_runs(Verb.RETRY, RunFilter(error="glass"))
    assert (again.hit + again.already, again.refused, again.gone) == (5, {}, 0)
    stopped = await client.steer_runs(Verb.CANCEL, RunFilter(type=Sleeper))
    assert (stopped.hit + stopped.already, stopped.gone) == (5, 0)
    cleared = await client.steer_runs(Verb.CLEAR, RunFilter(), everything=True)
    assert cleared.hit + cleared.already + cleared.gone == 10
    rest = await client.steer_runs(Verb.CLEAR, RunFilter(), everything=True, dry_run=True)
    assert rest.found == 0


@pytest.mark.thorough
def test_wherever_a_process_dies_each_pass_ends_and_everything_settles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.actors.runtime.bulk.GROUP_MAX", 2)
    report = explore(round_trip, "supervisor", seed=5, stride=5)
    assert not report.failures, report.failures[0]
    assert report.kills > 10


def test_what_the_children_of_a_group_had_asked_for_is_looked_up_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one it would keep a turn waiting as often as a group has runs."""
    looks: list[int] = []
    real = MemoryStore.runs_of

    def runs_of(self: MemoryStore, agents: list[str], limit: int) -> Any:
        looks.append(len(agents))
        return real(self, agents, limit)

    monkeypatch.setattr(MemoryStore, "runs_of", runs_of)
    monkeypatch.setattr(MemoryStore, "family_runs", lambda *_: pytest.fail("one look each"))

    async def story(stage: Stage) -> None:
        await many(stage, 40, Breaking, input="glass")
        await stage.until(lambda: stage.view.live == 0 and len(entered) == 40)
        await asyncio.sleep(60)
        assert len(stage.view.runs) == 3, "the others are in the snapshot alone"
        assert (await steer(stage, "clear", status="error")).hit == 40
        assert looks == [40]

    play(story, limits=replace(ROOMY, retained_in_memory=3))


@staged(limits=HELD)
async def test_a_pass_that_was_left_in_the_middle_is_made_again_and_finds_the_rest(stage: Stage) -> None:
    await many(stage, GROUP_MAX + 100)
    wanted = chosen_by(Verb.CANCEL, wanted_by(RunFilter(prefix="r")), everything=False)
    left = await stage.client.make_pass(BulkPass(Verb.CANCEL, wanted, reason="enough"), within_s=-1)
    assert (left.hit, left.next is not None) == (GROUP_MAX, True), "it ends where its first page does"
    rest = await steer(stage, "cancel", prefix="r")
    assert counts(rest) == (100, 100, 0, 0, 0)


@staged(limits=HELD)
async def test_what_is_requested_meanwhile_is_left_alone_and_what_ends_meanwhile_is_told(stage: Stage) -> None:
    await many(stage, 4)
    await stage.client.ask("cancel", "r0", None, "before")
    wanted = chosen_by(Verb.CANCEL, Wanted(), everything=True)
    job = BulkPass(Verb.CANCEL, wanted, reason="enough")
    questions = job.questions()
    page = await stage.client.ask(*next(questions))
    assert [run_id for _, run_id in page["runs"]] == ["r3", "r2", "r1"]
    await stage.client.start(Sleeper, 3_600_000, run_id="new")
    await stage.client.ask("cancel", "r1", None, "by another")
    await stage.client.ask("clear", ["r2"])
    await stage.until(lambda: stage.record("r2") is None)
    await stage.client.start(Sleeper, 3_600_000, run_id="r2")
    told = await stage.client.ask(*questions.send(page))
    with pytest.raises(StopIteration):
        questions.send(told)
    assert counts(job.report) == (3, 1, 1, 1, 0)
    assert [stage.status(each) for each in ("r2", "new", "r3")] != ["aborted"] * 3
    assert {stage.status("r2"), stage.status("new")} <= {"starting", "running"}


async def test_with_a_run_goes_what_waits_for_it_and_that_is_counted_apart(stage: Stage) -> None:
    for each in ("a", "b"):
        await stage.client.start(Caller, "x", run_id=each)
    await stage.until(lambda: all(stage.status(f"{each}-below") == "running" for each in "ab"))
    done = await steer(stage, "cancel", type=Caller)
    assert (done.hit, done.others, stage.status("a-below"), stage.status("a-apart")) == (2, 2, "aborted", "running")
    cleared = await steer(stage, "clear", type=Caller)
    assert (cleared.hit, cleared.others) == (2, 4)
    await stage.until(lambda: not stage.view.runs)


@staged(limits=replace(ROOMY, retained_in_memory=3))
async def test_failed_runs_are_chosen_by_their_error_also_when_only_the_snapshot_has_them(stage: Stage) -> None:
    await many(stage, 12, Breaking, "g", "glass")
    await many(stage, 12, Breaking, "w", "wood")
    await stage.until(lambda: stage.view.live == 0 and len(entered) == 24)
    await asyncio.sleep(60)
    assert len(stage.view.runs) == 3
    counted = await steer(stage, "retry", error="GLASS is", dry_run=True)
    assert (counted.found, counted.statuses) == (12, {"error": 12})
    assert (await steer(stage, "clear", error="no such words", dry_run=True)).found == 0
    done = await steer(stage, "retry", error="glass is")
    assert counts(done) == (12, 12, 0, 0, 0)
    await stage.until(lambda: stage.view.live == 0)
    assert Counter(entered.values()) == {2: 12, 1: 12}
    page = await stage.client.ask("page", [*wanted_by(RunFilter(prefix="w", status="error"))], 50)
    assert len(page["runs"]) == 12


async def test_a_handle_and_a_class_are_filters_and_named_runs_that_are_not_there_are_gone(stage: Stage) -> None:
    await stage.client.start(Caller, "x", run_id="a")
    await stage.until(lambda: stage.status("a-apart") == "running")
    parent = stage.client.agent(Caller, "a")
    assert (await steer(stage, "cancel", parent=parent, dry_run=True)).found == 2
    assert (await steer(stage, "cancel", parent=address(Caller, "a"), dry_run=True)).found == 2
    done = await steer(stage, "cancel", run_ids=["a-apart", "nobody", "a-apart"])
    assert counts(done) == (1, 1, 0, 1, 0)


WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({}, "filter", "nothing says which runs"),
    ({"everything": True, "status": "error"}, "filter", "leave one of the two out"),
    ({"everything": "yes"}, "everything", "neither True nor False"),
    ({"dry_run": 1, "status": "error"}, "dry_run", "neither True nor False"),
    ({"statuss": "error"}, "statuss", "status is one"),
    ({"zzz": 1}, "zzz", "they are status, type"),
    ({"status": "eror"}, "status", "is none of"),
    ({"status": []}, "status", "empty list"),
    ({"type": 5}, "type", "is int, not text"),
    ({"type": ""}, "type", "is empty"),
    ({"error": ""}, "error", "is empty"),
    ({"prefix": b"r"}, "prefix", "is bytes, not text"),
    ({"parent": 3}, "parent", "is int, not text"),
    ({"parked": "no"}, "parked", "neither"),
    ({"requested_since": "now"}, "requested_since", "neither milliseconds"),
    ({"requested_since": -1}, "requested_since", "not negative"),
    ({"requested_since": 9, "requested_before": 3}, "requested", "no later"),
    ({"run_ids": "r1"}, "run_ids", "is no list"),
    ({"run_ids": []}, "run_ids", "empty list"),
    ({"run_ids": ["r"], "status": "error"}, "run_ids", "but not both"),
    ({"type": "tests.actors.cast:Sleper"}, "type", "there are runs of tests.actors.cast:Sleeper"),
    ({"type": "elsewhere:sleeper"}, "type", "there are runs of tests.actors.cast:Sleeper"),
]


@staged(limits=HELD)
async def test_what_makes_no_sense_is_refused_with_its_field_and_nothing_is_done(stage: Stage) -> None:
    await many(stage, 2)
    for given, field, words in WRONG:
        with pytest.raises(BadRequest) as refused:
            await steer(stage, "clear", **given)
        assert (refused.value.field, words in refused.value.problem) == (field, True), (given, refused.value)
    for verb, status in (("cancel", "error"), ("retry", "aborted"), ("retry", "running")):
        with pytest.raises(BadRequest, match=r"^status"):
            await steer(stage, verb, status=status)
    for name, *asked in (("steer", "burn", [], [], "", 0), ("chosen", "burn", [], 5, 5), ("page", [None] * 99, 5)):
        with pytest.raises(BadRequest):
            await stage.client.ask(name, *asked)
    assert (await steer(stage, "clear", type="far:Away", dry_run=True)).found == 0, "no similar one is known"
    assert {stage.status("r0"), stage.status("r1")} <= {"starting", "running"}
