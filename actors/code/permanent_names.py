"""Permanent names of Perdure's own agents and tools. Names are durable, so they must not depend on the place of a file.

An author's class is named by its module, as `research:Researcher`. A class of ours has one of the short module names below, which never
change, as `perdure.census:Reader`. If a module moves, only its place here changes.
"""

from __future__ import annotations

from typing import Final

PLACES: Final = {
    "perdure.tools": "perdure.actors.chat.tool_run",
    "perdure.messengers": "perdure.actors.messenger.state",
    "perdure.census": "perdure.scenarios.stories.fan_out_agents",
    "perdure.job_desk": "perdure.scenarios.stories.jobs_agents",
    "perdure.guide": "perdure.scenarios.stories.chat_agents",
    "perdure.workshop": "perdure.scenarios.stories.chat_workspace",
    "perdure.clerk": "perdure.scenarios.stories.messenger_agents",
    "perdure.swarm": "perdure.scenarios.swarm.workloads",
    "perdure.swarm_chats": "perdure.scenarios.swarm.chat_workloads",
    "perdure.swarm_jobs": "perdure.scenarios.swarm.job_workloads",
    "perdure.swarm_letters": "perdure.scenarios.swarm.messenger_workloads",
    "perdure.bench": "perdure.scenarios.bench.agents",
    "perdure.bench_alarms": "perdure.scenarios.bench.alarms",
    "perdure.bench_chats": "perdure.scenarios.bench.chat_agents",
    "perdure.bench_jobs": "perdure.scenarios.bench.jobs",
    "perdure.bench_messenger": "perdure.scenarios.bench.messenger",
    "perdure.bench_watchers": "perdure.scenarios.bench.watchers",
    "perdure.demo": "perdure.scenarios.demo.agents",
}
"""The modules of ours in which agents and tools stand, by their permanent names."""

_NAMES: Final = {module: name for name, module in PLACES.items()}


def permanent(module: str) -> str:
    """The durable name of a module: its own, unless it is one of ours."""
    return _NAMES.get(module, module)


def module_of(name: str) -> str:
    """The module of a durable name."""
    return PLACES.get(name, name)


def is_ours(module: str) -> bool:
    """Whether a module stands in the table."""
    return module in _NAMES
