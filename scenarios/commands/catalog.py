"""What can be shown: every scenario of `perdure run`, with one sentence about it."""

from __future__ import annotations

from typing import Final, NamedTuple


class Scenario(NamedTuple):
    """One scenario, how it is begun, and where its command is."""

    name: str
    sentence: str
    example: str
    command: str


CATALOG: Final = (
    Scenario(
        "fan-out",
        "One child agent for each file of the Python standard library; hosts, parent and supervisor are killed meanwhile.",
        "perdure run fan-out --children 200 --kills 5 --seed 7",
        "perdure.scenarios.commands.run:fan_out",
    ),
    Scenario(
        "chat-recovery",
        "A chat agent with real tools and sub-agents; a process is killed, or the model falls silent, at one moment of each turn.",
        "perdure run chat-recovery --points 20 --seed 7",
        "perdure.scenarios.commands.chat:run_chat_recovery",
    ),
    Scenario(
        "tool-disconnect",
        "The same agent; the connection to its model breaks at one place of each turn, while tools are at work.",
        "perdure run tool-disconnect --points 20 --seed 7",
        "perdure.scenarios.commands.chat:run_tool_disconnect",
    ),
    Scenario(
        "messenger",
        "People write to a chat agent through a Telegram bot; webhooks come twice, posts get lost, and processes are killed.",
        "perdure run messenger --updates 24 --kills 8 --seed 7",
        "perdure.scenarios.commands.messenger:run_messenger",
    ),
    Scenario(
        "jobs",
        "Agents accept jobs as fibers, schedules and queued items, twice; some fail, some are cancelled; processes are killed meanwhile.",
        "perdure run jobs --jobs 2000 --kills 4 --seed 7",
        "perdure.scenarios.commands.jobs:run_jobs",
    ),
)
