"""The legs of a soak: each plays a story with what kills or hinders it, and checks it at its end.

The seed draws their order and their sizes. Each kind comes once before any comes twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from perdure import actors
from perdure.actors.ray_world.clocks import CLOCK, shift_clocks
from perdure.ledger import PerdureError
from perdure.ledger.maintenance.storage_sources import DirectorySource
from perdure.policies import in_turns
from perdure.scenarios.cast.census import Census
from perdure.scenarios.cast.clerk import clerk_environment, script_of
from perdure.scenarios.cast.environment import SCRIPTED, with_environment
from perdure.scenarios.faults.chaos import Account, Chaos, Plan
from perdure.scenarios.faults.machine import full_disk, may_be_filled, stood_still
from perdure.scenarios.faults.strikes import hosts_in, some
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.server import SocketProvider
from perdure.scenarios.stories import messenger
from perdure.scenarios.stories.chat_play import PEACE, Point
from perdure.scenarios.stories.chat_recovery import ChatRecoveryStory
from perdure.scenarios.stories.engine import Scenario
from perdure.scenarios.stories.fan_out import FanOut, Order, runs_of
from perdure.scenarios.stories.jobs import Jobs
from perdure.scenarios.stories.messenger_play import CALM, DEADLY, messages_of
from perdure.scenarios.stories.stage import RayStage, Stage
from perdure.scenarios.telegram.server import SocketTelegram

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


class Legs:
    """Every kind of leg of a soak. What any of them finds, and what failed in between, is told to it."""

    def __init__(self, soak: Scenario, for_s: float) -> None:
        self.played: Counter[str] = Counter()
        seed = soak.seed
        self._soak, self._seed, self._die = soak, seed, Random(f"{seed} soak")
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

    @contextlib.contextmanager
    def surroundings(self, data: Path) -> Iterator[None]:
        """A model, a workspace and a Telegram, and clocks that can be set."""
        self._data, self._shift, self._storages = data, beside(data, "clock"), data / "agents"
        self._chat.screen = self._soak.screen
        shift_clocks(self._shift, 0)
        if may_be_filled(data):
            self._kinds["full disk"] = self._full_disk
        self._order_of_kinds = in_turns(list(self._kinds), lambda each: self._die.sample(each, len(each)))
        with self._chat.surroundings(data), SocketTelegram() as self._telegram:
            values = {**clerk_environment(self._telegram.base_url, SCRIPTED), CLOCK: str(self._shift)}
            with with_environment(values):
                yield

    async def play(self, stage: RayStage) -> None:
        """Play the next one."""
        number = self.played.total() + 1
        name = next(self._order_of_kinds) if number % BACKUP_EVERY else "backup"
        self._soak.screen.say(f"leg {number}: {name}")
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
            self._soak.wrong.append(
                f"{name}: not over after {LEG_S:.0f} s; it waited for: {await waited_for(stage, self._storages)}"
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
        story.screen = self._soak.screen
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
        self._soak.kills += chat.kills - killed

    async def _messenger(self, stage: RayStage, number: int) -> None:
        provider = self._provider
        provider.set_plan(FaultPlan())
        provider.pace = messenger.PACE
        ways = [self._die.choice([*CALM, *DEADLY]) for _ in range(WAYS)]
        room = messenger.Correspondence(stage, self._telegram, provider, self._soak.screen.say, self._seed)
        played, seen = await room.play(
            ways, self._die.randint(1, WAYS), partial(self._soak.kill, stage), self._messages
        )
        provider.pace = Pace()
        self._messages += messages_of(ways)
        self._found(number, "messenger", [*played.wrong, *seen.wrong()])

    # a fan-out under a fault

    async def _drill(self, stage: RayStage, number: int) -> None:
        # Strikes that do not wait for it to recover. A slow run may be struck in every attempt that it has.
        order, story = self._census(stage, number, 50, 200, DRILL_S)
        share = self._die.choice([None, 0.5, 1.0])
        plan = Plan(self._die.choice([1.0, 2.0]), DRILL_S, self._seed_of(number), fraction=share, settle_s=REST_S)
        drill = Chaos(stage, plan, self._soak.screen.say)
        await asyncio.gather(story.play(stage), drill.play())
        told = drill.judge(await Account.of(stage))
        failed = await self._expect_all_told(stage, order, number, "drill", STRUCK_WORDS)
        self._found(number, "drill", [*drill.wrong, *([] if failed else story.wrong)])
        self._soak.kills += Counter(told["kills"])

    async def _stall(self, stage: RayStage, number: int) -> None:
        order, story = self._census(stage, number, 20, 100, HINDERED_AFTER_S + self._die.uniform(0, 2))
        playing = self._begin(self._play(story, stage, number))
        await asyncio.sleep(HINDERED_AFTER_S)
        with stood_still(await stage.pids()):
            await asyncio.sleep(self._die.uniform(*STALLS_S))
        await playing
        await self._expect_first_attempts(stage, order, f"leg {number}, stall")

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
        await self._expect_first_attempts(stage, order, f"leg {number}, clock")

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
            self._soak.screen.say(f"refused: {refusal}")
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
            self._soak.screen.say(
                f"{len(failed)} of {len(rows)} runs failed, as they may ({name}): {some(list(failed))}"
            )
        return failed

    async def _expect_first_attempts(self, stage: RayStage, order: Order, where: str) -> None:
        again = [row["run_id"] for row in await runs_of(stage, order) if row["attempt"] > 1]
        if again:
            self._soak.wrong.append(f"{where}: {len(again)} runs needed another attempt: {some(again)}")

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
                await self._soak.kill(stage, "child", victim)
            return victim is not None

        if not await stage.until(has_struck, REST_S, LOOK_S):
            self._soak.wrong.append(f"{run_id} did not begin within {REST_S:.0f} s")

    # what legs share

    def _census(
        self, stage: RayStage, number: int, least: int, most: int, pace_s: float | None = None, **order: Any
    ) -> tuple[Order, FanOut]:
        asked = Order(children=self._die.randint(least, most), seed=self._seed_of(number), **order)
        story = FanOut(asked, pace_s)
        story.screen = self._soak.screen
        story.joined(stage)
        return asked, story

    async def _play(self, story: Scenario, stage: RayStage, number: int) -> None:
        try:
            await story.play(stage)
        finally:
            self._found(number, story.name, story.wrong)
            self._soak.kills += story.kills

    def _found(self, number: int, story: str, wrong: list[str]) -> None:
        self._soak.wrong += [f"leg {number}, {story}: {each}" for each in wrong]

    def _seed_of(self, number: int) -> int:
        # The names of a story's agents follow from it, so that each leg has its own.
        return self._seed * 10_000 + number

    @property
    def _provider(self) -> SocketProvider:
        assert isinstance(self._chat.provider, SocketProvider)
        return self._chat.provider

    async def command(self, *words: str) -> Any:
        out = await self._printed(["-m", "perdure.cli", *words, "--json"], f"perdure {words[0]}")
        return json.loads(out) if out.strip() else None

    async def _printed(self, words: list[str], name: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, err = await process.communicate()
        if process.returncode:
            said = (err or out).decode().strip()[-500:]
            self._soak.wrong.append(f"`{name}` ended with {process.returncode}: {said}")
        return out.decode()


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
    """What of these fibers, schedules with items of queues, or turns is not over and does not wait for a person."""
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
    """What is wrong after the change from this release to the next, in sentences. Release 1 is the first."""
    book = [[each, each + 1] for each in range(1, release + 1)]
    expected = {
        "the till before the change": (begun["till"], [release, (release - 1) * RINGS + 1, book[:-1]]),
        "the till after the change": (ended["till"], [release + 1, release * RINGS, book]),
        "a run that was asked for before the change": (ended["old"], release),
        "a run that was asked for after the change": (ended["new"], release + 1),
    }
    return [f"{name} had {had}, not {right}" for name, (had, right) in expected.items() if had != right]
