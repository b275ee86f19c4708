"""What is read over REST: the overview, runs by pages, one run, its events, the processes, the account of mail, and the limits."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import cast

from starlette.responses import Response

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.streaming import event, event_stream
from perdure.actors.rest import models
from perdure.actors.rest.live import LookOut
from perdure.actors.rest.table import Asked, Operation
from perdure.ledger import BadRequest

EVENTS = "text/event-stream"


def reading(backend: Backend) -> list[Operation]:
    """The operations that change nothing."""
    on, run = _Reading(backend), models.OfRun
    return [
        Operation("GET", "/api/overview", on.overview, models.OverviewTold, query=models.OverviewAsked),
        Operation("GET", "/api/live", on.live, media=EVENTS, query=models.LiveAsked),
        Operation("GET", "/api/runs", on.list_runs, models.RunsPage, query=models.RunsAsked),
        Operation("GET", "/api/runs/{run_id}", on.show_run, models.RunTold, of=run),
        Operation("GET", "/api/runs/{run_id}/explain", on.explain_run, models.Explained, of=run),
        Operation("GET", "/api/runs/{run_id}/at-stake", on.at_stake, models.AtStakeTold, of=run),
        Operation("GET", "/api/agents/{agent}/at-stake", on.agent_at_stake, models.AtStakeTold, of=models.OfAgent),
        Operation("GET", "/api/runs/{run_id}/events", on.run_events, media=EVENTS, of=run, query=models.EventsAsked),
        Operation("GET", "/api/hosts", on.hosts, models.HostsTold),
        Operation("GET", "/api/audit", on.audit, models.Audited),
        Operation("GET", "/api/limits", on.limits, models.LimitsTold),
    ]


class _Reading:
    def __init__(self, backend: Backend) -> None:
        self._backend, self._look_out = backend, LookOut(backend)

    async def overview(self, asked: Asked) -> object:
        """Counts, processes and live runs."""
        return await self._backend.ask("ps", asked.query.live)

    async def list_runs(self, asked: Asked) -> object:
        """Runs, the newest request first, by pages."""
        which: models.RunsAsked = asked.query
        statuses = None if which.status is None else [str(each) for each in which.status]
        return await self._backend.ask("page", which.parent, which.type, statuses, which.q, which.before, which.limit)

    async def show_run(self, asked: Asked) -> object:
        """Everything about a run."""
        return await self._backend.ask("show", asked.path.run_id)

    async def explain_run(self, asked: Asked) -> object:
        """Where a run stands and why, and what comes next."""
        run_id = asked.path.run_id
        return {"run_id": run_id, "lines": await self._backend.ask("explain", run_id)}

    async def at_stake(self, asked: Asked) -> object:
        """How much would be deleted with a run."""
        return await self._backend.ask("at_stake", [asked.path.run_id])

    async def agent_at_stake(self, asked: Asked) -> object:
        """How much would be deleted with an agent."""
        return await self._backend.ask("at_stake", [], asked.path.agent)

    async def hosts(self, asked: Asked) -> object:
        """The processes that serve."""
        told = await self._backend.ask("ps", 0)
        return {"supervisor": told["supervisor"], "hosts": told["hosts"]}

    async def audit(self, asked: Asked) -> object:
        """The account of all mail, parked mail, and what was found at the start."""
        return await self._backend.ask("audit")

    async def limits(self, asked: Asked) -> object:
        """The limits in force."""
        return {"limits": await self._backend.ask("limits")}

    async def live(self, asked: Asked) -> Response:
        """Everything that changes, as an event stream.

        - `overview`: as `/api/overview`. It comes first, and after each `reset`.
        - `runs`: `runs` are lines of runs that have changed, as they are now, `gone` the ids of those that were cleared.
        - `counts`: as `/api/overview`, without `live`, `agents` and `facts`, when it has changed.
        - `state`: `{"supervisor": "silent"}`, and `"answers"` when it does again.
        - `reset`: what has changed since the last event is not known. Read everything again.

        The id of an event is the number of a fact. A client that comes again with the last one, as `Last-Event-ID` or `?after=`, is told
        what has changed since, by whichever gateway.
        """
        pieces = self._look_out.watch(after(asked), asked.query.live)
        return event_stream(pieces)

    async def run_events(self, asked: Asked) -> Response:
        """The events of a run as an event stream, from `Last-Event-ID` or `?after=` on, until its end."""
        last = after(asked)
        batches = self._backend.watch(asked.path.run_id, -1 if last is None else last)
        first = await anext(batches, None)  # an unknown run is refused before the stream begins

        async def pieces() -> AsyncGenerator[bytes, None]:
            batch = first
            while batch is not None:
                yield batch.stream
                batch = await anext(batches, None)
            yield event(b"{}", name="end")

        return event_stream(pieces())


def after(asked: Asked) -> int | None:
    """The last event that is known; None if none is. What a client says of itself when it comes again wins."""
    said = asked.request.headers.get("last-event-id")
    if said is None:
        return cast("int | None", asked.query.after)
    try:
        number = int(said)
    except ValueError:
        number = -2
    if not -1 <= number < 2**53:
        raise BadRequest("last-event-id", f"{said!r:.40} is no number of an event")
    return number
