"""`perdure run newsroom`: editions wait for answers, an approval, a correction and Monday, while processes are killed.

The people who approve and correct write at times of the newsroom's calendar, whatever is dead then. What was written is durable, and
written again it is the same, so the same command resumes on the same directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shlex
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Any, ClassVar, Final

import httpx
import typer

from perdure import AlreadyAnswered, BadRequest, Limits, UnknownAsk
from perdure.actors import messenger_app
from perdure.ledger import lasting
from perdure.scenarios.cast.clerk import EDITORS, EditorsDesk, clerk_environment
from perdure.scenarios.cast.environment import SCRIPTED, SIMULATED, with_environment
from perdure.scenarios.cast.newsroom import (
    APPROVED,
    CORRECTED,
    DAY_H,
    DECIDED,
    ENDED,
    ENTRIES,
    PEOPLE,
    PRINTER,
    UNREAD,
    WAYS,
    Calendar,
    Newsroom,
    Press,
    Printer,
    SeenEdition,
    SeenMessage,
    SeenPress,
    press_of,
    question_of,
    researchers_of,
    wrong_editions,
)
from perdure.scenarios.cast.outside import simulated
from perdure.scenarios.commands.options import AsJson, Data, World, WorldName, duration_ms
from perdure.scenarios.commands.shown import in_words
from perdure.scenarios.faults.chaos import unbalanced
from perdure.scenarios.faults.strikes import Overview
from perdure.scenarios.provider.script import Script
from perdure.scenarios.simulated_telegram import BotApi, Posted, SocketTelegram
from perdure.scenarios.stories.by_progress import AIM_S, Scene, StruckScenario, draw_kills
from perdure.scenarios.stories.engine import perform, simulate_in_one_world
from perdure.scenarios.stories.messenger import posting, posting_inside
from perdure.scenarios.stories.messenger_play import AGAIN_S, HEADERS, PATH, REST_S
from perdure.scenarios.stories.stage import Stage
from perdure.scenarios.testing.laboratory import QUICK

EDITIONS_MAX: Final = 200
KINDS: Final = ("edition", "newsroom", "desk", "supervisor")
DAYS: Final = {WorldName.RAY: "6s", WorldName.SIM: "2m"}
DAY_LEAST_MS: Final = 1_000
DAY_MOST_MS: Final = {WorldName.RAY: 7 * 86_400_000, WorldName.SIM: 4 * 3_600_000}
LOOKS_A_DAY: Final = 144
UNREVIEWED: Final = 3  # every third edition is reviewed by nobody
MAIL_FIRST_H: Final = 0.5  # after the opening
MAIL_LAST_H: Final = 10.0
TWICE: Final = 2
HESITATION_S: Final = 0.4
FIRST_PERSON: Final = 701
SHOWN_MAX: Final = 5_000  # live runs that are looked at


class NewsroomScenario(StruckScenario):
    """Some editions of one newsroom. A run of it gives up its place as soon as it waits for an hour of the calendar."""

    name: ClassVar[str] = "newsroom"
    needs_own_cluster: ClassVar[bool] = True

    def __init__(self, editions: int, kills: int, seed: int, day_ms: int) -> None:
        super().__init__(seed)
        self._kills_max, self._day_ms = kills, day_ms
        self._room, self._prefix = f"newsroom-{seed}", f"edition-{seed}-"
        self._editions = [f"{self._prefix}{number}" for number in range(editions)]
        usual = Limits()
        self.limits = replace(usual, wait_in_memory_ms=min(usual.wait_in_memory_ms, day_ms // DAY_H))
        self.quick = replace(QUICK, wait_in_memory_ms=self.limits.wait_in_memory_ms)  # in the simulated world
        self.scene = Scene(ENTRIES * editions, "entries", kills=self.kills)
        self._approved_by_ms: dict[str, float] = {}
        self._rested: set[str] = set()
        self._asked: set[str] = set()
        self._asked_before: set[str] = set()
        self._presses: dict[str, list[SeenPress]] = defaultdict(list)
        self._people: list[asyncio.Task[None]] = []
        self._seen: list[SeenEdition] = []
        self._audit: dict[str, Any] = {}

    @contextlib.contextmanager
    def surroundings(self, data: Path | None) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            if data is None:
                self._telegram: BotApi = stack.enter_context(simulated(Script())).telegram
                values = clerk_environment(SIMULATED, SIMULATED)
            else:
                socket = stack.enter_context(SocketTelegram())
                self._telegram, values = socket, clerk_environment(socket.base_url, SCRIPTED)
            stack.enter_context(with_environment(values))
            yield

    def stopped(self, data: Path) -> str:
        day = f"{self._day_ms / 1000:g}s"
        again = ["--editions", len(self._editions), "--day", day, "--seed", self.seed, "--data", data]
        return f"Stopped. `{shlex.join(['perdure', 'run', self.name, *map(str, again)])}` carries on."

    def simulate(self) -> None:
        simulate_in_one_world(self, self.play, limits=self.quick)

    async def play(self, stage: Stage) -> None:
        self._stage, self._began_s = stage, stage.now_s()
        opened = await stage.call(Newsroom, self._room, "open", self._editions, self._day_ms, self.seed)
        self._calendar: Calendar = opened.calendar
        self._ahead_ms: float = opened.now_ms - self._began_s * 1000
        self.screen.say(f"{len(self._editions)} editions are made; a day lasts {self._calendar.day_ms / 1000:g} s")
        known = {(entry.edition, entry.what) for entry in await stage.call(Newsroom, self._room, "diary")}
        self._asked_before = {asked["ask_id"] for asked in await stage.ask("asks")}
        app = messenger_app(stage.client, EditorsDesk)
        async with posting(app) if stage.world == "ray" else posting_inside(app) as self._post:
            await self._make_editions(stage, known)
        await self._harvest()

    async def _make_editions(self, stage: Stage, known: set[tuple[str, str]]) -> None:
        loop = asyncio.get_running_loop()
        self._people = [
            loop.create_task(mail)
            for number, edition in enumerate(self._editions)
            for mail in self._mails(number, edition, known)
        ]
        try:
            await self.direct(stage, draw_kills(KINDS, self._kills_max, self.scene.requested, self.seed))
            await asyncio.gather(*self._people)
        finally:
            for task in self._people:
                task.cancel()

    # the people

    def _mails(self, number: int, edition: str, known: set[tuple[str, str]]) -> Iterator[Coroutine[Any, Any, None]]:
        die = Random(f"{self.seed} mail {edition}")
        approval_h, correction_h = (die.uniform(MAIL_FIRST_H, MAIL_LAST_H) for _ in range(2))
        if (edition, CORRECTED) not in known:
            yield self._correct(edition, correction_h)
        if is_reviewed(number) and not known & {(edition, APPROVED), (edition, UNREAD)}:
            yield self._approve(edition, approval_h)

    async def _correct(self, edition: str, hours: float) -> None:
        await self._sleep_until(hours)
        for _ in range(TWICE):
            await self._stage.call(Newsroom, self._room, "correct", edition, correction_of(edition))

    async def _approve(self, edition: str, hours: float) -> None:
        await self._sleep_until(hours)
        for _ in range(TWICE):  # as from a reviewer who is not sure that it has arrived
            await self._stage.client.send(edition, "approval", approval_of(edition), event_id=f"approval of {edition}")
            self._approved_by_ms.setdefault(edition, self._now_ms())

    async def _sleep_until(self, hours: float) -> None:
        until_ms = self._calendar.opened_at_ms + self._calendar.lasting_s(hours) * 1000
        await asyncio.sleep(max(0.0, until_ms - self._now_ms()) / 1000)

    def _now_ms(self) -> float:
        return self._stage.now_s() * 1000 + self._ahead_ms

    async def _decide(self, ask_id: str, who: str, way: str) -> None:
        with contextlib.suppress(AlreadyAnswered):
            await self._stage.answer(ask_id, way, who)

    async def _press(self, edition: str, message: Posted, number: int) -> None:
        # On a device that shows the button even if it is gone by then.
        stage, who, way = self._stage, PEOPLE[number], WAYS[number]
        await asyncio.sleep(Random(f"{self.seed} press {edition} {who}").choice((0.0, HESITATION_S)))
        update = self._telegram.press(message, way, who, FIRST_PERSON + number)
        body, sent_s = json.dumps(update).encode(), stage.now_s()

        async def is_accepted() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                return (await self._post.post(PATH, content=body, headers=HEADERS)).is_success
            return False

        if not await stage.until(is_accepted, REST_S, AGAIN_S):
            self.wrong.append(f"the press of {who} for {edition} was never accepted")
        await is_accepted()  # once more, as from a Telegram that has not heard the answer
        press_id, named = update["callback_query"]["id"], f"telegram:{who} ({FIRST_PERSON + number})"
        acknowledged_s = stage.now_s()

        async def is_told() -> bool:
            return bool(self._telegram.presses[press_id].told)

        await stage.until(is_told, REST_S, AGAIN_S)
        told = self._telegram.presses[press_id].told
        self._presses[edition].append(SeenPress(named, way, told, sent_s, acknowledged_s))

    def _messages(self, edition: str) -> list[Posted]:
        return [each for each in list(self._telegram.messages.values()) if question_of(edition) in each.text]

    # what the kills ask

    async def look(self) -> None:
        scene, stage = self.scene, self._stage
        scene.ended = await stage.call(Newsroom, self._room, "progress")
        scene.overview, scene.seconds = await stage.ask("ps", SHOWN_MAX), stage.now_s() - self._began_s
        waiting = {row["run_id"] for row in scene.overview["live"] if row["waits"] and not row["host"]}
        self._rested |= waiting.intersection(self._editions)
        for asked in await stage.ask("asks"):
            if asked["run_id"] in self._editions and asked["ask_id"] not in self._asked:
                self._ask_people(asked["ask_id"], asked["run_id"])
        for task in self._people:
            if task.done():
                task.result()  # what it raises ends the story
        self.screen.show(scene)

    def _ask_people(self, ask_id: str, edition: str) -> None:
        answers: list[Coroutine[Any, Any, None]] = []
        if ask_id in self._asked_before:  # its message stands in another Telegram
            answers = [self._decide(ask_id, who, way) for who, way in zip(PEOPLE, WAYS, strict=True)]
        elif message := next((each for each in self._messages(edition) if each.buttons), None):
            answers = [self._press(edition, message, number) for number in range(len(PEOPLE))]
        if answers:
            self._asked.add(ask_id)
            self._people += map(asyncio.get_running_loop().create_task, answers)

    def wake(self, kinds: set[str]) -> None:
        # A desk at which nobody asks anything has no process.
        if "desk" in kinds:
            self.wake_by(self._stage, EditorsDesk, EDITORS, "list_deliveries")

    def is_over(self) -> bool:
        mail = self.scene.overview["audit"]["pending"]
        return self.scene.ended >= self.scene.requested and not mail and not self.due

    def _pause(self, seconds: float) -> float:
        # Less happens in an hour of a long day. A recovery is looked at as closely as ever.
        least_s = self._calendar.day_ms / 1000 / LOOKS_A_DAY if seconds >= AIM_S else 0.0
        return super()._pause(max(seconds, least_s))

    def hosts_of(self, kind: str, overview: Overview) -> set[str]:
        if kind == "desk":
            return {host for agent, host, _ in overview["agents"] if agent.endswith(f":{EditorsDesk.__name__}")}
        if kind == "newsroom":
            return {host for agent, host, _ in overview["agents"] if agent.partition("@")[0] == self._room}
        return {row["host"] for row in overview["live"] if row["host"] and row["run_id"].startswith(self._prefix)}

    # the end

    async def _harvest(self) -> None:
        stage = self._stage
        diary = await stage.call(Newsroom, self._room, "diary")
        for number, edition in enumerate(self._editions):
            researchers = {run_id: (await stage.ask("inspect", run_id))["status"] for run_id in researchers_of(edition)}
            press = stage.client.agent(Press, press_of(edition))
            seen = SeenEdition(
                edition,
                approval_of(edition) if is_reviewed(number) else None,
                self._approved_by_ms.get(edition),
                correction_of(edition),
                [entry for entry in diary if entry.edition == edition],
                researchers,
                await stage.client.agent(Printer, PRINTER, of=press).book(),
                await self._decisions(edition),
                self._presses[edition],
                [SeenMessage(each.text, len(each.buttons)) for each in self._messages(edition)],
            )
            self._seen.append(seen)
            self.wrong += wrong_editions(self._calendar, seen)
        self._audit = await stage.ask("audit")
        self.wrong += unbalanced(self._audit)

    async def _decisions(self, edition: str) -> list[list[str]]:
        try:
            asked = await self._stage.ask("ask", edition, 1)
        except UnknownAsk:
            return []
        return [[each["who"], each["value"]] for each in asked["answers"]]

    def figures(self) -> dict[str, Any]:
        counts = Counter(entry.what for seen in self._seen for entry in seen.entries)
        statuses = Counter(status for seen in self._seen for status in seen.researchers.values())
        bookings = Counter(what for seen in self._seen for what in seen.bookings)
        return {
            "editions": {
                "requested": len(self._editions),
                "ended": counts[ENDED],
                "seen_without_host": len(self._rested),
            },
            "researchers": {"used": statuses["completed"], "cancelled": statuses["aborted"]},
            "approvals": {"taken": counts[APPROVED], "missed": counts[UNREAD]},
            "corrections": counts[CORRECTED],
            "printers": {"booked": bookings["booked"], "cancelled": bookings["cancelled"]},
            "decisions": counts[DECIDED],
            "presses": sum(len(seen.presses) for seen in self._seen),
            "deliveries": {key: value for key, value in self._audit.items() if isinstance(value, int)},
            "kills": {kind: self.kills[kind] for kind in KINDS},
            "seconds": round(self.seconds, 3),
        }

    def sentences(self, told: dict[str, Any]) -> list[str]:
        editions, researchers, printers = told["editions"], told["researchers"], told["printers"]
        ended = f"{editions['ended']} of {editions['requested']} editions ended in {told['seconds']:.1f} s"
        approvals = f"{told['approvals']['taken']} approvals were taken, and {told['approvals']['missed']} did not come in a day"
        printers_said = f"printers were booked {printers['booked']} times, and {printers['cancelled']} bookings undone"
        decided = f"{told['decisions']} times two people were asked, and one of them decided"
        said = [
            f"{ended}; {editions['seen_without_host']} were seen waiting without a host. Killed: {in_words(told['kills'])}.",
            f"{researchers['used']} answers of researchers were used, and {researchers['cancelled']} researchers were cancelled.",
            f"{approvals}; {told['corrections']} corrections were read.",
            f"{printers_said.capitalize()}. {decided}; {told['presses']} presses of buttons were told what came of them.",
        ]
        if told["verified"]:
            said.append(
                "Verified: each of these took effect once, and nobody was awake before Monday, 08:30 in Berlin."
            )
        return said


def is_reviewed(number: int) -> bool:
    return number % UNREVIEWED != UNREVIEWED - 1


def approval_of(edition: str) -> str:
    return f"{edition} is fine"


def correction_of(edition: str) -> str:
    return f"the name in {edition} is Ada"


def run_newsroom(
    editions: Annotated[int, typer.Option(min=1, max=EDITIONS_MAX, help="Number of editions.")] = 3,
    kills: Annotated[int, typer.Option(min=0, max=1_000, help="Number of processes to kill.")] = 4,
    day: Annotated[
        str | None,
        typer.Option(
            help="How long a day of the newsroom lasts, such as 20s; by default 6s, and 2m in the simulated world."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides who knows and writes what when, and which process is killed.")] = 0,
    world: World = WorldName.RAY,
    data: Data = Path("perdure-data"),
    as_json: AsJson = False,
) -> None:
    """Make editions that wait from Friday to Monday, for answers, people and the time, while processes are killed.

    Each edition asks five researchers and goes on with the first two answers; the others are cancelled. It waits a day for a reviewer,
    who is missing for every third one, reads a correction, and sleeps until Monday, 08:30 in Berlin. Printing fails for good, so the
    booking of a printer is undone, and two people are asked how the edition appears, by buttons in a simulated Telegram: the first one
    decides, and the other one is told. While an edition waits it has no process. A newsroom's day lasts as long as --day says. It kills
    the host of a run, of the newsroom or of the agent that asks in Telegram, and the supervisor. At the end each of these must have taken
    effect once, and nothing too early. The exit code is 1 if anything differs. The same command resumes on the same directory.

    With --json the object has editions, researchers, approvals, corrections, printers, decisions and presses (counts), deliveries, kills,
    seconds and verified.

    Examples:
        perdure run newsroom
        perdure run newsroom --editions 10 --kills 6 --day 20s --seed 7 --json
        perdure run newsroom --world sim --editions 6 --kills 12
    """
    asked = DAYS[world] if day is None else day
    day_ms = duration_ms(asked, "day", DAY_MOST_MS[world])
    if day_ms < DAY_LEAST_MS:
        raise BadRequest("day", f"{asked!r} is too short for the work of a day; give {lasting(DAY_LEAST_MS)} or more")
    perform(NewsroomScenario(editions, kills, seed, day_ms), world, data, as_json=as_json)
