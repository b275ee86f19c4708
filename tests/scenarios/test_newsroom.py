"""The story of a newsroom: what is complained about, and the whole of it in the simulated world, whatever is killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure.actors import KillPoint
from perdure.scenarios.cast.newsroom import (
    ANSWERED,
    APPROVED,
    AWAKE,
    CORRECTED,
    DECIDED,
    DRAFTED,
    ENDED,
    MONDAY,
    OPENED,
    REPEATED,
    UNPRINTED,
    UNREAD,
    Assignment,
    Calendar,
    DiaryEntry,
    SeenEdition,
    SeenMessage,
    SeenPress,
    question_of,
    questions,
    researchers_of,
    wrong_editions,
)
from perdure.scenarios.stories.engine import simulate_in_one_world, simulated
from perdure.scenarios.stories.newsroom import NewsroomScenario
from perdure.scenarios.stories.stage import Stage
from tests.kit import some
from tests.scenarios.command import perdure, perdure_json

DAY_MS = 120_000
SEEDS, SEEDS_MAX = 2, 10
FIELDS = (
    "scenario world seed editions researchers approvals corrections printers decisions presses deliveries kills seconds verified"
).split()


def test_the_weekend_is_an_hour_shorter_because_the_clocks_are_changed() -> None:
    calendar = Calendar(opened_at_ms=1_000_000, day_ms=24_000)
    assert calendar.instant(OPENED).timestamp() == 1_000
    assert calendar.instant(OPENED + timedelta(hours=12)).timestamp() == 1_012
    assert timedelta(hours=63.5) == MONDAY - OPENED, "as the clock on the wall shows it"
    assert calendar.instant(MONDAY).timestamp() == 1_062.5


def test_two_researchers_are_quick_and_which_follows_from_the_seed() -> None:
    asked = [Assignment(calendar=Calendar(opened_at_ms=0, day_ms=1_000), seed=seed) for seed in (1, 2)]
    drawn = [[question["input"].is_slow for question in questions("e", each)] for each in asked for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert [each.count(False) for each in drawn] == [2] * 4
    assert {tuple(each) for each in drawn} == {tuple(drawn[0]), tuple(drawn[2])}


CALENDAR = Calendar(opened_at_ms=0, day_ms=24_000)
USED = researchers_of("e")[:2]
RIGHT: dict[str, Any] = {
    ANSWERED: USED,
    DRAFTED: 1_000,
    APPROVED: "fine",
    CORRECTED: "Ada",
    AWAKE: 62_500,
    UNPRINTED: ["error", "StepFailed: OSError: there is no paper"],
    DECIDED: ["ada", "on the web"],
    ENDED: "completed",
}
STATUSES = {run_id: "completed" if run_id in USED else "aborted" for run_id in researchers_of("e")}


def seen_with(differing: dict[str, Any], **changes: Any) -> SeenEdition:
    rows = [
        DiaryEntry(edition="e", what=what, data=data) for what, data in (RIGHT | differing).items() if data is not None
    ]
    seen = SeenEdition("e", "fine", 2_000, "Ada", rows, STATUSES, ["booked", "cancelled"], [["ada", "on the web"]])
    return seen._replace(**changes)


OUTCOME = "on the web, said by ada."
LATE = f"Answered already. {OUTCOME}"
DONE = SeenMessage(f"{question_of('e')}\n\n{OUTCOME}", 0)
DOUBTFUL = SeenMessage(f"{REPEATED}\n\n{DONE.text}", 0)
PRESSES = [SeenPress("ada", "on the web", [OUTCOME], 1.0, 2.0), SeenPress("ben", "next week", [LATE, LATE], 1.5, 2.5)]


def pressed(number: int, **changes: Any) -> SeenEdition:
    presses = [each._replace(**changes) if at == number else each for at, each in enumerate(PRESSES)]
    return seen_with({}, presses=presses, messages=[DONE])


def shown(*messages: SeenMessage) -> SeenEdition:
    return seen_with({}, presses=PRESSES, messages=messages)


@pytest.mark.parametrize(
    "seen",
    [
        seen_with({}),
        shown(DONE),
        shown(SeenMessage(question_of("e"), 2), DOUBTFUL),
        seen_with({}, approved_by_ms=None),
        seen_with({APPROVED: None, UNREAD: 25_000}, approval=None, approved_by_ms=None),
        seen_with({APPROVED: None, UNREAD: 25_000}, approved_by_ms=25_001),
    ],
    ids=["approved", "pressed", "seen twice", "approved before", "not reviewed", "approved too late"],
)
def test_what_is_as_it_should_be_is_not_complained_about(seen: SeenEdition) -> None:
    assert list(wrong_editions(CALENDAR, seen)) == []


@pytest.mark.parametrize(
    ("seen", "complaint"),
    [
        (seen_with({CORRECTED: None}), "e was corrected 0 times"),
        (seen_with({}, entries=[DiaryEntry(edition="e", what=CORRECTED, data="Ada")] * 2), "e was corrected 2 times"),
        (seen_with({UNREAD: 25_000}), "approved 1 times, and unread 1 times"),
        (seen_with({ENDED: "error"}), "e ended error"),
        (seen_with({ANSWERED: USED[:1]}), "should use 2"),
        (seen_with({ANSWERED: USED[:1] * 2}), "should use 2"),
        (seen_with({}, researchers=STATUSES | {USED[0]: "aborted"}), "should use 2"),
        (
            seen_with({}, researchers=STATUSES | {researchers_of("e")[4]: "running"}),
            "2 researchers of e were cancelled",
        ),
        (seen_with({APPROVED: "bad"}), "approved by 'bad', which nobody sent"),
        (seen_with({}, approval=None, approved_by_ms=None), "which nobody sent"),
        (seen_with({APPROVED: None, UNREAD: 24_999}, approved_by_ms=None), "did not wait a whole day"),
        (seen_with({APPROVED: None, UNREAD: 25_000}), "was approved in time, and went on unread"),
        (seen_with({CORRECTED: "Bob"}), "read the correction 'Bob', and was told 'Ada'"),
        (seen_with({AWAKE: 62_499}), "woke 1 ms before Monday"),
        (seen_with({UNPRINTED: ["completed", ""]}), "the press of e ended completed"),
        (seen_with({}, bookings=["booked"]), "the printer of e was booked;"),
        (seen_with({}, bookings=["booked", "cancelled", "cancelled"]), "booked once and cancelled once"),
        (seen_with({}, bookings=[]), "not booked"),
        (seen_with({DECIDED: ["ben", "next week"]}), "heard the decision ['ben', 'next week']"),
        (pressed(0, way="next week"), "decided by ada for on the web, which nobody has pressed"),
        (pressed(1, told=["next week, said by ben."]), "was told ['next week, said by ben.']"),
        (pressed(1, told=[]), "was told []"),
        (pressed(0, told=[OUTCOME, LATE]), "and should be told 'on the web, said by ada.'"),
        (pressed(1, acknowledged_s=0.5), "ada decided e, and ben had pressed before"),
        (shown(), "stands there 0 times"),
        (shown(DONE, DONE), "stands there 2 times, and 0 of them"),
        (
            shown(SeenMessage(f"{question_of('e')}\n\nnext week, said by ben.", 0)),
            "no message shows that e was decided",
        ),
        (shown(SeenMessage(DONE.text, 2)), "has kept its buttons"),
    ],
)
def test_whatever_differs_is_told(seen: SeenEdition, complaint: str) -> None:
    told = list(wrong_editions(CALENDAR, seen))
    assert any(complaint in each for each in told), told


@pytest.mark.parametrize("seed", some(SEEDS, range(SEEDS_MAX)))
def test_whatever_is_killed_each_of_it_takes_effect_once(seed: int) -> None:
    scenario = NewsroomScenario(2, 4, seed, DAY_MS)
    told = simulated(scenario)
    assert scenario.wrong == []
    assert list(told) == FIELDS
    assert told["editions"] == {"requested": 2, "ended": 2, "seen_without_host": 2}
    assert told["researchers"] == {"used": 4, "cancelled": 6}
    assert told["approvals"] == {"taken": 2, "missed": 0}
    assert told["printers"] == {"booked": 2, "cancelled": 2}
    assert (told["corrections"], told["decisions"], told["presses"]) == (2, 2, 4)
    assert sum(told["kills"].values()) == 4
    assert min(told["kills"].values()) >= 1
    assert told["deliveries"]["pending"] == 0


MOMENTS = (
    (KillPoint.MID_CANCEL, "/researcher-"),
    (KillPoint.MID_RUN, "milestone answered"),
    (KillPoint.AFTER_HANDLER_COMMIT, "!milestone:answered"),
    (KillPoint.MID_HANDLER, "!milestone:corrected"),
    (KillPoint.MID_RUN, "milestone awake"),
    (KillPoint.MID_RUN, "step book done"),
    (KillPoint.MID_RUN, "step print done"),
    (KillPoint.MID_RUN, "undoing"),
    (KillPoint.MID_RUN, "undo book done"),
    (KillPoint.AFTER_RESULT_COMMIT, "/press"),
    (KillPoint.MID_RUN, "ask 1"),
    (KillPoint.MID_RUN, "question 1 shown"),
    (KillPoint.BEFORE_EFFECT, "messenger post"),
    (KillPoint.AFTER_EFFECT, "messenger post"),
    (KillPoint.BEFORE_EFFECT, "messenger answer"),
    (KillPoint.AFTER_EFFECT, "messenger answer"),
    (KillPoint.BEFORE_EFFECT, "messenger press"),
    (KillPoint.AFTER_EFFECT, "messenger press"),
    (KillPoint.BEFORE_HANDLER_COMMIT, "!finish"),
)


EDITED = (KillPoint.AFTER_EFFECT, "messenger edit")  # it is not, if it was answered while it was posted again


class Deadly(NewsroomScenario):
    """A host dies whenever one of these moments comes for the first or the second time."""

    def __init__(self, moments: Sequence[tuple[KillPoint, str]]) -> None:
        super().__init__(1, 0, 3, DAY_MS)
        self.struck = Counter(dict.fromkeys(moments, 0))

    def simulate(self) -> None:
        simulate_in_one_world(self, self.play, limits=self.quick, kill_when=self._strikes)

    def _strikes(self, _process: str, point: KillPoint, detail: str) -> bool:
        for moment in self.struck:
            if moment[0] is point and moment[1] in detail:
                self.struck[moment] += 1
                return self.struck[moment] <= 2
        return False


@pytest.mark.parametrize(
    "moments",
    some(1, [MOMENTS, *([each] for each in (*MOMENTS, EDITED))]),
    ids=lambda each: " ".join(detail.strip("/!-") for _, detail in each) if len(each) == 1 else "all",
)
def test_a_death_in_the_middle_of_anything_repeats_nothing(moments: Sequence[tuple[KillPoint, str]]) -> None:
    scenario = Deadly(moments)
    told = simulated(scenario)
    assert scenario.wrong == []
    assert min(scenario.struck.values()) >= 1, scenario.struck
    assert told["printers"] == {"booked": 1, "cancelled": 1}
    assert told["editions"] == {"requested": 1, "ended": 1, "seen_without_host": 1}


class PlayedTwice(NewsroomScenario):
    """Played again in the same world, as by a command that was stopped too late."""

    def simulate(self) -> None:
        async def twice(stage: Stage) -> None:
            await self.play(stage)
            self._seen.clear()
            self._approved_by_ms.clear()
            await self.play(stage)

        simulate_in_one_world(self, twice)


def test_played_again_it_finds_all_done_and_does_nothing_twice() -> None:
    scenario = PlayedTwice(1, 0, 3, DAY_MS)
    told = simulated(scenario)
    assert scenario.wrong == []
    assert (told["corrections"], told["printers"]) == (1, {"booked": 1, "cancelled": 1})


COMMAND = ("run", "newsroom", "--world", "sim")


@pytest.mark.thorough
def test_every_third_edition_waits_a_day_for_nobody_and_the_command_says_so() -> None:
    told = perdure_json(*COMMAND, "--editions", 3, "--kills", 2, "--seed", 5)
    assert (told["verified"], told["approvals"]) == (True, {"taken": 2, "missed": 1})
    said = perdure(*COMMAND, "--editions", 1, "--kills", 0)
    assert said.exit_code == 0
    assert "Verified: each of these took effect once" in said.stdout


@pytest.mark.parametrize(
    ("day", "complaint"),
    [
        ("soon", "'soon' is not a duration like 30s"),
        ("0.5s", "too short for the work of a day"),
        ("9d", "is longer than"),
        ("-1s", "is not a duration"),
    ],
)
def test_a_day_that_cannot_be_is_refused(day: str, complaint: str) -> None:
    problem = perdure(*COMMAND, "--day", day).exception
    assert complaint in str(problem), problem
