"""`perdure soak`: the stories of `perdure run`, drawn one after the other on one cluster, for as long as you like.

Each leg plays a story and checks it at its end. It kills what its story kills: hosts, the supervisor, now and then everything at once; or
it lets the machine hinder the work. The seed draws the order and the sizes, and each kind comes once before any comes twice. In between the
directory is backed up while it is served. After each leg the processes and the directory are measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import shutil
import statistics
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Annotated, Any, ClassVar, Final, NamedTuple

import psutil
import typer

from perdure import PerdureError, actors
from perdure.actors.ray_world.system import CLOCK, shift_clocks
from perdure.ledger.maintenance.looking import DirectorySource
from perdure.policies import in_turns
from perdure.scenarios.cast.census import Census
from perdure.scenarios.cast.clerk import clerk_environment, script_of
from perdure.scenarios.cast.environment import SCRIPTED, with_environment
from perdure.scenarios.commands.options import AsJson, Data, duration_ms
from perdure.scenarios.commands.shown import in_words
from perdure.scenarios.faults.chaos import Account, Chaos, Plan, live_in, unbalanced
from perdure.scenarios.faults.machine import full_disk, may_be_filled, stood_still
from perdure.scenarios.faults.strikes import hosts_in, some
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.server import SocketProvider
from perdure.scenarios.simulated_telegram import SocketTelegram
from perdure.scenarios.stories import messenger
from perdure.scenarios.stories.chat_play import PEACE, Point
from perdure.scenarios.stories.chat_recovery import ChatRecoveryStory
from perdure.scenarios.stories.engine import Scenario, perform
from perdure.scenarios.stories.fan_out import FanOut, Order, runs_of
from perdure.scenarios.stories.jobs import Jobs
from perdure.scenarios.stories.messenger_play import CALM, DEADLY, messages_of
from perdure.scenarios.stories.stage import RayStage, Stage

LEAST_LEG_S: Final = 5.0  # that a leg takes at least, to know how many there can be
COLD_RESTARTS: Final = 0.15  # share of the fan-outs in which everything is killed at once
BACKUP_EVERY: Final = 5  # legs
BACKUPS_KEPT: Final = 3
DRILL_S: Final = 8.0
HINDERED_AFTER_S: Final = 2.0  # by then some children are at work
STALLS_S: Final = (3.0, 20.0)
FULL_S: Final = (1.0, 6.0)
JUMPS: Final = 4
JUMP_MS: Final = 20_000
JUMP_EVERY_S: Final = 1.0
WAYS: Final = 3  # exchanges of a leg
REST_S: Final = 300.0  # for what a leg left under way: a busy machine is slow, and what waits for nothing stands longer
LEG_S: Final = 900.0  # the slowest legs take some two minutes
LIVE_MAX: Final = 1_000
DISK_WORDS: Final = ("storage", "No space left")  # in the error of a run that could not write
STRUCK_WORDS: Final = ("lost in every attempt that it may have",)  # in that of a run that was struck again and again
LOOK_S: Final = 0.1
NAMES_OF_ROWS: Final = {"fibers": "fiber_id", "schedules": "id", "turns": "request_id"}

# What is measured between legs. The growth of a measure is the slope of the straight line that fits its samples best, an hour, as a share
# of their mean. The first third of the time is the warm-up, and does not count. Memory and disk are those of one retained run: a ledger
# that keeps more may hold more, but not more for each. File descriptors and threads are those of one process.
#
# What lies within twice the standard error of the slope may be chance, and only what is beyond that is judged. Hosts come and go with the
# legs, so a slope says nothing about the number of processes. If some of them stayed for ever, the fewest that are ever there would rise.

WARM_UP: Final = 1 / 3
JUDGED_FROM_S: Final = 1_200.0  # of samples after the warm-up; in less, a step looks like a slope
GROWTH_MAX: Final = 0.02  # an hour
FEWEST_MAX: Final = 1.5  # the fewest processes in the later half, over the fewest in the earlier one
PROCESSES: Final = "processes"
GONE_S: Final = 20.0  # for the processes of the cluster, after its end


class Sample(NamedTuple):
    at_s: float
    retained: int  # ended runs in the ledger
    memory_mb: float  # of the supervisor and the hosts
    disk_mb: float  # of the data directory
    descriptors: int
    threads: int
    processes: int


class Curve(NamedTuple):
    """One measure over a soak, and by which share of its mean it grows in an hour: most likely, and at least."""

    first: float
    last: float
    growth: float | None = None  # with too few samples
    sure_growth: float | None = None


def curves(samples: Sequence[Sample]) -> dict[str, Curve]:
    warm = warmed_up(samples)
    measures = {
        "memory_mb_per_1000_retained": [each.memory_mb / max(1, each.retained) * 1000 for each in warm],
        "disk_mb_per_1000_retained": [each.disk_mb / max(1, each.retained) * 1000 for each in warm],
        "descriptors_per_process": [each.descriptors / max(1, each.processes) for each in warm],
        "threads_per_process": [each.threads / max(1, each.processes) for each in warm],
        PROCESSES: [float(each.processes) for each in warm],
    }
    at_s = [each.at_s for each in warm]
    return {name: Curve(round(v[0], 3), round(v[-1], 3), *growth(at_s, v)) for name, v in measures.items() if v}


def warmed_up(samples: Sequence[Sample]) -> list[Sample]:
    if not samples:
        return []
    begin_s, end_s = samples[0].at_s, samples[-1].at_s
    return [each for each in samples if each.at_s >= begin_s + (end_s - begin_s) * WARM_UP]


def growth(at_s: Sequence[float], values: Sequence[float]) -> tuple[float, ...]:
    """The slope of the line that fits best, and the slope less twice its standard error. Nothing with too few values."""
    mean = statistics.fmean(values) if values else 0.0
    if len(values) < 3 or at_s[-1] <= at_s[0] or not mean:  # noqa: PLR2004 - a line through two points fits always
        return ()
    line = statistics.linear_regression(at_s, values)
    squares = sum((value - line.slope * at - line.intercept) ** 2 for at, value in zip(at_s, values, strict=True))
    error = math.sqrt(squares / (len(values) - 2) / (statistics.pvariance(at_s) * len(at_s)))
    return tuple(round(slope * 3600 / mean, 4) for slope in (line.slope, line.slope - 2 * error))


def grown(samples: Sequence[Sample]) -> list[str]:
    # Nothing is said about a soak that is too short to tell.
    warm = warmed_up(samples)
    if not warm or warm[-1].at_s - warm[0].at_s < JUDGED_FROM_S:
        return []
    said = [
        f"{name} grows by {curve.growth:.1%} an hour, from {curve.first:,g} to {curve.last:,g}; at most {GROWTH_MAX:.0%} may be"
        for name, curve in curves(samples).items()
        if name != PROCESSES and (curve.sure_growth or 0) > GROWTH_MAX
    ]
    half = len(warm) // 2
    before, after = (min(each.processes for each in part) for part in (warm[:half], warm[half:]))
    if after > FEWEST_MAX * before:
        said.append(f"there were never fewer than {after} processes in the later half, and {before} in the earlier one")
    return said


class Soak(Scenario):
    """One soak. `wrong` has what any leg finds, and what grows."""

    name: ClassVar[str] = "soak"
    needs_own_cluster: ClassVar[bool] = True

    def __init__(self, for_s: float, seed: int) -> None:
        super().__init__(seed)
        self.played: Counter[str] = Counter()
        self._for_s, self._die = for_s, Random(f"{seed} soak")
        most = int(for_s / LEAST_LEG_S) + 1
        written = most * WAYS * max(messages_of([way]) for way in (*CALM, *DEADLY))
        self._chat = ChatRecoveryStory(most, seed, also=script_of(written, seed).questions)
        self._turns, self._points = 0, [PEACE]
        self._messages, self._release = 0, 1
        self._playing: list[asyncio.Task[None]] = []
        self._kinds: dict[str, Callable[[RayStage, int], Awaitable[None]]] = {
            "fan-out": self._fan_out,
            "jobs": self._jobs,
            "chat": self._turn,
            "messenger": self._messenger,
            "drill": self._drill,
            "stall": self._stall,
            "upgrade": self._upgrade,
            "clock": self._clock,
        }
        self._samples: list[Sample] = []
        self._is_stopped = False
        self._before = {child.pid for child in psutil.Process().children(recursive=True)}

    @contextlib.contextmanager
    def surroundings(self, data: Path | None) -> Iterator[None]:
        assert data is not None
        self._data = data = data.resolve()
        self._shift, self._chat.screen = beside(data, "clock"), self.screen
        shift_clocks(self._shift, 0)
        if may_be_filled(data):
            self._kinds["full disk"] = self._full_disk
        self._order_of_kinds = in_turns(list(self._kinds), lambda each: self._die.sample(each, len(each)))
        with self._chat.surroundings(data), SocketTelegram() as self._telegram:
            values = {**clerk_environment(self._telegram.base_url, SCRIPTED), CLOCK: str(self._shift)}
            with with_environment(values):
                yield

    async def play(self, stage: Stage) -> None:
        assert isinstance(stage, RayStage)
        begun_s = stage.now_s()
        try:
            while stage.now_s() - begun_s < self._for_s:
                await self._leg(stage)
                await self._rest(stage)
                self._samples.append(await self._sample(stage, stage.now_s() - begun_s))
        except asyncio.CancelledError:
            self._is_stopped = True
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            self.screen.say("stopped; this is the report so far")
        audit = await stage.ask("audit")
        self.wrong += unbalanced(audit)
        self.wrong += [f"a mail is parked: {each['mail_id']}, {each['error']}" for each in audit["parked_mail"]]
        self.wrong += grown(self._samples)

    # between legs

    async def _rest(self, stage: Stage) -> None:

        async def is_quiet() -> bool:
            overview = await stage.ask("ps", 0)
            return not (live_in(overview) or overview["audit"]["pending"])

        if not await stage.until(is_quiet, REST_S, LOOK_S):
            left = await waited_for(stage, self._data / "agents")
            self.wrong.append(f"under way {REST_S:.0f} s after leg {self.played.total()}: {left}")

    async def _sample(self, stage: RayStage, at_s: float) -> Sample:
        overview, pids = await stage.ask("ps", 0), await stage.pids()
        memory_mb, descriptors, threads, count = 0.0, 0, 0, 0
        for pid in pids:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                memory_mb += process.memory_full_info().pss / 2**20
                descriptors += process.num_fds()
                threads += process.num_threads()
                count += 1
        retained = sum(overview["runs"].values()) - live_in(overview)
        disk_mb = await asyncio.to_thread(size_mb, self._data)
        return Sample(round(at_s, 1), retained, round(memory_mb, 1), round(disk_mb, 2), descriptors, threads, count)

    # one leg

    async def _leg(self, stage: RayStage) -> None:
        number = self.played.total() + 1
        name = next(self._order_of_kinds) if number % BACKUP_EVERY else "backup"
        self.screen.say(f"leg {number}: {name}")
        self.played[name] += 1
        if name == "backup":
            target = str(beside(self._data, "backups"))
            await self.command("backup", str(self._data), target, "--keep", str(BACKUPS_KEPT))
        else:
            await self._bounded(self._kinds[name](stage, number), stage, f"leg {number}, {name}")

    async def _bounded(self, leg: Awaitable[None], stage: Stage, name: str) -> None:
        # A leg that does not end is given up, and what it waited for is what is wrong.
        bound = asyncio.timeout(LEG_S)
        try:
            async with bound:
                await leg
        except TimeoutError:
            if not bound.expired():
                raise
            for each in self._playing:
                each.cancel()
            shift_clocks(self._shift, 0)
            self.wrong.append(
                f"{name}: not over after {LEG_S:.0f} s; it waited for: {await waited_for(stage, self._data / 'agents')}"
            )
        finally:
            self._playing.clear()

    def _begin(self, story: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self._playing.append(asyncio.ensure_future(story))
        return self._playing[-1]

    # one story

    async def _fan_out(self, stage: RayStage, number: int) -> None:
        cold, kills = self._die.random() < COLD_RESTARTS, self._die.randint(0, 3)
        _, story = self._census(stage, number, 50, 400, kills=kills, cold_restart=cold)
        await self._play(story, stage, number)

    async def _jobs(self, stage: RayStage, number: int) -> None:
        jobs, desks, kills = self._die.randint(50, 300), self._die.randint(1, 4), self._die.randint(0, 2)
        story = Jobs(jobs, desks, kills, self._seed_of(number))
        story.screen = self.screen
        await self._play(story, stage, number)

    async def _turn(self, stage: RayStage, number: int) -> None:
        # The first turn is in peace, and shows what can break in the others.
        chat, provider = self._chat, self._provider
        before, killed, since = len(chat.wrong), Counter(chat.kills), provider.counters().requests
        await chat.turn(stage, self._die.choice(self._points), self._turns)
        if not self._turns:
            self._points = list[Point](chat.points_of(provider.log(since)))
        self._turns += 1
        self._found(number, "chat", chat.wrong[before:])
        self.kills += chat.kills - killed

    async def _messenger(self, stage: RayStage, number: int) -> None:
        provider = self._provider
        provider.set_plan(FaultPlan())
        provider.pace = messenger.PACE
        ways = [self._die.choice([*CALM, *DEADLY]) for _ in range(WAYS)]
        chats = self._die.randint(1, WAYS)
        played, seen = await messenger.correspond(self, stage, self._telegram, provider, ways, chats, self._messages)
        provider.pace = Pace()
        self._messages += messages_of(ways)
        self._found(number, "messenger", [*played.wrong, *seen.wrong()])

    # a fan-out under a fault

    async def _drill(self, stage: RayStage, number: int) -> None:
        # Strikes that do not wait for it to recover. A slow run may be struck in every attempt that it has.
        order, story = self._census(stage, number, 50, 200, DRILL_S)
        share = self._die.choice([None, 0.5, 1.0])
        plan = Plan(self._die.choice([1.0, 2.0]), DRILL_S, self._seed_of(number), fraction=share, settle_s=REST_S)
        drill = Chaos(stage, plan, self.screen.say)
        await asyncio.gather(story.play(stage), drill.play())
        told = drill.judge(await Account.of(stage))
        failed = await self._expect_all_told(stage, order, number, "drill", STRUCK_WORDS)
        self._found(number, "drill", [*drill.wrong, *([] if failed else story.wrong)])
        self.kills += Counter(told["kills"])

    async def _stall(self, stage: RayStage, number: int) -> None:
        order, story = self._census(stage, number, 20, 100, HINDERED_AFTER_S + self._die.uniform(0, 2))
        playing = self._begin(self._play(story, stage, number))
        await asyncio.sleep(HINDERED_AFTER_S)
        with stood_still(await stage.pids()):
            await asyncio.sleep(self._die.uniform(*STALLS_S))
        await playing
        await self._expect_first_attempts(stage, order, number, "stall")

    async def _clock(self, stage: RayStage, number: int) -> None:
        """The clocks of all processes are set forward and back, at once; beside it are jobs with queues that are drained, schedules and
        fibers. At the end the clocks are right again."""
        order, story = self._census(stage, number, 20, 100, JUMPS * JUMP_EVERY_S)
        jobs = Jobs(order.children, 2, 0, self._seed_of(number), JUMPS * JUMP_EVERY_S)
        playing = [self._begin(self._play(each, stage, number)) for each in (story, jobs)]
        for jump_ms in [*(self._die.randint(-JUMP_MS, JUMP_MS) for _ in range(JUMPS)), 0]:
            await asyncio.sleep(JUMP_EVERY_S)
            shift_clocks(self._shift, jump_ms)
        await asyncio.gather(*playing)
        await self._expect_first_attempts(stage, order, number, "clock")

    async def _full_disk(self, stage: RayStage, number: int) -> None:
        # The disk is full for a while. A fan-out that was refused starts again when there is room, and resumes.
        order, story = self._census(stage, number, 20, 100, HINDERED_AFTER_S + self._die.uniform(0, 4))
        playing = self._begin(story.play(stage))

        async def is_at_work() -> bool:
            return bool((await stage.ask("ps", 0))["runs"]["running"])

        await stage.until(is_at_work, REST_S, LOOK_S)
        with full_disk(self._data / "ballast"):
            await asyncio.sleep(self._die.uniform(*FULL_S))
        try:
            await playing
        except PerdureError as refusal:
            self.screen.say(f"refused: {refusal}")
            await stage.cold_restart()
            again = FanOut(order, order.pace_s, resume=True)
            again.joined(stage)
            await again.play(stage)
        await self._expect_all_told(stage, order, number, "full disk", DISK_WORDS)

    async def _expect_all_told(
        self, stage: RayStage, order: Order, number: int, name: str, excuses: Sequence[str]
    ) -> dict[str, str]:
        """Each run has completed, or failed for a reason with one of these words. The parent has heard of each end once. Returns the
        failures."""
        rows, report = await runs_of(stage, order), await stage.call(Census, order.parent, "report")
        failed = failures(rows)
        self._found(number, name, wrong_beside(excuses, failed, report, len(rows), order.children))
        if failed:
            self.screen.say(f"{len(failed)} of {len(rows)} runs failed, as they may ({name}): {some(list(failed))}")
        return failed

    async def _expect_first_attempts(self, stage: RayStage, order: Order, number: int, name: str) -> None:
        again = [row["run_id"] for row in await runs_of(stage, order) if row["attempt"] > 1]
        self._found(number, name, [f"{len(again)} runs needed another attempt: {some(again)}"] if again else [])

    async def _upgrade(self, stage: RayStage, number: int) -> None:
        release, name = self._release, f"errand-{self._seed_of(number)}"
        self._release += 1
        old, new = (beside(self._data, f"shop-{each}") for each in (release, release + 1))
        back = self._data.with_name(f"{self._data.name}-{name}")
        begun = await self._program(write_shop(old, release), "begin", name, back)
        await self._kill_host_of(stage, name)
        program = write_shop(new, release + 1)
        await self._program(program, "come", name, back)
        await self.command("upgrade", "--now", "--data", str(self._data))
        ended = await self._program(program, "end", name, back)
        back.unlink()
        for folder in (old, new):
            shutil.rmtree(folder)
        self._found(number, "upgrade", wrong_after_upgrade(release, begun, ended))

    async def _program(self, program: Path, what: str, run_id: str, back: Path) -> dict[str, Any]:
        printed = await self._printed([str(program), what, str(self._data), run_id, str(back)], program.name)
        told: dict[str, Any] = json.loads(printed.splitlines()[-1])
        return told

    async def _kill_host_of(self, stage: RayStage, run_id: str) -> None:
        async def has_struck() -> bool:
            overview = await stage.ask("ps", LIVE_MAX)
            home = next(
                (row["host"] for row in overview["live"] if row["run_id"] == run_id and row["status"] == "running"), ""
            )
            victim = hosts_in(overview).get(home)
            if victim is not None:
                await self.kill(stage, "child", victim)
            return victim is not None

        if not await stage.until(has_struck, REST_S, LOOK_S):
            self.wrong.append(f"{run_id} did not begin within {REST_S:.0f} s")

    # what legs share

    def _census(
        self, stage: RayStage, number: int, least: int, most: int, pace_s: float | None = None, **order: Any
    ) -> tuple[Order, FanOut]:
        asked = Order(children=self._die.randint(least, most), seed=self._seed_of(number), **order)
        story = FanOut(asked, pace_s)
        story.screen = self.screen
        story.joined(stage)
        return asked, story

    async def _play(self, story: Scenario, stage: RayStage, number: int) -> None:
        try:
            await story.play(stage)
        finally:
            self._found(number, story.name, story.wrong)
            self.kills += story.kills

    def _found(self, number: int, story: str, wrong: list[str]) -> None:
        self.wrong += [f"leg {number}, {story}: {each}" for each in wrong]

    def _seed_of(self, number: int) -> int:
        # The names of a story's agents follow from it, so that each leg has its own.
        return self.seed * 10_000 + number

    @property
    def _provider(self) -> SocketProvider:
        assert isinstance(self._chat.provider, SocketProvider)
        return self._chat.provider

    async def command(self, *words: str) -> object:
        out = await self._printed(["-m", "perdure.cli", *words, "--json"], f"perdure {words[0]}")
        return json.loads(out) if out.strip() else None

    async def _printed(self, words: list[str], name: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        if process.returncode:
            said = (err or out).decode().strip()[-500:]
            self.wrong.append(f"`{name}` ended with {process.returncode}: {said}")
        return out.decode()

    # the end

    def figures(self) -> dict[str, Any]:
        # The cluster is gone: its processes must be too, and its files must be whole.
        children = [each for each in psutil.Process().children(recursive=True) if each.pid not in self._before]
        _, alive = psutil.wait_procs(children, GONE_S)
        left = [f"{each.pid} {each.name()}" for each in alive if each.is_running()]
        self.wrong += [f"a process was left behind: {each}" for each in left]
        asyncio.run(self._examine())
        return {
            "legs": dict(self.played),
            "kills": dict(self.kills),
            "seconds": round(self.seconds, 1),
            "stopped": self._is_stopped,
            "samples": [each._asdict() for each in self._samples],
            "curves": {name: curve._asdict() for name, curve in curves(self._samples).items()},
            "left_behind": left,
        }

    async def _examine(self) -> None:
        await self.command("doctor", "--data", str(self._data))
        if self.played["backup"]:
            target, copy = beside(self._data, "backups"), beside(self._data, "restored")
            await self.command("restore", str(target), str(copy), "--replace")

    def sentences(self, told: dict[str, Any]) -> list[str]:
        said = [
            f"{in_words(told['legs'])} in {told['seconds']:.0f} s. Killed: {in_words(told['kills'])}.",
            *(
                f"{name}: {curve.first:,g} to {curve.last:,g}"
                + (f", {curve.growth:+.1%} an hour" if curve.growth is not None else "")
                for name, curve in curves(self._samples).items()
            ),
        ]
        if told["verified"]:
            said.append(
                "Verified: every leg, the audit, the doctor on the directory and on a restored backup; no process is left."
            )
        return said


def failures(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    return {row["run_id"]: str(row["outcome"]["error"]) for row in rows if row["status"] != "completed"}


def wrong_beside(
    excuses: Sequence[str], failed: dict[str, str], report: dict[str, Any], known: int, asked: int
) -> list[str]:
    """What is wrong, in sentences, with runs that may fail with one of these words: `failed` ones, and how often the parent was told."""
    wrong = [f"{run_id}: {why}" for run_id, why in failed.items() if not any(word in why for word in excuses)]
    told, different = report["deliveries"], report["distinct"]
    if {told, different, known} != {asked}:
        wrong.append(f"{told} ends of {different} runs were told, {known} are known, {asked} were asked for")
    return wrong


async def waited_for(stage: Stage, storages: Path) -> str:
    """Everything that is under way or due, each with its state: runs, mail, and the work that lies in the agents' storages."""
    told = await stage.ask("ps", LIVE_MAX)
    open_now = [each["told"] for each in (*told["unstartable"], *told["elsewhere"])]
    runs = [
        f"{row['run_id']} is {row['status']}, in attempt {row['attempt']}, on host {row['host']!r}"
        for row in told["live"]
    ]
    open_now += [f"runs: {some(runs)}"] if runs else []
    open_now += [f"{told['audit']['pending']} letters are not handled"] if told["audit"]["pending"] else []
    for kind in NAMES_OF_ROWS:
        found = await asyncio.to_thread(actors.everywhere, kind, DirectorySource(storages), failed=False)
        rows = open_rows(kind, found.rows)
        open_now += [f"{kind}: {some(rows)}"] if rows else []
    return "; ".join(open_now) or "nothing that the supervisor or a storage knows of"


