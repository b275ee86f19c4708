"""The agents of `perdure run newsroom`: editions that wait for people and for Monday, and what must be found of them afterwards.

An edition asks five researchers and goes on with the first two, waits a day for a reviewer, reads a correction, sleeps over a weekend in
which the clocks are changed, fails to print, and asks two people what now. Time is that of a calendar whose days may last seconds. The
diary of the newsroom and the book of a printer have no keys, on purpose: an effect that happened twice would show as two rows.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from perdure import Agent, Detached, MilestoneInfo, Retries, RunContext, RunInfo, RunResult, WaitTimedOut, exposed, tell
from perdure.policies import Delivery
from perdure.scenarios.cast.clerk import EDITORS, EditorsDesk

BERLIN: Final = ZoneInfo("Europe/Berlin")
OPENED: Final = datetime(2027, 3, 26, 17, 0, tzinfo=BERLIN)
MONDAY: Final = datetime(
    2027, 3, 29, 8, 30, tzinfo=BERLIN
)  # an hour earlier than on other Mondays: it is summer time now

RESEARCHERS: Final = 5
ANSWERS: Final = 2
DAY_H: Final = 24
SILENCE_MAX_S: Final = 30.0  # of a run at work, on a calendar with long days
PRINTER: Final = "printer"
STUBBORN: Final = Retries(attempts_max=3, first_ms=50, most_ms=200)

REPEATED: Final = Delivery().repeated_text
WAYS: Final = ("on the web", "next week")
PEOPLE: Final = ("ada", "ben")  # who are asked how it appears; each has a device, and wants another way

ANSWERED: Final = "answered"
DRAFTED: Final = "drafted"
APPROVED: Final = "approved"
UNREAD: Final = "unread"
CORRECTED: Final = "corrected"
AWAKE: Final = "awake"
UNPRINTED: Final = "unprinted"
DECIDED: Final = "decided"
ENDED: Final = "ended"
MILESTONES: Final = (ANSWERED, DRAFTED, APPROVED, UNREAD, CORRECTED, AWAKE, UNPRINTED, DECIDED)
ENTRIES: Final = len(MILESTONES)  # in the diary, of each edition: it is approved or unread, and it ends


class Calendar(BaseModel):
    """The calendar of a newsroom. It opens on a Friday at five, and a day of it lasts `day_ms`."""

    opened_at_ms: int
    day_ms: int

    def lasting_s(self, hours: float) -> float:
        return hours / DAY_H * self.day_ms / 1000

    def instant(self, when: datetime) -> datetime:
        """When it is so late by the clock of the world."""
        hours = (when.astimezone(UTC) - OPENED.astimezone(UTC)) / timedelta(hours=1)
        return datetime.fromtimestamp(self.opened_at_ms / 1000 + self.lasting_s(hours), UTC)


class OpenedEdition(BaseModel):
    """A newsroom that is open, and its time."""

    calendar: Calendar
    now_ms: int


class EditionQuestion(BaseModel):
    """What a researcher is asked. It knows after `minutes` of the calendar, or not before next week."""

    calendar: Calendar
    number: int
    minutes: int
    is_slow: bool


class Assignment(BaseModel):
    """One edition."""

    calendar: Calendar
    seed: int


class DiaryEntry(BaseModel):
    """A row of the diary."""

    edition: str
    what: str
    data: Any


async def work(run: RunContext, calendar: Calendar, minutes: float) -> None:
    """Be at work for so many minutes of the calendar, and say how far it is."""
    whole_s = calendar.lasting_s(minutes / 60)
    parts = max(4, math.ceil(whole_s / SILENCE_MAX_S))
    for part in range(parts):
        await asyncio.sleep(whole_s / parts)
        await run.report_progress((part + 1) / (parts + 1), phase="at work")


class Researcher(Agent):
    async def run(self, input: EditionQuestion, run: RunContext) -> int:
        await work(run, input.calendar, input.minutes)
        if input.is_slow and input.number % 2:
            await run.sleep(input.calendar.lasting_s(7 * DAY_H))
        elif input.is_slow:
            await run.wait_for("archive opens", timeout=input.calendar.lasting_s(7 * DAY_H))
        return input.number


class Printer(Agent):
    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS bookings (what VARCHAR)")

    @exposed
    def note(self, what: str) -> None:
        self.sql("INSERT INTO bookings VALUES ($1)", [what])

    @exposed(repeatable=True)
    def book(self) -> list[str]:
        return [what for (what,) in self.sql("SELECT what FROM bookings")]


# It fails for good, so the booking is undone.
class Press(Agent):
    async def run(self, input: Calendar, run: RunContext) -> str:
        await run.step("book", self.reserve, undo=self.release)
        await work(run, input, 10)
        return await run.step("print", partial(self.print, input), retry=STUBBORN, timeout=3_600)

    async def reserve(self) -> str:
        await tell(self.sub_agent(Printer, PRINTER).note, "booked")
        return PRINTER

    async def release(self, printer: str | None) -> None:
        await tell(self.sub_agent(Printer, printer or PRINTER).note, "cancelled")

    async def print(self, calendar: Calendar) -> str:
        await asyncio.sleep(min(SILENCE_MAX_S, calendar.lasting_s(1 / 6)))
        raise OSError("there is no paper")


class Edition(Agent):
    """One edition, from Friday evening to Monday morning."""

    async def run(self, input: Assignment, run: RunContext) -> str:
        calendar = input.calendar
        answers = await self.first_ok(ANSWERS, list(questions(run.run_id, input)))
        await run.report_progress(milestone=ANSWERED, data=sorted(each.run_id for each in answers))
        await work(run, calendar, 30)
        await run.report_progress(milestone=DRAFTED, data=self._perdure.now_ms())
        try:
            approval = await run.wait_for("approval", timeout=calendar.lasting_s(DAY_H))
            await run.report_progress(milestone=APPROVED, data=approval)
        except WaitTimedOut:
            await run.report_progress(milestone=UNREAD, data=self._perdure.now_ms())
        message = await run.receive()
        await run.report_progress(milestone=CORRECTED, data=message.value)
        await run.sleep_until(calendar.instant(MONDAY))
        await run.report_progress(milestone=AWAKE, data=self._perdure.now_ms())
        printed = await self.run_agent_tool(Press, calendar, run_id=press_of(run.run_id))
        await run.report_progress(milestone=UNPRINTED, data=[printed.status, printed.error])
        desk = self.agent(EditorsDesk, EDITORS)
        decision = await run.ask(question_of(run.run_id), list(WAYS), to=EDITORS, via=desk)
        await run.report_progress(milestone=DECIDED, data=[decision.who, decision.value])
        return f"{decision.value}, from {len(answers)} answers"


def question_of(edition: str) -> str:
    return f"{edition} cannot be printed. How does it appear?"


def questions(edition: str, assignment: Assignment) -> Iterator[dict[str, Any]]:
    # Two of them are quick.
    die = random.Random(f"{assignment.seed} {edition}")
    quick = die.sample(range(RESEARCHERS), ANSWERS)
    for number, run_id in enumerate(researchers_of(edition)):
        question = EditionQuestion(
            calendar=assignment.calendar, number=number, minutes=die.randint(5, 30), is_slow=number not in quick
        )
        yield {"agent_class": Researcher, "input": question, "run_id": run_id}


def researchers_of(edition: str) -> list[str]:
    return [f"{edition}/researcher-{number}" for number in range(RESEARCHERS)]


def press_of(edition: str) -> str:
    return f"{edition}/press"


class Newsroom(Agent):
    """Has editions made, passes corrections on, and keeps the diary."""

    async def on_start(self) -> None:
        self.sql("CREATE TABLE IF NOT EXISTS diary (edition VARCHAR, what VARCHAR, data VARCHAR)")

    @exposed(repeatable=True)
    def open(self, editions: list[str], day_ms: int, seed: int) -> OpenedEdition:
        """Have these editions made. Asked again, it is open already, and its days are as long as they were."""
        with self.transaction():
            now_ms = self._perdure.now_ms()
            if not self.state.get("calendar"):
                self.state["calendar"] = Calendar(opened_at_ms=now_ms, day_ms=day_ms).model_dump()
                self.state["seed"] = seed
            for edition in editions:
                self._handle(edition)
            return OpenedEdition(calendar=self.state["calendar"], now_ms=now_ms)

    def _handle(self, edition: str) -> Any:
        # The same request is the same run, whoever makes it when.
        assignment = Assignment(calendar=self.state["calendar"], seed=self.state["seed"])
        watched = Detached(on_finish="on_ended", on_milestones=MILESTONES, on_milestone="on_milestone")
        return self.run_agent_tool(Edition, assignment, run_id=edition, detached=watched)

    @exposed(repeatable=True)
    def correct(self, edition: str, words: str) -> None:
        """Tell an edition a correction. It is told once, however often this is asked for."""
        with self.transaction():
            known = f"corrected {edition}"  # a key for each: editions are corrected at the same time
            if not self.state.get(known):
                self.state[known] = True
                tell(self._handle(edition), words)

    def on_milestone(self, run: RunInfo, milestone: MilestoneInfo) -> None:
        self._enter(run.run_id, milestone.name, milestone.data)

    def on_ended(self, run: RunInfo, result: RunResult[Any]) -> None:
        self._enter(run.run_id, ENDED, result.status)

    def _enter(self, edition: str, what: str, data: object) -> None:
        self.sql("INSERT INTO diary VALUES ($1, $2, $3)", [edition, what, json.dumps(data)])

    @exposed(repeatable=True)
    def progress(self) -> int:
        return int(self.sql("SELECT count(*) FROM diary")[0][0])

    @exposed(repeatable=True)
    def diary(self) -> list[DiaryEntry]:
        rows = self.sql("SELECT edition, what, data FROM diary")
        return [DiaryEntry(edition=edition, what=what, data=json.loads(data)) for edition, what, data in rows]


# what must be found


class SeenPress(NamedTuple):
    """A press of a button: by whom, as the ledger names them, for which way, and what was told to them. It was sent and acknowledged by
    the clock of the one who looks."""

    who: str
    way: str
    told: list[str]
    sent_s: float
    acknowledged_s: float


# As it stands in the chat in the end.
class SeenMessage(NamedTuple):
    text: str
    buttons: int


class SeenEdition(NamedTuple):
    """What is known of one edition at the end.

    `approval` is what its reviewer sends, if it has one, and `approved_by_ms` when that was certainly sent, by the clock of the world; None
    if it was by an earlier command. `researchers` are the statuses of their runs, `bookings` is the book of its printer, and `decisions`
    are the answers that the ledger has to its question. `presses` and `messages` are those of the editors' devices; there are none if the
    question stood there before their Telegram did.
    """

    edition: str
    approval: str | None
    approved_by_ms: float | None
    correction: str
    entries: list[DiaryEntry]
    researchers: dict[str, str]
    bookings: list[str]
    decisions: list[list[str]]
    presses: Sequence[SeenPress] = ()
    messages: Sequence[SeenMessage] = ()

    def data(self, what: str) -> Any:
        return next((entry.data for entry in self.entries if entry.what == what), None)


def wrong_editions(calendar: Calendar, seen: SeenEdition) -> Iterator[str]:
    """The problems of one edition, in sentences."""
    name, counts = seen.edition, Counter(entry.what for entry in seen.entries)
    for what in (ANSWERED, DRAFTED, CORRECTED, AWAKE, UNPRINTED, DECIDED, ENDED):
        if counts[what] != 1:
            yield f"{name} was {what} {counts[what]} times"
    if counts[APPROVED] + counts[UNREAD] != 1:
        yield f"{name} was approved {counts[APPROVED]} times, and unread {counts[UNREAD]} times"
    if counts[ENDED] and seen.data(ENDED) != "completed":
        yield f"{name} ended {seen.data(ENDED)}"
    yield from _wrong_answers(seen)
    yield from _wrong_review(calendar, seen)
    if counts[CORRECTED] and seen.data(CORRECTED) != seen.correction:
        yield f"{name} read the correction {seen.data(CORRECTED)!r}, and was told {seen.correction!r}"
    early_ms = calendar.instant(MONDAY).timestamp() * 1000 - (seen.data(AWAKE) or math.inf)
    if early_ms > 0:
        yield f"{name} woke {early_ms:.0f} ms before Monday"
    status, error = seen.data(UNPRINTED) or ("unknown", "")
    if status != "error" or "there is no paper" not in error:
        yield f"the press of {name} ended {status}: {error}"
    if seen.bookings != ["booked", "cancelled"]:
        yield f"the printer of {name} was {', '.join(seen.bookings) or 'not booked'}; it should be booked once and cancelled once"
    if counts[DECIDED] and seen.decisions != [seen.data(DECIDED)]:
        yield f"{name} heard the decision {seen.data(DECIDED)}, and the ledger has {seen.decisions}"
    yield from _wrong_presses(seen)


def _wrong_presses(seen: SeenEdition) -> Iterator[str]:
    if not seen.presses or not seen.decisions:
        return
    (who, way), *_ = seen.decisions
    outcome = f"{way}, said by {who}."
    if [who, way] not in [[press.who, press.way] for press in seen.presses]:
        yield f"{seen.edition} was decided by {who} for {way}, which nobody has pressed"
    for press in seen.presses:
        wanted = outcome if press.who == who else f"Answered already. {outcome}"
        if set(press.told) != {wanted}:
            yield f"{press.who}, who has pressed for {seen.edition}, was told {press.told}, and should be told {wanted!r}"
        early = [each.who for each in seen.presses if each.acknowledged_s < press.sent_s]
        if press.who == who and early:
            yield f"{who} decided {seen.edition}, and {', '.join(early)} had pressed before"
    doubtful = sum(REPEATED in each.text for each in seen.messages)
    if not 1 <= len(seen.messages) <= 1 + doubtful:
        yield f"the question of {seen.edition} stands there {len(seen.messages)} times, and {doubtful} of them say that they may"
    if not any(outcome in each.text and not each.buttons for each in seen.messages):
        yield f"no message shows that {seen.edition} was decided: {outcome}"
    if sum(bool(each.buttons) for each in seen.messages) > doubtful:
        yield f"the question of {seen.edition} has kept its buttons"


def _wrong_answers(seen: SeenEdition) -> Iterator[str]:
    used, statuses = seen.data(ANSWERED) or [], seen.researchers
    if len(set(used)) != ANSWERS or any(statuses.get(run_id) != "completed" for run_id in used):
        yield f"{seen.edition} used the answers {used}, and should use {ANSWERS} that were completed"
    cancelled = sum(statuses[run_id] == "aborted" for run_id in statuses if run_id not in used)
    if cancelled != RESEARCHERS - ANSWERS:
        yield f"{cancelled} researchers of {seen.edition} were cancelled, and should be {RESEARCHERS - ANSWERS}"


def _wrong_review(calendar: Calendar, seen: SeenEdition) -> Iterator[str]:
    approval, unread_ms = seen.data(APPROVED), seen.data(UNREAD)
    if approval is not None and approval != seen.approval:
        yield f"{seen.edition} was approved by {approval!r}, which nobody sent"
    if unread_ms is None:
        return
    if unread_ms - (seen.data(DRAFTED) or 0) < calendar.day_ms:
        yield f"{seen.edition} did not wait a whole day for its approval"
    if seen.approved_by_ms is not None and seen.approved_by_ms < unread_ms:
        yield f"{seen.edition} was approved in time, and went on unread"
