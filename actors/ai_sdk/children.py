"""The agents that the calls of a turn have started, told while they work: as outputs that are not final yet (client protocols B.6).

Each is the newest standing of one run, and takes the place of the one before; the result of the call takes the place of them all. A call
that is over soon has none. They are told from now on, also to who comes later, and stand in no transcript.
"""

from __future__ import annotations

import asyncio

from perdure.actors.ai_sdk.chunks import Chunk, Translator
from perdure.actors.events.reducer import AgentToolEvents, RunState
from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.call_runs import CallRuns, Framed
from perdure.policies import PROGRESS_EVERY_S


class Children:
    """The runs of agents that one turn waits for."""

    def __init__(self, backend: Backend, agent_id: str, request_id: str) -> None:
        self._runs = CallRuns(backend, agent_id, request_id, self._take)
        self._seen = AgentToolEvents()
        self._calls: dict[str, str] = {}
        self._changed: set[str] = set()
        self._news = asyncio.Event()

    async def follow(self, translator: Translator) -> None:
        """Follow the runs of the calls that have no result yet."""
        for call_id in translator.open_calls:
            await self._runs.follow(call_id)

    async def news(self) -> None:
        """Wait until there is something to be told, and a little longer, so that much is told at once."""
        await self._news.wait()
        await asyncio.sleep(PROGRESS_EVERY_S)

    def chunks(self, translator: Translator) -> list[Chunk]:
        """What is to be told now."""
        self._runs.raise_failures()
        changed, self._changed = self._changed, set()
        self._news.clear()
        runs = self._seen.runs_by_id
        told = [
            translator.preliminary(self._calls[each], standing(runs[each])) for each in sorted(changed) if each in runs
        ]
        return [chunk for chunks in told for chunk in chunks]

    async def close(self) -> None:
        """Follow nothing more."""
        await self._runs.close()

    async def _take(self, framed: Framed) -> None:
        run_id = framed.frame["run_id"]
        if framed.is_agent and self._seen.apply(framed.frame):
            self._calls[run_id] = framed.call_id
            self._changed.add(run_id)
            self._news.set()


def standing(run: RunState) -> dict[str, object]:
    """A run as an output that is not final."""
    found: dict[str, object] = {
        "runId": run.run_id,
        "agentType": run.agent_type.rpartition(":")[2],
        "status": run.status,
        "attempt": run.attempt,
        "milestones": run.milestones,
        "message": {"id": run.run_id, "role": "assistant", "parts": run.parts},
    }
    return found | ({"progress": run.progress} if run.progress is not None else {})
