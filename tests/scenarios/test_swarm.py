"""The swarm: thousands of simulated deaths, and the promise that one line replays each."""

from __future__ import annotations

import gc
import logging
import math
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import pytest

from perdure.actors.chat.live_turn import LiveTurn
from perdure.ledger import View
from perdure.ledger.storage.agent_storages import Transaction
from perdure.scenarios.swarm.runner import MIXTURE, SWIFT, SeedReport, SwarmReport, play, story_of, swarm, weather_of
from perdure.scenarios.swarm.stories import STORIES
from tests.kit import some
from tests.scenarios.command import perdure_json

KILLS_MIN = 3_000
PARTS = 3  # so that those who test in several processes share the work
KILLS_LONG = 10_000
PARTS_LONG = 6
FIRST_SEED = 10_000
LEISURELY = ("desks", "families", "letters")  # few deaths in much time; one part plays one seed of each
DEAR = ("batches", "meddling", "offices")  # whose deaths cost three times as much as others
DEAR_MAX = 4  # seeds of each that a part plays each time
REPLAY = "from perdure.scenarios.swarm.runner import play; print(play(10_007).digest, play(11, 'chats').digest)"


@pytest.mark.thorough
@pytest.mark.parametrize("part", range(PARTS))
def test_a_swarm_of_seeds_with_thousands_of_kills_breaks_no_invariant(part: int) -> None:
    play_seeds(part, KILLS_MIN / PARTS, DEAR_MAX)


@pytest.mark.parametrize(
    "first_seed",
    [
        pytest.param(0, marks=pytest.mark.thorough),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(5, 120, 5)),
    ],
)
def test_a_swarm_whose_storages_are_carried_loses_nothing_with_the_disks_of_its_machines(first_seed: int) -> None:
    total = swarm(5, first_seed, carried=True)
    assert total.ok, "\n".join(f"{failure.replay}: {failure.problem}" for failure in total.failures)
    assert total.kills


@pytest.mark.long
@pytest.mark.parametrize("part", range(PARTS_LONG))
def test_a_swarm_of_seeds_with_ten_thousand_kills_breaks_no_invariant(part: int) -> None:
    play_seeds(part, KILLS_LONG / PARTS_LONG)


def play_seeds(part: int, kills_min: float, dear_max: float = math.inf) -> None:
    """Play seeds of this part until so many processes were killed, and every story that is this part's was played."""
    total, seeds, owed = SwarmReport(), count(FIRST_SEED * (part + 1)), set(MIXTURE[part::PARTS])
    most = dict.fromkeys(MIXTURE, math.inf) | dict.fromkeys(DEAR, dear_max)
    most |= {story: float(story in owed) for story in LEISURELY}
    while total.kills < kills_min or not owed <= set(total.stories):
        seed = next(seeds)
        if total.stories[story_of(seed)] < most[story_of(seed)]:
            total.add(play(seed))
    assert total.ok, "\n".join(f"{failure.replay}: {failure.problem}" for failure in total.failures)


@pytest.mark.parametrize(
    ("seed", "story", "what"),
    [
        (56, "everything", "what is known of a cleared run's child went from memory after it went from the disk"),
        (30_030, "everything", "a child that owed its clean-up was cleared"),
        (10_001, "chats", "the model repeated a call whose outcome was unknown"),
    ],
)
def test_what_was_found_once_is_not_there_any_more(seed: int, story: str, what: str) -> None:
    assert play(seed, story).ok, what


@pytest.mark.thorough
@pytest.mark.parametrize("seed", [10_122, *range(6)])
def test_parents_that_forget_handled_mail_soon_handle_none_twice(seed: int) -> None:
    """Seed 10122 found a first version, by which a host forgot what was still on its way to the agent's next life."""
    report = play(seed, "batches", limits=replace(SWIFT, inbox_max=2))
    assert report.ok, report.problem


def test_the_same_seed_gives_the_same_digest() -> None:
    first, second = play(10_007), play(10_007)
    assert first.kills
    assert (first.digest, first.kills, first.visits) == (second.digest, second.kills, second.visits)


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_digest_under_another_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        told = subprocess.run(
            [sys.executable, "-c", REPLAY], env=environment, capture_output=True, text=True, check=True
        )
        digests.add(told.stdout.strip())
    assert digests == {f"{play(10_007).digest} {play(11, 'chats').digest}"}


