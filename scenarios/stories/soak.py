"""`perdure soak`: the stories of `perdure run`, drawn one after the other on one cluster, for as long as you like.

A leg is a fan-out, jobs (fibers, schedules and a queue), or one turn of a chat agent with tools and sub-agents. Each kills what its story
kills: hosts, the supervisor, now and then everything at once. In a drill a fan-out is struck by the clock, as `perdure chaos` does it, and
shares of the hosts at once. In a stall the supervisor and all hosts stand still during a fan-out, which must cost no attempt. In between
the directory is backed up while it is served. After each leg the processes and the directory are measured. What the messenger's story needs
in the environment cannot be had beside the chat's, and clocks that jump and disks that are full cannot be had on a machine that others use:
those are played by the swarm and by `tests/crash`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Final

import psutil

from perdure.scenarios.stories.chaos import Chaos, Plan, some
from perdure.scenarios.stories.chat_play import PEACE
from perdure.scenarios.stories.chat_recovery import ChatRecovery
from perdure.scenarios.stories.engine import Scenario, in_words
from perdure.scenarios.stories.fan_out import FanOut
from perdure.scenarios.stories.fan_out_agents import Census
from perdure.scenarios.stories.fan_out_record import Order
from perdure.scenarios.stories.jobs import Jobs
from perdure.scenarios.stories.soak_curves import Sample, curves, grown, told
from perdure.scenarios.stories.stage import RayStage, Stage
from perdure.scenarios.stories.watchers import Watcher

LEAST_LEG_S: Final = 5.0  # that a turn of the chat takes at least, to know how many there can be
COLD_RESTARTS: Final = 0.15  # share of the fan-outs in which everything is killed at once
BACKUP_EVERY: Final = 5  # legs
DRILL_S: Final = 8.0
STALL_AFTER_S: Final = 2.0  # by then some children are at work
STALLS_S: Final = (3.0, 20.0)
REST_S: Final = 60.0  # for what a leg left under way
LOOK_S: Final = 0.2
GONE_S: Final = 20.0  # for the processes of the cluster, after its end


class Soak(Scenario):
    """One soak. `wrong` has what any leg finds, and what grows."""

    name: ClassVar[str] = "soak"
    needs_own_cluster: ClassVar[bool] = True

    def __init__(self, for_s: float, seed: int, watcher: Watcher) -> None:
        super().__init__(seed, watcher)
        self._for_s, self._die = for_s, Random(f"{seed} soak")
        self._chat = ChatRecovery(int(for_s / LEAST_LEG_S) + 1, seed, watcher)
        self._turns = 0
        self._legs: Counter[str] = Counter()
        self._samples: list[Sample] = []
        self._data = Path()
        self._is_stopped = False
        self._before = {child.pid for child in psutil.Process().children(recursive=True)}

    @contextlib.contextmanager
    def surroundings(self, data: Path | None) -> Iterator[None]:
        """Those of the chat."""
        assert data is not None
        self._data = data.resolve()
        with self._chat.surroundings(data):
            yield

    async def play(self, stage: Stage) -> None:
        """Leg after leg until the time is over, or somebody stops it."""
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
            self.watcher.say("stopped; this is the report so far")
        await self._audit(stage)

    # legs

    async def _leg(self, stage: RayStage) -> None:
        number = self._legs.total() + 1
        legs: dict[str, Callable[[RayStage, int], Awaitable[None]]] = {
            "fan-out": self._fan_out,
            "jobs": self._jobs,
            "chat": self._turn,
            "drill": self._drill,
            "stall": self._stall,
        }
        name = self._die.choice(list(legs)) if number % BACKUP_EVERY else "backup"
        self.watcher.say(f"leg {number}: {name}")
        self._legs[name] += 1
        if name == "backup":
            await self._command("backup", str(self._data), str(self._backups))
        else:
            await legs[name](stage, number)

    async def _fan_out(self, stage: RayStage, number: int) -> None:
        cold = self._die.random() < COLD_RESTARTS
        children, kills = self._die.randint(50, 400), self._die.randint(0, 3)
        story = FanOut(Order(children=children, kills=kills, seed=self._seed(number), cold_restart=cold), self.watcher)
        story.joined(stage)
        await self._play(story, stage, number)

    async def _drill(self, stage: RayStage, number: int) -> None:
        """A fan-out under strikes that do not wait for it to recover."""
        order = Order(children=self._die.randint(50, 200), seed=self._seed(number))
        story = FanOut(order, self.watcher, pace_s=DRILL_S)
        story.joined(stage)
        share = self._die.choice([None, 0.5, 1.0])
        plan = Plan(self._die.choice([1.0, 2.0]), DRILL_S, self._seed(number), fraction=share, settle_s=REST_S)
        drill = Chaos(stage, plan, self.watcher.say)
        await asyncio.gather(self._play(story, stage, number), drill.play())
        told = drill.judge(await stage.ask("ps", 0), await stage.ask("audit"))
        self.wrong += [f"leg {number}, drill: {each}" for each in drill.wrong]
        self.kills += Counter(told["kills"])

    async def _stall(self, stage: RayStage, number: int) -> None:
        """A fan-out during which the supervisor and the hosts stand still for a while, as on a machine that swaps or sleeps."""
        order = Order(children=self._die.randint(20, 100), seed=self._seed(number))
        story = FanOut(order, self.watcher, pace_s=STALL_AFTER_S + self._die.uniform(0, 2))
        story.joined(stage)
        playing = asyncio.ensure_future(self._play(story, stage, number))
        await asyncio.sleep(STALL_AFTER_S)
        with stood_still(await stage.pids()):
            await asyncio.sleep(self._die.uniform(*STALLS_S))
        await playing
        rows = await stage.ask("list", stage.agent_id(Census, f"fan-out-{order.number}"), None, None, order.children)
        again = [row["run_id"] for row in rows if row["attempt"] > 1]
        if again:
            self.wrong.append(f"leg {number}, stall: {len(again)} runs needed another attempt: {some(again)}")

    async def _jobs(self, stage: RayStage, number: int) -> None:
        jobs, desks, kills = self._die.randint(50, 300), self._die.randint(1, 4), self._die.randint(0, 2)
        await self._play(Jobs(jobs, desks, kills, self._seed(number), self.watcher), stage, number)

    async def _turn(self, stage: RayStage, number: int) -> None:
        """The first turn is in peace, and shows what can break in the others."""
        chat, provider = self._chat, self._chat.provider
        point = self._die.choice(chat.points_of(provider.log())) if self._turns and provider is not None else PEACE
        before, killed = len(chat.wrong), Counter(chat.kills)
        await chat.turn(stage, point, self._turns)
        self._turns += 1
        self.wrong += [f"leg {number}, chat: {each}" for each in chat.wrong[before:]]
        self.kills += chat.kills - killed

    async def _play(self, story: Scenario, stage: Stage, number: int) -> None:
        await story.play(stage)
        self.wrong += [f"leg {number}, {story.name}: {each}" for each in story.wrong]
        self.kills += story.kills

    def _seed(self, number: int) -> int:
        """One for each leg: the names of a story's agents follow from it."""
        return self.seed * 10_000 + number

    @property
    def _backups(self) -> Path:
        return self._data.with_name(f"{self._data.name}-backups")

    # between legs

    async def _rest(self, stage: Stage) -> None:
        """Wait until nothing is under way."""

        async def is_quiet() -> bool:
            overview = await stage.ask("ps", 0)
            live = overview["runs"]["starting"] + overview["runs"]["running"]
            return not (live or overview["audit"]["pending"])

        if not await stage.until(is_quiet, REST_S, LOOK_S):
            self.wrong.append(f"something was still under way {REST_S:.0f} s after leg {self._legs.total()}")

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
        runs = overview["runs"]
        retained = sum(runs.values()) - runs["starting"] - runs["running"]
        disk_mb = await asyncio.to_thread(size_mb, self._data)
        return Sample(round(at_s, 1), retained, round(memory_mb, 1), round(disk_mb, 2), descriptors, threads, count)

    # the end

    async def _audit(self, stage: Stage) -> None:
        audit = await stage.ask("audit")
        if not audit["balanced"]:
            self.wrong.append("the audit does not balance")
        self.wrong += [f"a mail is parked: {each['mail_id']}, {each['error']}" for each in audit["parked_mail"]]
        self.wrong += grown(self._samples)

    async def _command(self, *words: str) -> Any:
        """Run a command of `perdure` as a person would, and return what it prints as an object."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "perdure.cli",
            *words,
            "--json",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await process.communicate()
        if process.returncode:
            self.wrong.append(
                f"`perdure {words[0]}` ended with {process.returncode}: {(err or out).decode().strip()[-500:]}"
            )
        return json.loads(out) if out.strip() else None

    def figures(self) -> dict[str, Any]:
        """See `perdure soak --help`. The cluster is gone: its processes must be too, and its files must be whole."""
        left = self._left_behind()
        self.wrong += [f"a process was left behind: {each}" for each in left]
        asyncio.run(self._examine())
        return {
            "legs": dict(self._legs),
            "kills": dict(self.kills),
            "seconds": round(self.seconds, 1),
            "stopped": self._is_stopped,
            **told(self._samples),
            "left_behind": left,
        }

    async def _examine(self) -> None:
        await self._command("doctor", "--data", str(self._data))
        if self._legs["backup"]:
            copy = self._data.with_name(f"{self._data.name}-restored")
            await self._command("restore", str(self._backups), str(copy), "--replace")

    def _left_behind(self) -> list[str]:
        children = [each for each in psutil.Process().children(recursive=True) if each.pid not in self._before]
        _, alive = psutil.wait_procs(children, GONE_S)
        return [f"{each.pid} {each.name()}" for each in alive if each.is_running()]

    def sentences(self, told: dict[str, Any]) -> list[str]:
        """The same in words."""
        said = [
            f"{in_words(told['legs'])} in {told['seconds']:.0f} s. Killed: {in_words(told['kills'])}.",
            *(
                f"{curve.name}: {curve.first:,g} to {curve.last:,g}"
                + (f", {curve.growth:+.1%} an hour" if curve.growth is not None else "")
                for curve in curves(self._samples)
            ),
        ]
        if told["verified"]:
            said.append(
                "Verified: every leg, the audit, the doctor on the directory and on a restored backup; no process is left."
            )
        return said


@contextlib.contextmanager
def stood_still(pids: Sequence[int]) -> Iterator[None]:
    """These processes stand still meanwhile."""
    stopped: list[psutil.Process] = []
    try:
        for pid in pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                stopped.append(psutil.Process(pid))
                stopped[-1].suspend()
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()


def size_mb(directory: Path) -> float:
    """What the files of a directory take on the disk."""
    total = 0
    for path in directory.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total / 2**20
