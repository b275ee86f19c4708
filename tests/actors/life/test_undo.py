"""Steps that are undone: when a run fails for good and when it is cancelled, whatever dies meanwhile, and once in effect."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, Detached, KillPoint, RunContext, exposed
from perdure.ledger import BadRequest, PauseRefused, Undo
from perdure.policies import Retries
from tests.actors.one_process import OneProcess
from tests.actors.one_process import play as in_one_process
from tests.kit import ROOMY, Stage, address, play, played, staged

Diary = list[tuple[str, Any]]


async def note_elsewhere(word: str, value: Any) -> None:
    """An undo that is no method."""
    Trip.diary.append((word, value))


class Trip(Agent):
    """Books what its input says, and then goes on, fails or waits as that says. What happened outside is in the diary."""

    diary: ClassVar[Diary] = []
    broken: ClassVar[list[Any]] = []  # what the next undos raise
    found: ClassVar[list[Any]] = []  # what the next probes answer

    async def run(self, input: dict[str, Any], run: RunContext) -> str:
        self.diary.append(("entered", run.attempt))
        for item in input["books"]:
            await run.step(f"book {item}", functools.partial(self.book, item), undo=self.cancel_booking)
        await run.step("plain", lambda: self.diary.append(("plain", 0)))
        return await getattr(self, input["then"])(run)

    async def book(self, item: str) -> dict[str, str]:
        self.diary.append(("booked", item))
        return {"item": item}

    async def cancel_booking(self, booking: dict[str, str] | None) -> None:
        if self.broken:
            raise self.broken.pop(0)
        self.diary.append(("cancelled", booking and booking["item"]))

    async def probe(self) -> Any:
        self.diary.append(("probed", 0))
        answer = self.found.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def arrive(self, run: RunContext) -> str:
        return "arrived"

    async def fail(self, run: RunContext) -> str:
        raise OSError("no way")

    async def fail_once(self, run: RunContext) -> str:
        if [word for word, _ in self.diary].count("entered") == 1:
            raise OSError("no way")
        return "arrived"

    async def wait(self, run: RunContext) -> str:
        self.diary.append(("waits", run.attempt))
        await asyncio.sleep(100_000)
        return ""

    async def hang_in_step(self, run: RunContext) -> str:
        await run.step("hang", self.hang, undo=self.cancel_booking)
        return ""

    async def hang(self) -> dict[str, str]:
        self.diary.append(("waits", 0))
        await asyncio.sleep(100_000)
        return {"item": "never"}

    async def hang_with_probe(self, run: RunContext) -> str:
        await run.step("hang", self.hang, undo=self.cancel_booking, probe=self.probe)
        return ""

    async def time_out(self, run: RunContext) -> str:
        await run.step("hang", self.hang, undo=self.cancel_booking, timeout=5)
        return ""

    async def hang_once(self, run: RunContext) -> str:
        await run.step("s", lambda: 1, undo=self.hangs_once)
        raise OSError("no way")

    async def hangs_once(self, value: int) -> None:
        nth = len(told("hangs")) + 1
        self.diary.append(("hangs", nth))
        await asyncio.sleep(100_000 if nth == 1 else 0)

    async def sleep(self, run: RunContext) -> str:
        self.diary.append(("waits", run.attempt))
        await run.sleep(90_000)
        return ""

    async def sleep_and_fail(self, run: RunContext) -> str:
        self.diary.append(("waits", run.attempt))
        await run.sleep(600)
        raise OSError("no way")

    async def pause_often(self, run: RunContext) -> str:
        self.diary.append(("waits", run.attempt))
        for n in range(100_000):
            await asyncio.sleep(1)
            await run.step(f"tick {n}", lambda: 1)
        return ""

    async def raise_in_step(self, run: RunContext) -> str:
        async def job() -> None:
            raise OSError("no room")

        await run.step("raises", job, undo=self.cancel_booking)
        return ""

    async def bind(self, run: RunContext) -> str:
        undo = functools.partial(self.cancel_named, "bound", more={"n": 1})
        await run.step("bound", lambda: 7, undo=undo)
        await run.step("elsewhere", lambda: 8, undo=functools.partial(note_elsewhere, "elsewhere"))
        await run.step("by name", lambda: {"item": "by name"}, undo="cancel_booking")
        raise OSError("no way")

    async def cancel_named(self, word: str, value: Any, more: Any) -> None:
        self.diary.append((word, [value, more]))

    async def with_and_without(self, run: RunContext) -> str:
        await run.step("same", lambda: {"item": 1}, undo=self.cancel_booking)
        await run.step("same", lambda: {"item": 2})
        await run.step("same", lambda: {"item": 3}, undo=self.cancel_booking)
        raise OSError("no way")

    async def together(self, run: RunContext) -> str:
        await asyncio.gather(
            *(run.step(f"t{n}", functools.partial(self.book, f"t{n}"), undo=self.cancel_booking) for n in range(3))
        )
        raise OSError("no way")


class Once(Trip):
    attempts_max: ClassVar[int | None] = 1


def told(*words: str) -> Diary:
    return [entry for entry in Trip.diary if entry[0] in words]


def begin(**answers: Any) -> None:
    Trip.diary.clear()
    Trip.broken[:], Trip.found[:] = answers.get("broken", ()), answers.get("found", ())


async def started(stage: Stage, then: str, books: str = "ab", kind: type[Trip] = Trip) -> asyncio.Task[Any]:
    running = asyncio.create_task(stage.client.run(kind, {"books": list(books), "then": then}, run_id="r"))
    await stage.until(lambda: bool(told("waits")) or running.done())
    return running


UNDONE = [("cancelled", "b"), ("cancelled", "a")]


async def test_a_run_that_fails_is_undone_in_reverse_before_its_end_is_told(stage: Stage) -> None:
    begin()
    ended = await (await started(stage, "fail"))
    assert told("cancelled") == UNDONE
    assert (ended.status, ended.error, told("entered")) == ("error", "OSError: no way", [("entered", 1)])
    assert "no way" in ended.trace
    assert stage.run("r").undo == ""


async def test_a_run_that_completes_is_not_undone(stage: Stage) -> None:
    begin()
    assert (await (await started(stage, "arrive"))).output == "arrived"
    assert told("cancelled") == []
    assert stage.run("r").undo == ""


@pytest.mark.parametrize(
    ("then", "undone"),
    [
        ("bind", [("cancelled", "by name"), ("elsewhere", 8), ("bound", [7, {"n": 1}])]),
        ("with_and_without", [("cancelled", 3), ("cancelled", 1)]),
        ("together", [("cancelled", "t2"), ("cancelled", "t1"), ("cancelled", "t0")]),
        ("raise_in_step", []),
        ("time_out", [("cancelled", None)]),
    ],
)
async def test_what_undoes_a_step_is_found_by_its_name_with_what_is_bound_to_it(
    stage: Stage, then: str, undone: Diary
) -> None:
    begin()
    assert (await (await started(stage, then, ""))).status == "error"
    assert told("cancelled", "elsewhere", "bound") == undone


@pytest.mark.parametrize("kind", [Trip, Once])
@pytest.mark.parametrize("dies", [False, True])
async def test_a_cancelled_run_is_undone_and_only_then_aborted(stage: Stage, kind: type[Trip], dies: bool) -> None:
    begin()
    running = await started(stage, "wait", kind=kind)
    await stage.client.ask("cancel", "r", None, "enough")
    if dies:
        stage.kill_host_of(address(kind, "r"))
    assert stage.run("r").undo == Undo.ABORTED
    ended = await running
    assert (ended.status, told("cancelled"), told("entered")) == ("aborted", UNDONE, [("entered", 1)])


@pytest.mark.parametrize("way", ["waits", "is paused", "is paused while it waits"])
async def test_a_run_that_is_on_no_host_is_undone_when_it_is_cancelled(stage: Stage, way: str) -> None:
    begin()
    running = await started(stage, "sleep" if "waits" in way else "pause_often")
    if "paused" in way:
        await stage.client.ask("pause", "r", True)
    await stage.until(lambda: "r" in stage.view.waiting)
    await stage.client.ask("cancel", "r", None, "enough")
    with pytest.raises(PauseRefused, match="its steps are being undone"):
        await stage.client.ask("pause", "r", True)
    assert (await running).status == "aborted"
    assert told("cancelled") == UNDONE


async def test_a_run_that_was_entered_again_after_a_wait_is_undone_as_any_other(stage: Stage) -> None:
    begin()
    ended = await (await started(stage, "sleep_and_fail"))
    assert (ended.status, told("cancelled")) == ("error", UNDONE)
    assert told("entered") == [("entered", 1), ("entered", 2)]


async def test_a_run_whose_attempts_are_used_up_is_undone(stage: Stage) -> None:
    begin()
    running = await started(stage, "wait", kind=Once)
    stage.kill_host_of(address(Once, "r"))
    ended = await running
    assert (ended.status, told("cancelled"), told("entered")) == ("error", UNDONE, [("entered", 1)])
    assert "left no result" in ended.error


@pytest.mark.parametrize("cut", ["cancel", "death"])
@pytest.mark.parametrize(
    ("then", "found", "undone"),
    [
        ("hang_in_step", [], [("cancelled", None), *UNDONE]),
        ("hang_with_probe", [{"item": "found"}], [("probed", 0), ("cancelled", "found"), *UNDONE]),
        ("hang_with_probe", [False], [("probed", 0), *UNDONE]),
        ("hang_with_probe", [None, OSError("x"), False], [("probed", 0), ("probed", 0), ("probed", 0), *UNDONE]),
    ],
)
async def test_a_step_in_whose_middle_the_run_was_cut_off_is_probed_before_it_is_undone(
    stage: Stage, cut: str, then: str, found: list[Any], undone: Diary
) -> None:
    begin(found=found)
    running = await started(stage, then, kind=Once)
    if cut == "cancel":
        await stage.client.ask("cancel", "r", None, "enough")
    else:
        stage.kill_host_of(address(Once, "r"))
    ended = await running
    assert ended.status == ("aborted" if cut == "cancel" else "error")
    assert told("cancelled", "probed") == undone


async def test_an_undo_that_raises_is_tried_again_after_pauses(stage: Stage) -> None:
    begin(broken=[OSError(n) for n in range(7)])
    assert (await (await started(stage, "fail"))).status == "error"
    assert told("cancelled") == UNDONE


@staged(limits=replace(ROOMY, handler_timeout_ms=1000))
async def test_an_undo_that_hangs_has_failed_after_a_while(stage: Stage) -> None:
    begin()
    ended = await (await started(stage, "hang_once", ""))
    assert (ended.status, told("hangs")) == ("error", [("hangs", 1), ("hangs", 2)])


async def test_an_undo_that_fails_for_good_parks_the_run_which_is_warned_of_and_retry_goes_on_with_it(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    begin(broken=[OSError(n) for n in range(8)])
    running = asyncio.create_task(stage.client.run(Trip, {"books": ["a", "b"], "then": "fail"}, run_id="r"))
    await stage.until(lambda: stage.record("r") is not None and bool(stage.run("r").parked))
    assert "the undo of step 'book b' failed in 8 tries" in stage.run("r").parked
    assert "OSError: 7" in stage.run("r").parked
    (warned,) = [each.getMessage() for each in caplog.records if each.name == "perdure.supervisor"]
    assert warned.startswith("run 'r' is parked, and whoever waits for it goes on waiting: the undo of step 'book b'")
    assert "`perdure explain r`" in warned
    said = " ".join(await stage.client.ask("explain", "r"))
    assert "its steps are being undone: OSError: no way" in said
    assert "perdure retry r" in said
    await asyncio.sleep(500)
    assert (told("cancelled"), running.done()) == ([], False)
    await stage.client.ask("retry", "r")
    ended = await running
    assert (ended.status, ended.error, told("cancelled")) == ("error", "OSError: no way", UNDONE)
    assert told("entered") == [("entered", 1)]


@pytest.mark.parametrize("ends", ["cancel", "clear"])
async def test_a_person_gives_up_what_cannot_be_undone(stage: Stage, ends: str) -> None:
    begin(broken=[OSError(n) for n in range(8)])
    running = asyncio.create_task(stage.client.run(Trip, {"books": ["a"], "then": "fail"}, run_id="r"))
    await stage.until(lambda: stage.record("r") is not None and bool(stage.run("r").parked))
    if ends == "cancel":
        await stage.client.ask("cancel", "r", None, "enough")
    else:
        await stage.client.ask("clear", ["r"])
    assert (await running).status == "aborted"
    assert told("cancelled") == []


async def test_a_run_that_is_cleared_is_undone_first(stage: Stage) -> None:
    begin()
    running = await started(stage, "wait")
    await stage.client.ask("clear", ["r"])
    assert (await running).status == "aborted"
    assert told("cancelled") == UNDONE
    await stage.until(lambda: stage.record("r") is None)


async def test_a_run_that_is_tried_again_does_anew_what_was_undone_and_nothing_else(stage: Stage) -> None:
    begin()
    assert (await (await started(stage, "fail_once"))).status == "error"
    await stage.client.ask("retry", "r")
    await stage.ended("r", "completed")
    assert told("booked", "cancelled") == [
        ("booked", "a"),
        ("booked", "b"),
        *UNDONE,
        ("booked", "a"),
        ("booked", "b"),
    ]
    assert told("plain") == [("plain", 0)]


class Head(Agent):
    """Asks for a trip that has a second."""

    stands_alone = True

    @exposed
    async def go(self) -> str:
        asked = Detached(max_budget_ms=1_000)
        return await self.ask("fail", asked)

    @exposed
    async def linger(self) -> str:
        return await self.ask("wait", Detached())

    async def ask(self, then: str, asked: Detached) -> str:
        return (await self.run_agent_tool(Trip, {"books": ["a"], "then": then}, run_id="r", detached=asked)).run_id


async def test_with_its_parent_goes_what_is_undone_first(stage: Stage) -> None:
    begin()
    await stage.call(Head, "linger")
    await stage.until(lambda: bool(told("waits")))
    await stage.client.ask("forget", address(Head, "p"))
    await stage.until(lambda: stage.record("r") is None)
    assert told("cancelled") == [("cancelled", "a")]


@staged(limits=replace(ROOMY, retry_first_ms=5000))
async def test_no_time_limit_ends_a_run_while_it_is_undone(stage: Stage) -> None:
    begin(broken=[OSError(n) for n in range(7)])
    await stage.call(Head, "go")
    assert (await stage.ended("r")).status == "error"
    assert told("cancelled") == [("cancelled", "a")]


class SyncTrip(Trip):
    def run(self, input: dict[str, Any], run: RunContext) -> str:  # type: ignore[override]
        run.step("a", lambda: {"item": "a"}, undo=self.take_back)
        run.step("b", lambda: {"item": "b"}, undo="take_back", retry=Retries(attempts_max=2), timeout=60)
        raise OSError("no way")

    def take_back(self, booking: dict[str, str]) -> None:
        self.diary.append(("cancelled", booking["item"]))


@played(in_one_process)
async def test_sync_code_is_undone_on_its_thread(process: OneProcess, /) -> None:
    begin()
    ended = await process.client.run(SyncTrip, {})
    assert (ended.status, ended.error, told("cancelled")) == ("error", "OSError: no way", UNDONE)


POINTS = [
    "step book a", "step book a done", "step book b", "step book b done", "undoing",
    "undo book b", "undo book b done", "undo book a", "undo book a done",
]  # fmt: skip


@pytest.mark.parametrize("then", ["fail", "wait"])
@pytest.mark.parametrize("detail", [*POINTS, "r"])
def test_a_death_at_any_moment_undoes_each_step_once_in_effect(then: str, detail: str) -> None:
    killed: list[str] = []

    def kill(stage: Stage, process: str, point: KillPoint, where: str) -> bool:
        wanted = where == detail and point in (
            KillPoint.MID_RUN,
            KillPoint.AFTER_RESULT_COMMIT,
            KillPoint.BEFORE_REPORT,
        )
        if wanted and not killed:
            killed.append(process)
        return wanted and len(killed) == 1 and killed[0] == process and not killed.append("")  # type: ignore[func-returns-value]

    async def story(stage: Stage) -> None:
        begin()
        running = await started(stage, then)
        if then == "wait":
            await stage.client.ask("cancel", "r", None, "enough")
        ended = await running
        assert killed, "the moment did not come"
        assert ended.status == ("error" if then == "fail" else "aborted")
        effects = list(dict.fromkeys(told("cancelled")))
        assert effects == UNDONE, "under the key of its step each is undone once, in reverse"
        assert told("cancelled") == [each for each in UNDONE for _ in range(told("cancelled").count(each))]
        if "undo" in detail or detail == "r":
            assert len(told("entered")) == 1, "`run` is not entered again"

    play(story, kill_when=kill)


class Misnamed(Agent):
    async def run(self, input: str, run: RunContext) -> list[str]:
        def inner(value: Any) -> None: ...

        wrong = {"closure": inner, "probe": self.undo, "data": functools.partial(self.undo, object())}
        probe = inner if input == "probe" else None
        try:
            await run.step("s", lambda: 1, undo=wrong[input], probe=probe)
        except BadRequest as problem:
            return [problem.field, problem.problem]
        return []

    async def undo(self, value: Any) -> None: ...


@pytest.mark.parametrize(
    ("way", "field", "words"),
    [
        ("closure", "undo", "is defined inside a function"),
        ("probe", "probe", "is defined inside a function"),
        ("data", "undo", "object"),
    ],
)
async def test_what_could_not_be_found_again_is_refused(stage: Stage, way: str, field: str, words: str) -> None:
    told = (await stage.client.run(Misnamed, way)).output
    assert told[0] == field
    assert words in told[1]