@pytest.fixture
def _unlogged() -> Iterator[None]:
    """Nothing is logged, because pytest keeps each record."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.thorough
@pytest.mark.usefixtures("_unlogged")
def test_plays_leave_nothing_behind_and_change_none_of_those_after_them() -> None:
    """Of the model's and of the messenger's libraries too, whose generators die in the middle of an answer."""
    rounds = []
    for _ in range(3):  # what stays after the first one is what modules remember of all plays
        digests = [play(seed, story).digest for seed, story in ((6, "chats"), (0, "letters"), (10_007, "batches"))]
        gc.collect()
        rounds.append((digests, objects()))
    (first, _), (second, before), (third, after) = rounds
    assert first == second == third
    assert (after - before).total() < 20, (after - before).most_common(20)


def objects() -> Counter[str]:
    """How many objects there are, by the names of their types."""
    named = Counter[str]()
    for kind, number in Counter(map(type, gc.get_objects())).items():
        named[str(kind)] += number
    return named


def test_different_seeds_live_different_lives() -> None:
    assert len({play(seed, "twins").digest for seed in range(5)}) == 5


@pytest.mark.parametrize("story", some(4, STORIES))
def test_every_story_comes_to_its_end_under_fire(story: str) -> None:
    report = play(10_001, story)
    assert report.ok, f"{report.replay}: {report.problem}"


def test_one_line_replays_a_seed_that_drew_its_own_story() -> None:
    seed = 42
    assert _report(seed, story_of(seed)).replay == "perdure replay 42"


def test_the_line_names_the_story_when_it_was_not_the_seeds_own() -> None:
    seed = 42
    other = next(story for story in MIXTURE if story != story_of(seed))
    assert _report(seed, other).replay == f"perdure replay 42 --story {other}"


@pytest.mark.thorough
def test_the_line_says_that_the_storages_were_carried_and_the_command_takes_it() -> None:
    report = play(1_000, "trees", carried=True)
    assert report.replay.endswith(" --carried")
    assert perdure_json(*report.replay.split()[1:])["digest"] == report.digest


def test_a_report_counts_kills_stories_and_failures() -> None:
    total = SwarmReport()
    total.add(_report(1, "trees"))
    total.add(_report(2, "trees", problem="an agent lives twice"))
    assert (total.seeds, total.kills, total.stories, total.ok) == (2, 6, Counter(trees=2), False)
    assert [failure.seed for failure in total.failures] == [2]


def test_a_part_of_all_seeds_has_no_kills_so_that_a_fault_can_be_told_from_its_absence() -> None:
    kills = [bool(weather_of(seed).kills) for seed in range(200)]
    assert 5 < kills.count(False) < 60


def test_a_core_that_forgets_who_has_mail_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(view: View, agent: str) -> None:
        view.agents.pop(agent, None)
        view.dirty_agents[agent] = None

    monkeypatch.setattr(View, "drop_agent", forget)
    assert not all(play(seed, "meddling").ok for seed in range(24, 31))


def test_a_core_that_forgets_which_mail_it_handled_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Transaction, "record_inbox", lambda _transaction, _mail_ids: None)
    assert not any(play(seed, "budgets").ok for seed in range(3))


@pytest.mark.thorough
def test_an_engine_that_forgets_under_which_name_it_made_a_call_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = count()

    def run_id(_live: LiveTurn, call_id: str) -> str:
        return f"{call_id}-{next(numbers)}"

    monkeypatch.setattr(LiveTurn, "run_id", run_id)
    assert not all(play(seed, "chats").ok for seed in range(40))


def _report(seed: int, story: str, problem: str = "") -> SeedReport:
    return SeedReport(seed, story, "d", 3, 9, 0.1, problem)


def test_the_deaths_that_a_seed_plays_are_no_warnings(caplog: pytest.LogCaptureFixture) -> None:
    assert play(FIRST_SEED).kills
    assert [each.getMessage() for each in caplog.records if each.name.startswith("perdure.")] == []
    assert logging.getLogger("perdure").level == logging.NOTSET
