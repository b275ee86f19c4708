"""Steps that are tried again, timed, or asked what came of them: over deaths, in both kinds of code, in runs and in fibers."""

from __future__ import annotations

import asyncio
import functools
import pickle
import threading
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, FiberContext, KillPoint, RunContext, exposed
from perdure.ledger import BadRequest, StepError, StepFailed, StepOutcomeUnknown, StepTimedOut
from perdure.policies import Retries
from tests.actors.one_process import OneProcess
from tests.actors.one_process import play as in_one_process
from tests.kit import Death, Stage, address, play, staged

QUICK = Retries(attempts_max=3, first_ms=1_000, most_ms=1_000)
BRIEF = Retries(attempts_max=3, first_ms=10, most_ms=10)
SLOW = Retries(attempts_max=3, first_ms=60_000, most_ms=60_000)


class Errand(Agent):
    """Takes a step as the test says, and notes down when its job was done."""

    stands_alone = True
    done_s: ClassVar[list[float]] = []
    answers: ClassVar[list[Any]] = []  # of the job, one for each try; an exception is raised
    probed: ClassVar[list[Any]] = []

    async def run(self, input: str, run: RunContext) -> Any:
        return await getattr(self, input)(run)

    async def job(self) -> Any:
        self.done_s.append(asyncio.get_running_loop().time())
        return self.next_answer()

    def now(self) -> Any:
        self.done_s.append(0)
        return self.next_answer()

    def next_answer(self) -> Any:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def hang(self) -> None:
        self.done_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(3_600)

    async def probe(self) -> Any:
        return self.probed.pop(0)

    async def again(self, run: RunContext) -> Any:
        return await run.step("s", self.job, retry=QUICK)

    async def again_slowly(self, run: RunContext) -> Any:
        return await run.step("s", self.job, retry=SLOW)

    async def after_an_hour(self, run: RunContext) -> Any:
        return await run.step("s", self.job, retry=Retries(first_ms=10**7, most_ms=10**7))

    async def sync_job(self, run: RunContext) -> Any:
        return await run.step("s", self.now, retry=QUICK)

    async def twice(self, run: RunContext) -> Any:
        """What a second call meets after the first has failed for good."""
        told = []
        for _ in range(2):
            try:
                await run.step("s", self.job, retry=QUICK)
            except StepFailed as failed:
                told.append([failed.owner, failed.step, failed.tries, failed.error])
        if run.attempt == 1:
            await asyncio.sleep(3_600)
        return told

    async def timed(self, run: RunContext) -> Any:
        try:
            return await run.step("s", self.hang, timeout=timedelta(seconds=90))
        except StepTimedOut as late:
            return [isinstance(late, TimeoutError), late.timeout_ms]

    async def timed_with_tries(self, run: RunContext) -> Any:
        try:
            return await run.step("s", self.job, timeout=100, retry=SLOW)
        except StepTimedOut:
            return asyncio.get_running_loop().time()

    async def asked(self, run: RunContext) -> Any:
        try:
            return await run.step("s", self.hang_once, probe=self.probe)
        except StepOutcomeUnknown as unknown:
            return str(unknown)

    async def asked_plainly(self, run: RunContext) -> Any:
        return await run.step("s", self.job, probe=self.probe)

    async def asked_with_tries(self, run: RunContext) -> Any:
        return await run.step("s", self.hang_once, probe="probe", retry=QUICK)

    async def hang_once(self) -> str:
        self.done_s.append(asyncio.get_running_loop().time())
        if len(self.done_s) == 1:
            await asyncio.sleep(3_600)
        return "done"

    async def refused(self, run: RunContext) -> Any:
        """A step that is refused, and then one that takes its name."""
        self.answers[:] = [BadRequest("x", "no"), 1]
        try:
            await run.step("s", self.job, retry=QUICK)
        except BadRequest:
            return await run.step("s", self.job)

    async def in_gather(self, run: RunContext) -> Any:
        return await asyncio.gather(
            *(run.step("s", functools.partial(self.after, each), retry=QUICK) for each in range(5))
        )

    async def after(self, each: int) -> int:
        self.done_s.append(each)
        if self.done_s.count(each) == 1:
            raise OSError(each)
        return each


