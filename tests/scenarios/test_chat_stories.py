"""The chat stories in the simulated world: whatever breaks, side effects happen once and answers are whole; and what is wrong is told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.ledger import BadRequest
from perdure.scenarios.stories.chat_checks import COMPLETED, count_effects, parts_of, wrong_answer, wrong_ends
from perdure.scenarios.stories.chat_play import PEACE, chosen
from perdure.scenarios.stories.chat_recovery import ChatRecoveryStory
from perdure.scenarios.stories.stage import Stage
from perdure.scenarios.stories.tool_disconnect import ToolDisconnect
from tests.scenarios.command import perdure, perdure_json

FIELDS = (
    "scenario world seed model turns points attempts interruptions recoveries requests connections illegal side_effects kills seconds "
    "verified"
).split()


def played(*words: str) -> dict[str, Any]:
    told: dict[str, Any] = perdure_json("run", *words, "--world", "sim")
    assert list(told) == FIELDS
    return told


class Peace(ToolDisconnect):
    """One turn in which nothing breaks."""

    async def play(self, stage: Stage) -> None:
        assert self.provider is not None
        self.heard, self.seen = await self.turn(stage, PEACE, 0), self.provider.log()


@pytest.fixture
def peace() -> Iterator[Peace]:
    scenario = Peace(1, 0)
    with scenario.surroundings(None):
        scenario.simulate()
        assert scenario.wrong == []
        yield scenario


@pytest.mark.thorough
def test_whoever_dies_at_whichever_moment_the_turn_completes() -> None:
    told = played("chat-recovery", "--points", "12", "--seed", "3")
    assert told["verified"]
    assert told["turns"] == {"asked": 14, "completed": 14, "error": 0}, (
        "each half has a turn in peace beside its points"
    )
    assert all(told["kills"].values()), told["kills"]
    assert told["interruptions"]["stall"]
    assert told["interruptions"]["process_lost"]
    assert told["illegal"] == told["side_effects"]["doubled"] == told["side_effects"]["lost"] == 0


@pytest.mark.thorough
def test_wherever_the_connection_breaks_the_turn_completes_or_says_why_it_cannot() -> None:
    told = played("tool-disconnect", "--points", "24", "--seed", "3")
    assert told["verified"]
    assert told["turns"] == {"asked": 25, "completed": 23, "error": 2}, "a wrong key, and a provider that stays away"
    assert told["side_effects"]["seen"] == told["side_effects"]["expected"]
    assert told["side_effects"]["unknown"] == 0, "no process of a tool has died"
    assert told["recoveries"] >= 15


def test_every_kind_of_break_has_a_place_in_every_request(peace: Peace) -> None:
    records = peace.seen
    recovery = ChatRecoveryStory(1, 0)
    recovery.quiz = peace.quiz
    places, moments = peace.points_of(records), recovery.points_of(records)
    assert len({(record.asks, record.results) for record in records}) == 5, (
        "three requests of the guide, two of its child"
    )
    assert len(places) > 500
    groups = {point.group for point in places}
    assert {"reset", "hang_up", "end", "reset inside", "error", "stall", "429", "503", "401", "refused"} <= groups
    assert {point.victim for point in moments} == {"agent", "tool", "child", "supervisor", ""}
    few = chosen(places, len(groups), 0)
    assert {point.group for point in few} == groups, "every group gets one before any gets two"
    assert few == chosen(places, len(groups), 0)


def test_an_answer_that_is_not_whole_and_an_end_that_was_told_twice_are_found_out(peace: Peace) -> None:
    quiz, told = peace.quiz, peace.heard
    assert list(wrong_answer(quiz, told, quiz.results(0))) == []
    part = next(part for part in parts_of(told) if part.get("toolName") == "word_counter")
    part["output"] = "seven"
    assert any("seven" in each for each in wrong_answer(quiz, told, quiz.results(0)))
    told.listeners[0].ends.append("error")
    assert any("2 ends" in each for each in wrong_ends(told, COMPLETED))
    told.listeners[0].events.pop()
    assert any("were heard" in each for each in wrong_ends(told, COMPLETED))


def test_an_effect_that_was_doubled_or_lost_or_undone_is_found_out(peace: Peace) -> None:
    told, workspace, effects = peace.heard, peace.quiz.workspace, Counter[str]()
    assert list(count_effects(peace.quiz, told, effects, is_scripted=True)) == []
    assert effects == {"expected": 1, "seen": 1, "unknown": 0}
    (effect,) = workspace.effects()
    (report,) = (call for call in peace.quiz.question(0).calls if call.key == effect)
    workspace.note(report.name, report.arguments)
    workspace.write(report.arguments["path"], "something else")
    wrong = list(count_effects(peace.quiz, told, effects, is_scripted=True))
    assert wrong == [f"{effect} began 2 times", f"{report.arguments['path']} does not hold what was written to it"]
    (workspace.root / "effects.txt").unlink()
    assert list(count_effects(peace.quiz, told, effects, is_scripted=True)) == [f"{effect} never began"]
    assert (effects["doubled"], effects["lost"]) == (1, 1)


def test_a_terminal_sees_a_line_for_each_point() -> None:
    said = perdure("run", "tool-disconnect", "--world", "sim", "--points", "2").stdout
    assert said.count("\n   ") == 2
    assert "Verified" in said


def test_a_model_without_a_key_is_refused_in_one_line_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused = perdure("run", "chat-recovery", "--model", "openai:gpt-5", "--data", tmp_path).exception
    assert isinstance(refused, BadRequest)
    assert "OPENAI_API_KEY" in str(refused)
    assert "\n" not in str(refused)
    assert isinstance(perdure("run", "chat-recovery", "--model", "test", "--world", "sim").exception, BadRequest)
