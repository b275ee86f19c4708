"""Every scenario of `perdure run`, with one sentence about it; and `perdure list`."""

from __future__ import annotations

import json
from typing import Final, NamedTuple

from perdure.scenarios.commands.options import AsJson


class ScenarioEntry(NamedTuple):
    name: str
    sentence: str
    example: str
    command: str


CATALOG: Final = (
    ScenarioEntry(
        "fan-out",
        "One child agent for each file of the Python standard library, while the parent, hosts and the supervisor are killed.",
        "perdure run fan-out --children 200 --kills 5 --seed 7",
        "stories.fan_out:run_fan_out",
    ),
    ScenarioEntry(
        "chat-recovery",
        "A chat agent with real tools and sub-agents. At one moment of each turn a process is killed, or the model falls silent.",
        "perdure run chat-recovery --points 20 --seed 7",
        "stories.chat_recovery:run_chat_recovery",
    ),
    ScenarioEntry(
        "tool-disconnect",
        "The same agent. At one place of each turn the connection to its model breaks, while tools are at work.",
        "perdure run tool-disconnect --points 20 --seed 7",
        "stories.tool_disconnect:run_tool_disconnect",
    ),
    ScenarioEntry(
        "messenger",
        "People write to a chat agent through a Telegram bot, while webhooks repeat, posts get lost, and processes are killed.",
        "perdure run messenger --updates 24 --kills 8 --seed 7",
        "stories.messenger:run_messenger",
    ),
    ScenarioEntry(
        "jobs",
        "Agents accept fibers, schedules and queued items twice. Some fail, some are cancelled, and processes are killed.",
        "perdure run jobs --jobs 2000 --kills 4 --seed 7",
        "stories.jobs:run_jobs",
    ),
    ScenarioEntry(
        "newsroom",
        "Editions wait for the first answers, a reviewer, mail and Monday, undo what failed, and ask people; processes are killed.",
        "perdure run newsroom --editions 6 --kills 4 --seed 7",
        "stories.newsroom:run_newsroom",
    ),
)


def list_scenarios(as_json: AsJson = False) -> None:
    """Name the scenarios that `perdure run` can play, each with a sentence and an example.

    Examples:
        perdure list
        perdure list --json
    """
    if as_json:
        print(json.dumps([{"name": each.name, "sentence": each.sentence, "example": each.example} for each in CATALOG]))
        return
    for scenario in CATALOG:
        print(f"{scenario.name:17}{scenario.sentence}\n{'':17}{scenario.example}\n")