class SyncErrand(Errand):
    def run(self, input: str, run: RunContext) -> Any:
        return getattr(self, input)(run)

    def waits(self, run: RunContext) -> Any:
        return [
            run.step("s", self.now, retry=BRIEF, timeout=3_600, probe=self.sync_probe),
            run.step("t", lambda: 2, timeout=1),
        ]

    def late(self, run: RunContext) -> Any:
        """A sync job is not cut off, and what it gave counts."""
        return run.step("s", self.slowly, timeout=0.01)

    def slowly(self) -> str:
        threading.Event().wait(0.05)
        return "late"

    def sync_probe(self) -> Any:
        return False

    def in_a_loop(self, run: RunContext) -> Any:
        return asyncio.run(self.in_own_loop(run))

    async def in_own_loop(self, run: RunContext) -> Any:
        return await run.step("s", self.now, retry=BRIEF)

    def awaited_elsewhere(self, run: RunContext) -> Any:
        """Sync code has an async job done on a loop of its own."""

        async def main(pending: Any) -> Any:
            return await pending

        return asyncio.run(main(run.step("s", self.job, retry=BRIEF)))


class Jobs(Agent):
    stands_alone = True
    told: ClassVar[list[Any]] = []

    async def body(self, fiber: FiberContext, input: str) -> Any:
        self.told.append(f"attempt {fiber.attempt}")
        await getattr(self, input)(fiber)

    async def fails(self) -> None:
        self.told.append("tried")
        raise OSError("no")

    async def hang(self) -> None:
        self.told.append("begun")
        await asyncio.sleep(3_600)

    async def tried(self, fiber: FiberContext) -> None:
        await fiber.step("s", self.fails, retry=Retries(attempts_max=2, first_ms=1_000, most_ms=1_000))

    async def probed(self, fiber: FiberContext) -> None:
        self.told.append(await fiber.step("s", self.hang, probe=lambda: "found"))

    async def deadly(self, fiber: FiberContext) -> None:
        await fiber.step("s", self.hang, probe=lambda: False)

    async def undone(self, fiber: FiberContext) -> None:
        try:
            await fiber.step("s", self.hang, undo=self.fails)
        except BadRequest as problem:
            self.told.append(problem.field)

    @exposed
    async def start(self, way: str) -> Any:
        ended = await self.start_fiber("job", self.body, way, retry=2, wait_for_completion=True)
        return [ended.status, ended.error]


def played(
    way: str, *answers: Any, kind: type[Errand] = Errand, probed: tuple[Any, ...] = (), dies_s: float = 0
) -> Any:
    """The output of a run whose host dies after so many seconds, and the times at which its job was done."""
    Errand.done_s.clear()
    Errand.answers[:], Errand.probed[:] = answers, probed

    async def story(stage: Stage) -> Any:
        running = asyncio.create_task(stage.client.run(kind, way, run_id="r"))
        if dies_s:
            await stage.until(lambda: bool(Errand.done_s))
            await asyncio.sleep(dies_s)
            if "r" not in stage.view.waiting:  # otherwise it is on none
                stage.kill_host_of(address(kind, "r"))
        ended = await running
        return ended.output if ended.ok else ended.error

    return play(story)


@pytest.mark.parametrize("way", ["again", "sync_job"])
def test_a_job_that_raises_is_tried_again_after_a_pause(way: str) -> None:
    assert played(way, OSError(1), OSError(2), "done") == "done"
    assert len(Errand.done_s) == 3


@pytest.mark.parametrize(
    ("way", "output"), [("waits", ["done", 2]), ("in_a_loop", "done"), ("awaited_elsewhere", "done"), ("late", "late")]
)
def test_sync_code_waits_on_its_thread(way: str, output: Any) -> None:
    async def story(process: OneProcess) -> Any:
        Errand.done_s.clear()
        Errand.answers[:] = [OSError(1), "done"]
        return (await process.client.run(SyncErrand, way)).output

    assert in_one_process(story) == output
    assert len(Errand.done_s) == (0 if way == "late" else 2)


def test_under_gather_each_has_tries_of_its_own() -> None:
    assert played("in_gather") == [0, 1, 2, 3, 4]
    assert sorted(Errand.done_s) == sorted([*range(5), *range(5)])


def test_a_death_neither_resets_the_count_nor_repeats_at_once() -> None:
    failed = played("again_slowly", OSError(1), OSError(2), OSError(3), "never", dies_s=0.5)
    assert "StepFailed" in failed
    assert "has failed in 3 tries" in failed
    assert "OSError: 3" in failed
    assert len(Errand.done_s) == 3
    uninterrupted = Errand.done_s[1] - Errand.done_s[0]
    played("again_slowly", OSError(1), "done", dies_s=0.5)
    assert abs(Errand.done_s[1] - Errand.done_s[0] - uninterrupted) < 40, "the pause went on, and did not begin anew"


def test_tries_that_are_used_up_stay_so_in_a_later_attempt() -> None:
    words = ["r", "s", 3, "OSError: 3"]
    assert played("twice", OSError(1), OSError(2), OSError(3), "never", dies_s=30) == [words, words]
    assert len(Errand.done_s) == 3