def open_rows(kind: str, rows: Iterable[dict[str, Any]]) -> list[str]:
    # What waits for a person is not among them.
    return [
        f"{row[NAMES_OF_ROWS[kind]]} of {row['agent']} is {row['status']}, in attempt {row['attempt']}"
        + (f", last error: {row['error']:.200}" if row.get("error") else "")
        for row in rows
        if not row.get("is_settled", row["status"] in ("parked", "paused"))
    ]


def beside(data: Path, what: str) -> Path:
    return data.with_name(f"{data.name}-{what}")


# An author's program whose code changes while its agents are at work. Each release has the next number. The till tells its release, how
# often it was rung, and its book. It goes on with the newest release as soon as it has slept, and `migrate` has entered each change in
# the book once. A run keeps the release that it was asked for with, also after its host has died.

RINGS: Final = 3  # of the till, for each change

SHOP: Final = '''\
import asyncio
import json
import sys
from pathlib import Path

from perdure import Agent, Runtime, exposed

RELEASE = {release}


class Till(Agent, name="soak-till", version=RELEASE):
    """Counts, and keeps a book of its releases."""

    def migrate(self, from_version: int) -> None:
        self.state["book"] = [*self.state.get("book", []), [from_version, RELEASE]]

    @exposed
    def ring(self) -> list[object]:
        self.state["rung"] = self.state.get("rung", 0) + 1
        return [RELEASE, self.state["rung"], self.state.get("book", [])]


class Errand(Agent, name="soak-errand"):
    """Is away until a file is there, and says with which release it went."""

    async def run(self, input: str) -> int:
        while not Path(input).exists():
            await asyncio.sleep(0.05)
        return RELEASE


if __name__ == "__main__":
    what, data, run_id, back = sys.argv[1:]
    with Runtime(data) as runtime:
        told = {{"till": runtime.agent(Till, "till").ring()}}
        if what == "begin":
            runtime.start(Errand, back, run_id=run_id)
        elif what == "end":
            Path(back).touch()
            told["new"] = runtime.run(Errand, back, run_id=run_id + "-new").output
            told["old"] = runtime.run(Errand, back, run_id=run_id).output
    print(json.dumps(told))
'''


