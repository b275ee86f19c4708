"""What agents printed and logged, over REST: the newest records, and those that are written from then on."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.streaming import event, event_stream
from perdure.actors.log_files import LATE_MS, ClusterLogs, Logged, WantedLogs
from perdure.actors.ray_world.deployment import LOGS
from perdure.actors.rest.models import Seq, Words
from perdure.actors.rest.reading import EVENTS, after
from perdure.actors.rest.table import ApiRequest, Handlers, Operation, Taken
from perdure.ledger import bucket_of
from perdure.policies import JsonObject

AT_ONCE: Final = 500
"""How many records are in one event at most."""


class LogFilter(Taken):
    """Which records."""

    of: Annotated[Words, Field(description="Those of a run, of an agent by its address or name, or of a host.")] = ""
    level: Annotated[Literal["debug", "info", "warning", "error"], Field(description="The least level.")] = "debug"

    def wanted(self, since_ms: float) -> WantedLogs:
        return WantedLogs(self.of, since_ms, self.level.upper())


class LogsAsked(LogFilter):
    """Which of the records that are there."""

    since_ms: Annotated[Seq, Field(description="Only those that are not older than this instant.")] = 0
    last: Annotated[int, Field(ge=0, le=10_000, description="Only so many, the newest ones.")] = 1_000


class LogsFollowed(LogFilter):
    """From which on."""

    after: Annotated[int | None, Field(ge=-1, lt=2**53, description="An instant; `Last-Event-ID` wins.")] = None


class LogsTold(BaseModel):
    """Records in the order of time: `at_ms`, `level`, `host`, `run`, `agent`, `logger`, `text`, and `trace` and `span` if there are. Those
    of another machine than the gateway's have its `machine`. Where one is missing, a record of the logger `perdure.logs` says so."""

    records: list[JsonObject]


class LogHandlers(Handlers):
    """The operations on logs."""

    @Operation("GET", "/api/logs", LogsTold, query=LogsAsked)
    async def show_logs(self, asked: ApiRequest) -> object:
        """What agents' code printed and logged, wherever it ran. At most `logs_bytes_max` of it is kept on a machine, and where machines
        share no directory, each tells at most 256 KB at once."""
        which: LogsAsked = asked.query
        return {"records": await self._logs().newest(which.wanted(which.since_ms), which.last)}

    @Operation("GET", "/api/logs/live", media=EVENTS, query=LogsFollowed)
    async def follow_logs(self, asked: ApiRequest) -> Response:
        """What is written from now on, or since an instant, as an event stream.

        The data of a `logs` event is `{"records": […]}`; its id is an instant. A client that comes again with the last one misses nothing,
        and is told once more of the 2 s before.
        """
        return event_stream(_followed(self._logs(), asked.query, after(asked)))

    def _logs(self) -> ClusterLogs:
        data = self._backend.data
        return ClusterLogs(data / LOGS, self._backend.ask if bucket_of(data) else None)


async def _followed(logs: ClusterLogs, which: LogFilter, since_ms: int | None) -> AsyncGenerator[bytes, None]:
    newest_ms = -1 if since_ms is None else since_ms
    wanted = which.wanted(newest_ms - LATE_MS)
    if since_ms is None:  # what is there already is passed over
        await logs.newest(wanted, 0)
    async with aclosing(logs.follow(wanted)) as pages:
        async for records in pages:
            for begin in range(0, len(records), AT_ONCE):
                page: list[Logged] = records[begin : begin + AT_ONCE]
                newest_ms = max(newest_ms, page[-1]["at_ms"])
                yield event(json_bytes({"records": page}), number=newest_ms, name="logs")