@staged(timeout_ms=20000000)
async def test_between_its_tries_a_run_gives_up_its_place(stage: Stage) -> None:
    Errand.done_s.clear()
    Errand.answers[:] = [OSError(1), "done"]
    running = asyncio.create_task(stage.client.run(Errand, "after_an_hour", run_id="r"))
    await stage.until(lambda: "r" in stage.view.waiting)
    assert stage.host_of(address(Errand, "r")) == ""
    assert (await running).output == "done"
    assert len(Errand.done_s) == 2
    assert stage.run("r").losses == 0


async def test_a_person_who_has_the_run_tried_again_gives_it_all_tries_again(stage: Stage) -> None:
    Errand.done_s.clear()
    Errand.answers[:] = [OSError(1), OSError(2), OSError(3), OSError(4), "done"]
    assert (await stage.client.run(Errand, "again", run_id="r")).status == "error"
    await stage.client.ask("retry", "r")
    await stage.ended("r", "completed")
    assert len(Errand.done_s) == 5


def test_the_limit_counts_over_deaths_and_cancels_an_async_job() -> None:
    assert played("timed", dies_s=30) == [True, 90_000]
    assert len(Errand.done_s) == 2
    assert played("timed") == [True, 90_000]


def test_the_limit_holds_for_the_step_with_its_tries_and_pauses() -> None:
    ended_s = played("timed_with_tries", *[OSError(1)] * 3, "never")
    if len(Errand.done_s) < 3:
        assert abs(ended_s - Errand.done_s[0] - 100) < 1


@pytest.mark.parametrize(
    ("probed", "output", "done"),
    [
        ({"id": 7}, {"id": 7}, 1),
        (True, True, 1),
        (0, 0, 1),
        ("", "", 1),
        (False, "done", 2),
        (
            None,
            "the job of step 's' of 'r' had begun, and its probe cannot tell whether it took effect; it was not done again",
            1,
        ),
    ],
)
def test_a_step_that_began_before_a_death_is_asked_for(probed: Any, output: Any, done: int) -> None:
    assert played("asked", probed=(probed,), dies_s=1) == output
    assert len(Errand.done_s) == done


def test_with_retry_a_probe_that_cannot_tell_is_asked_again() -> None:
    assert played("asked_with_tries", probed=(None, "found"), dies_s=1) == "found"
    assert len(Errand.done_s) == 1
    failed = played("asked_with_tries", probed=(None, None, None, "never"), dies_s=1)
    assert "StepFailed" in failed
    assert len(Errand.done_s) == 1


def test_what_perdure_refuses_is_not_tried_again() -> None:
    assert played("refused") == 1
    assert len(Errand.done_s) == 2


@pytest.mark.parametrize(
    ("way", "killed", "told", "ended"),
    [
        ("tried", False, ["attempt 1", "tried", "tried", "attempt 2", "tried", "tried"], "error"),
        ("probed", True, ["attempt 1", "begun", "attempt 2", "found"], "completed"),
        ("undone", False, ["attempt 1", "undo"], "completed"),
    ],
)
async def test_fibers_have_such_steps_too_but_for_undo(
    stage: Stage, way: str, killed: bool, told: list[str], ended: str
) -> None:
    Jobs.told.clear()
    started = asyncio.create_task(stage.call(Jobs, "start", way))
    if killed:
        await stage.until(lambda: "begun" in Jobs.told)
        await asyncio.sleep(1)
        stage.kill_host_of(address(Jobs, "p"))
        await stage.until(lambda: "found" in Jobs.told)
        started.cancel()
    else:
        assert (await started)[0] == ended
    assert Jobs.told == told


async def test_that_a_step_began_is_no_progress_of_a_fiber(stage: Stage) -> None:
    Jobs.told.clear()
    started = asyncio.create_task(stage.call(Jobs, "start", "deadly"))
    for attempt in (1, 2):
        await stage.until(lambda attempt=attempt: Jobs.told.count("begun") == attempt)  # type: ignore[misc]
        stage.kill_host_of(address(Jobs, "p"))
        await asyncio.sleep(5)
    await asyncio.sleep(600)
    assert Jobs.told.count("begun") == 2, "its two attempts are used up"
    started.cancel()


LAMBDA: Callable[[], int] = lambda: 1  # noqa: E731