def write_shop(folder: Path, release: int) -> Path:
    folder.mkdir()
    program = folder / "shop.py"
    program.write_text(SHOP.format(release=release), encoding="utf-8")
    return program


def wrong_after_upgrade(release: int, begun: dict[str, Any], ended: dict[str, Any]) -> list[str]:
    # Release 1 is the first.
    book = [[each, each + 1] for each in range(1, release + 1)]
    expected = {
        "the till before the change": (begun["till"], [release, (release - 1) * RINGS + 1, book[:-1]]),
        "the till after the change": (ended["till"], [release + 1, release * RINGS, book]),
        "a run that was asked for before the change": (ended["old"], release),
        "a run that was asked for after the change": (ended["new"], release + 1),
    }
    return [f"{name} had {had}, not {right}" for name, (had, right) in expected.items() if had != right]


def size_mb(directory: Path) -> float:
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total / 2**20


def soak(
    lasting: Annotated[str, typer.Option("--for", help="How long legs are begun: 10m, 2h.", metavar="TIME")] = "30m",
    seed: Annotated[int, typer.Option(help="Decides the legs, their sizes and their kills.")] = 0,
    data: Data = Path("perdure-soak"),
    as_json: AsJson = False,
) -> None:
    """Play stories one after the other on one cluster, with kills, restarts and backups, and look whether anything grows.

    A leg is a fan-out, jobs, a turn of a chat agent or exchanges of people with a messenger agent, whose models are scripted. Each is
    checked as `perdure run` does. A drill is a fan-out that is struck as `perdure chaos` does it. In a stall the supervisor and all hosts
    stand still; in a leg `clock` the clocks of all processes are set forward and back while children, queues, schedules and fibers are at
    work. Either must cost no attempt, and lose nothing. In an upgrade a program comes with newer code while its agents are at work. With a
    full disk nothing can be written for a while: that is played only if DIR lies on a file system of at most 4 GB, which is then filled.
    A leg that does not end is given up, and what it waited for is told.

    After each leg the memory, file descriptors and threads of the supervisor and the hosts, and the disk, are measured. At the end come the
    audit, `doctor` on the directory and on a restored backup, and a look for processes left behind. Ctrl-C ends the soak with the report so
    far. The exit code is 1 if anything is wrong.

    The first third of the time is a warm-up. After it memory and disk for each retained run, and file descriptors and threads for each
    process, may grow by 2 % an hour, by the line that fits the samples best, less twice its standard error. Hosts come and go; the fewest
    processes in the later half may be half as many again as in the earlier one. Under 30 minutes that is told and not judged.

    With --json the object has legs, kills, seconds, stopped, samples, curves (first, last, and growth and sure_growth an hour as shares),
    left_behind and verified. Beside the directory lie DIR-backups, DIR-restored and DIR-clock.

    Examples:
        perdure soak --for 3m --seed 7
        perdure soak --for 2h --json
        mount -t tmpfs -o size=2g none small && perdure soak --data small/soak
    """
    perform(Soak(duration_ms(lasting, "for") / 1000, seed), "ray", data, as_json=as_json)
