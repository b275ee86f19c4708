"""The chat stories in the simulated world: whatever breaks, side effects happen once and answers are whole; and what is wrong is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from perdure.ledger import BadRequest
from perdure.scenarios.cli import app
from perdure.scenarios.commands.chat import Words
from perdure.scenarios.provider.scripted import Record
from perdure.scenarios.stories.chat_cast import Quiz
from perdure.scenarios.stories.chat_cast_play import Company, Point
from perdure.scenarios.stories.chat_cast_turns import Told
from perdure.scenarios.stories.chat_cast_verdict import Tally, wrong_answer, wrong_ends
from perdure.scenarios.stories.chat_cast_worlds import chosen, in_simulation, simulated_workshop
from perdure.scenarios.stories.chat_recovery import points_of as moments_of
from perdure.scenarios.stories.tool_disconnect import points_of as places_of

FIELDS = (
    "scenario world seed model turns points attempts interruptions recoveries requests connections illegal side_effects kills seconds "
    "verified"
).split()


def perdure(*words: str | Path) -> Result:
    return CliRunner().invoke(app, ["run", *map(str, words)])


def played(*words: str) -> dict[str, Any]:
    done = perdure(*words, "--world", "sim", "--json")
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    assert list(told) == FIELDS
    return told


def in_peace(quiz: Quiz) -> tuple[Told, list[Record]]:
    """A turn in which nothing breaks, and what the provider saw of it."""
    heard: list[Told] = []
    seen: list[Record] = []

    async def story(company: Company) -> None:
        assert company.provider is not None
        heard.append(await company.play(Point(label="nothing breaks", group="peace"), 0))
        seen.extend(company.provider.log())

    in_simulation(quiz, quiz.script(1), 0, Words(silent=True), story, Tally())
    return heard[0], seen


def test_whoever_dies_at_whichever_moment_the_turn_completes() -> None:
    told = played("chat-recovery", "--points", "24", "--seed", "3")
    assert told["verified"]
    assert told["turns"] == {"asked": 26, "completed": 26, "error": 0}, (
        "each half has a turn in peace beside its points"
    )
    assert all(told["kills"].values()), told["kills"]
    assert told["interruptions"]["stall"]
    assert told["interruptions"]["process_lost"]
    assert told["illegal"] == told["side_effects"]["doubled"] == told["side_effects"]["lost"] == 0


def test_wherever_the_connection_breaks_the_turn_completes_or_says_why_it_cannot() -> None:
    told = played("tool-disconnect", "--points", "24", "--seed", "3")
    assert told["verified"]
    assert told["turns"] == {"asked": 25, "completed": 23, "error": 2}, "a wrong key, and a provider that stays away"
    assert told["side_effects"]["seen"] == told["side_effects"]["expected"]
    assert told["side_effects"]["unknown"] == 0, "no process of a tool has died"
    assert told["recoveries"] >= 15


def test_every_kind_of_break_has_a_place_in_every_request() -> None:
    with simulated_workshop(0) as quiz:
        _, records = in_peace(quiz)
        places, moments = places_of(quiz, records), moments_of(quiz, records)
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


def test_an_answer_that_is_not_whole_and_an_end_that_was_told_twice_are_found_out() -> None:
    with simulated_workshop(0) as quiz:
        told, _ = in_peace(quiz)
        assert told.result is not None
        assert told.result.message is not None
        assert list(wrong_answer(quiz, told, quiz.results(0))) == []
        part = next(part for part in told.result.message["parts"] if part.get("toolName") == "word_counter")
        part["output"] = "seven"
        assert any("seven" in each for each in wrong_answer(quiz, told, quiz.results(0)))
        told.listeners[0].ends.append("error")
        assert any("2 ends" in each for each in wrong_ends(told, Point(label="", group="").ending))
        told.listeners[0].events.pop()
        assert any("were heard" in each for each in wrong_ends(told, Point(label="", group="").ending))


def test_a_terminal_sees_a_line_for_each_point() -> None:
    said = perdure("tool-disconnect", "--world", "sim", "--points", "2").stdout
    assert said.count("\n   ") == 2
    assert "Verified" in said


def test_a_model_without_a_key_is_refused_in_one_line_that_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    refused = perdure("chat-recovery", "--model", "openai:gpt-5", "--data", tmp_path).exception
    assert isinstance(refused, BadRequest)
    assert "OPENAI_API_KEY" in str(refused)
    assert "\n" not in str(refused)
    assert isinstance(perdure("chat-recovery", "--model", "test", "--world", "sim").exception, BadRequest)