def handing_on(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def wrapper(self: Agent, value: Any) -> None:
        method(self, value, "more")

    return wrapper


class Wrong(Agent):
    """Asks for what is refused, and says which field was named."""

    ways: ClassVar[dict[str, dict[str, Any]]] = {}
    done: ClassVar[list[str]] = []

    async def run(self, input: str, run: RunContext) -> list[str]:
        options = self.ways[input]
        told = []
        try:
            run.step("s", lambda: self.done.append(input), **options)
        except BadRequest as problem:
            told.append(problem.field)
        try:
            with self.transaction():
                run.step("s", lambda: self.done.append(input), **options)
        except BadRequest as problem:
            told.append(problem.field)
        return told

    async def undo(self, value: Any) -> None: ...

    @staticmethod
    def anything(*_: Any) -> None: ...

    def takes_none(self) -> None: ...

    def takes_two(self, one: Any, two: Any) -> None: ...

    async def gives(self, *_: Any) -> AsyncIterator[int]:
        yield 1

    @handing_on
    def handed_on(self, value: Any, more: Any) -> None: ...


ANY: Any = Wrong


def takes_none() -> None: ...


def takes_keys(*, key: int) -> None: ...


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(
            ("retry", value)
            for value in (3, "3", {"attempts_max": 3}, Retries(attempts_max=0), Retries(first_ms=-1), True)
        ),
        *(("retry", value) for value in (Retries(first_ms=5, most_ms=1), Retries(attempts_max=2.5), object())),  # type: ignore[arg-type]
        *(
            ("timeout", value)
            for value in (0, -1, float("nan"), float("inf"), "5", True, timedelta(0), timedelta(seconds=-1))
        ),
        *(("undo", value) for value in (3, LAMBDA, "", "nothing", "__init__", print, functools.partial(LAMBDA), Wrong)),
        *(("undo", value) for value in (Wrong.undo, Wrong.takes_none, "takes_none", "takes_two", "gives")),
        *(("undo", value) for value in (functools.partial(ANY.takes_two, 1), takes_none, takes_keys)),
        *(("probe", value) for value in (3, "", "nothing", True)),
        *(
            ("probe", value)
            for value in ("undo", "gives", Wrong.takes_none, takes_keys, functools.partial(ANY.takes_none, 1, 2))
        ),
    ],
)
async def test_what_is_wrong_is_refused_at_the_call_by_field(stage: Stage, field: str, value: Any) -> None:
    Wrong.ways["w"] = {field: value}
    Wrong.done.clear()
    told = (await stage.client.run(Wrong, "w")).output
    assert [name.partition(".")[0] for name in told] == [field, field]
    assert Wrong.done == []


class Undoable(Wrong):
    async def run(self, input: str, run: RunContext) -> list[str]:
        undos: list[Any] = ["undo", self.undo, self.anything, self.handed_on, functools.partial(self.takes_two, 1)]
        for nth, undo in enumerate(undos):
            await run.step(f"s {nth}", self.seven, undo=undo, probe=self.takes_none)
        return ["done"]

    async def seven(self) -> int:
        return 7


async def test_whatever_can_be_called_with_the_value_undoes_a_step(stage: Stage) -> None:
    assert (await stage.client.run(Undoable, "w")).output == ["done"]


class Transacting(Wrong):
    async def run(self, input: str, run: RunContext) -> list[str]:
        with self.transaction():
            try:
                run.step("s", lambda: 1, **self.ways[input])
            except BadRequest as problem:
                return [problem.field, problem.problem]
        return []


@pytest.mark.parametrize(
    "options",
    [{"retry": QUICK}, {"timeout": 5}, {"undo": "undo"}, {"probe": LAMBDA}, {"undo": "undo", "probe": LAMBDA}],
)
async def test_in_a_transaction_such_a_step_is_refused(stage: Stage, options: dict[str, Any]) -> None:
    Wrong.ways["w"] = options
    told = (await stage.client.run(Transacting, "w")).output
    assert told[0] == next(iter(options))
    assert "take it outside" in told[1]


@pytest.mark.parametrize(
    "error",
    [StepFailed("r", "s", 1, "no"), StepTimedOut("r", "s", 5), StepOutcomeUnknown("r", "s"), StepError("r", "s")],
)
def test_the_errors_of_steps_travel(error: StepError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, str(again)) == (type(error), error.args, str(error))
    assert (again.owner, again.step) == ("r", "s")


def test_a_kill_between_the_job_and_its_memory_asks_the_probe() -> None:
    async def story(stage: Stage) -> Any:
        return (await stage.client.run(Errand, "asked_plainly", run_id="r")).output

    Errand.done_s.clear()
    Errand.answers[:], Errand.probed[:] = ["done", "never"], ["found"]
    assert play(story, kill_when=Death(KillPoint.MID_RUN, of="step s done")) == "found"
    assert len(Errand.done_s) == 1
