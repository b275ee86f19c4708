"""Permanent names of Perdure's own agents and tools. Names are durable, so they must not depend on the place of a file.

An author's class is named by its module, as `research:Researcher`. A class of ours has one of the short module names below, which never
change, as `perdure.census:Reader`. If a module moves, only its place here changes.
"""

from __future__ import annotations

from typing import Final

PLACES: Final = {
    "perdure.asks": "perdure.actors.agent.question",
    "perdure.tools": "perdure.actors.chat.tool_run",
    "perdure.messengers": "perdure.actors.messenger.chat_state",
    "perdure.census": "perdure.scenarios.cast.census",
    "perdure.job_desk": "perdure.scenarios.cast.job_desk",
    "perdure.newsroom": "perdure.scenarios.cast.newsroom",
    "perdure.guide": "perdure.scenarios.cast.guide",
    "perdure.workshop": "perdure.scenarios.cast.workspace",
    "perdure.clerk": "perdure.scenarios.cast.clerk",
    "perdure.swarm": "perdure.scenarios.cast.workers",
    "perdure.joiners": "perdure.scenarios.cast.joiners",
    "perdure.waiters": "perdure.scenarios.cast.waiters",
    "perdure.swarm_chats": "perdure.scenarios.cast.calculator",
    "perdure.bench": "perdure.scenarios.cast.measured",
    "perdure.bench_chats": "perdure.scenarios.cast.measured_chats",
    "perdure.demo": "perdure.scenarios.cast.demo",
}
"""The modules of ours in which agents and tools stand, by their permanent names."""

_NAMES: Final = {module: name for name, module in PLACES.items()}


def permanent(module: str) -> str:
    return _NAMES.get(module, module)


def module_of(name: str) -> str:
    return PLACES.get(name, name)


def is_ours(module: str) -> bool:
    return module in _NAMES
