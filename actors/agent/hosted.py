"""What an agent is for its host, beside what its author calls and overrides: its life, its kind, and the methods for the runtime only."""

from __future__ import annotations

from typing import Any, ClassVar

from perdure.actors.agent.exposing import exposed, watching
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.results import RunInfo, RunResult
from perdure.policies import Json


class Hosted:
    """The runtime's part of an agent."""

    _perdure: Tenant
    _perdure_recalls_results: ClassVar[bool] = (
        False  # whether `run`, entered after its end, gives the same result at once
    )
    _perdure_apart: ClassVar[bool] = False  # whether its runs are never placed on the host of the agent that asked
    _perdure_relays: ClassVar[bool] = False  # whether what its runs report is reported of the asking child's run too
    _perdure_held: ClassVar[bool] = True  # whether its runs wait for a place among those of the agent that asked

    def _perdure_woken(self) -> None:
        """Resume the work of an earlier life. Called after `on_start` if the agent has a storage."""

    def _perdure_answered_fiber(self, run: RunInfo, result: RunResult[Any]) -> None:
        self._perdure.fibers.answered(run, result)

    @watching
    async def _perdure_state(self) -> dict[str, Any]:
        return self._perdure.state_watch.present()

    @watching
    async def _perdure_watch_state(self, version: Any, edition: Any, hold_s: float) -> Any:
        return await self._perdure.state_watch.page(version, edition, hold_s)

    @exposed(repeatable=True)
    async def _perdure_set_state(self, state: Json) -> Any:
        return self._perdure.state_watch.replace(state)

    @exposed
    async def _perdure_begin_stream(self, method: str, arguments: bytes) -> str:
        return self._perdure.call_streams.begin(method, arguments)

    @exposed
    async def _perdure_next_of_stream(self, stream_id: str) -> Any:
        return await self._perdure.call_streams.next(stream_id)

    @exposed
    async def _perdure_end_stream(self, stream_id: str) -> None:
        await self._perdure.call_streams.end(stream_id)
