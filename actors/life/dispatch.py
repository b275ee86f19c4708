"""The parent's side of agents as tools: ask for runs, and wait for their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Final, Unpack, cast

from perdure.actors.code.naming import type_name
from perdure.actors.code.signatures import check_options, run_shapes
from perdure.actors.event_stream import Followed
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.child_types import RunOptions
from perdure.actors.life.host_options import Placement
from perdure.actors.life.life import Life
from perdure.actors.life.outbox import Outbox
from perdure.actors.life.results import (
    REFUSED_BY_LIMIT,
    UNREADABLE,
    Detached,
    RunFailed,
    RunHandle,
    RunHandles,
    RunInfo,
    RunOutcome,
    RunResult,
    run_result,
)
from perdure.actors.life.run_requests import RequestedRun, RunRequests, Wanted
from perdure.actors.link.messages import Fields, Plain
from perdure.actors.link.questions import Inspect, ListRuns, WhichExist
from perdure.actors.tasks import Pending
from perdure.ledger import (
    AdmissionRefused,
    AwaitedInsideHandler,
    BadRequest,
    Cancel,
    Clear,
    Request,
    UnknownRun,
    check_id,
    shown,
    shown_input,
    taken_out,
)
from perdure.policies import JsonObject

CLEARED_AT_ONCE = 500
NOT_AWAITED: Final = "the code that waited for it was cancelled"


class Dispatch:
    """Asks for runs on behalf of one agent."""

    def __init__(self, life: Life, outbox: Outbox, sends: Callable[[str, str, object], object]) -> None:
        self._life, self._outbox, self._sends = life, outbox, sends
        self._requests = RunRequests(life)
        self._starting: dict[str, asyncio.Task[object]] = {}

    def run(
        self,
        agent_class: type,
        input: object,
        *,
        detached: bool | Detached = False,
        placement: Placement | None = None,
        **options: Unpack[RunOptions],
    ) -> Pending[RunResult | RunHandle] | RunHandle:
        check_options("run_agent_tool", options, RunOptions.__annotations__)
        entry = self._requests.one(agent_class, input, detached=detached, placement=placement, **options)
        if self._life.transaction is not None:
            return self._post([entry])[0]
        return self._life.bridge(self._one(entry))

    def ask(
        self,
        agent_class: type,
        asked: Mapping[str, object],
        *,
        run_id: str | None = None,
        then: str = "",
        display: JsonObject | None = None,
    ) -> Pending[RunResult | RunHandle] | RunHandle:
        """Ask for a run that asks people (`actors.life.asking`): to wait for it, or to have a method told what it came to."""
        entry = self._requests.question(agent_class, asked, run_id, then, display)
        if self._life.transaction is not None:
            return self._post([entry])[0]
        return self._life.bridge(self._one(entry))

    def run_many(
        self, requests: Sequence[Wanted], *, detached: bool | Detached
    ) -> Pending[Sequence[RunResult | RunHandle]] | RunHandles:
        asked = self._requests.many(requests, detached)
        if self._life.transaction is not None:
            return self._post(asked)
        return self._life.bridge(self._many(asked, waits=not detached))

    def _handle(self, request: Request, status: str = "running") -> RunHandle:
        return RunHandle(request.run_id, request.agent_type, status, sends=self._sends)

    def _post(self, asked: list[RequestedRun]) -> RunHandles:
        self._refuse_waiting(asked)
        if any("on_limit" in entry.request.options for entry in asked):
            raise BadRequest(
                "on_limit", "a transaction begins its runs when it commits: nobody would be there to be told 'reject'"
            )
        for entry in asked:
            self._outbox.post(entry.request)
        return RunHandles(self._handle(entry.request) for entry in asked)

    def _refuse_waiting(self, asked: list[RequestedRun]) -> None:
        if self._life.transaction is not None and any(entry.request.wait for entry in asked):
            raise AwaitedInsideHandler(
                "detached", "a run cannot be waited for inside a transaction or a handler; ask for it detached"
            )

    async def _one(self, entry: RequestedRun) -> RunResult | RunHandle:
        (future,) = await self._ask_for([entry])
        with self._waiting([entry]):
            return self._outcome(entry, await future)

    async def _many(self, asked: list[RequestedRun], *, waits: bool) -> Sequence[RunResult | RunHandle]:
        futures = await self._ask_for(asked)
        with self._waiting(asked):
            # of thousands most have ended when the first ones are looked at; these need no coroutine each
            done = [
                self._outcome(entry, future.result()) if _has_result(future) else await self._end(entry, future)
                for entry, future in zip(asked, futures, strict=True)
            ]
        is_awaited = any(entry.request.wait for entry in asked) if asked else waits
        return done if is_awaited else RunHandles(cast("list[RunHandle]", done))

    async def _end(self, entry: RequestedRun, future: asyncio.Future[Plain]) -> RunResult | RunHandle:
        # That the limit was reached is the end of this one, and not that of the others.
        try:
            return self._outcome(entry, await future)
        except AdmissionRefused as refusal:
            request = entry.request
            if not request.wait:
                return self._handle(request, "refused")
            return RunFailed(
                run_id=request.run_id,
                agent_type=request.agent_type,
                status="error",
                error=str(refusal),
                reason=REFUSED_BY_LIMIT,
            )

    def _outcome(self, entry: RequestedRun, outcome: Plain) -> RunResult | RunHandle:
        request = entry.request
        if request.wait:
            return result_of(entry.agent_class, request.run_id, outcome)
        return self._handle(request, outcome or "running")

    @contextmanager
    def _waiting(self, asked: list[RequestedRun]) -> Iterator[None]:
        # If the author's code is cancelled while it waits for these runs, they are too, unless they are left to go on. Code that will be
        # entered again, by the next life perhaps, will request them again, so they go on.
        try:
            yield
        except asyncio.CancelledError:
            activity = ACTIVITY.get()
            is_repeated = self._life.is_leaving or activity is None or activity.is_repeated
            for entry in () if is_repeated else asked:
                if entry.request.wait and not entry.is_left:
                    cancel = Cancel(entry.request.run_id, self._life.agent_id, NOT_AWAITED)
                    self._life.request(cancel)
            raise

    def as_completed(self, requests: Sequence[Wanted]) -> Followed[RunResult]:
        asked = self._requests.many(requests, detached=False)
        self._refuse_waiting(asked)
        return self._life.bridge_stream(partial(self._as_completed, asked))

    async def _as_completed(self, asked: list[RequestedRun]) -> AsyncGenerator[RunResult, None]:
        # A run or a fiber that is entered again is given them in the order of before: what it does with each has that order, too.
        futures, activity = await self._ask_for(asked), ACTIVITY.get()
        keeper = None if activity is None else activity.own_run or activity.fiber
        order = None if keeper is None else keeper.order()
        finished = asyncio.Queue[int]()
        for at, future in enumerate(futures):
            future.add_done_callback(partial(_note, finished, at))
        places = {entry.request.run_id: at for at, entry in enumerate(asked)}
        left = {*range(len(asked))}
        while left:
            known = None if order is None else order.next_known()
            with self._waiting(asked):
                found = await _taken(finished) if known is None else [places[each] for each in known if each in places]
            came = [at for at in dict.fromkeys(found) if at in left]
            if order is not None and known is None:
                await self._life.written(partial(order.add, [asked[at].request.run_id for at in came]))
            for at in came:
                left.remove(at)
                with self._waiting(asked):
                    await asyncio.wait([futures[at]])
                yield cast("RunResult", await self._end(asked[at], futures[at]))

    def first_ok(self, n: int, requests: Sequence[Wanted]) -> Pending[list[RunResult]]:
        asked = self._requests.many(requests, detached=False)
        self._refuse_waiting(asked)
        return self._life.bridge(self._first_ok(asked, self._requests.first_of(n, asked)))

    async def _first_ok(self, asked: list[RequestedRun], race: Request) -> list[RunResult]:
        # The ledger decides who is among the first, and cancels the others. A later life asks for the same, and is told the same.
        futures = await self._ask_for(asked)
        decided = self._life.services.supervisor.begin(race)
        with self._waiting([*asked, RequestedRun(type(None), race)]):
            try:
                end = result_of(None, race.run_id, await decided)
            except UnknownRun:  # for one of them was refused
                await _first_refusal(futures)
                raise
            by_id = {entry.request.run_id: (entry, future) for entry, future in zip(asked, futures, strict=True)}
            winners = [by_id[run_id] for run_id in end.output]
            return [cast("RunResult", self._outcome(entry, await future)) for entry, future in winners]

    async def _ask_for(self, asked: list[RequestedRun]) -> list[asyncio.Future[Plain]]:
        # Ask for runs, after the author's hook was told of those that are new. What it raises refuses all of them.
        requests = [entry.request for entry in asked]
        if self._life.overrides("on_agent_tool_start"):
            known = await self._life.ask(WhichExist([request.run_id for request in requests]))
            for request in requests:
                if request.run_id not in known:
                    await self._tell_of_start(request)
        futures = self._life.services.supervisor.begin_many(requests)
        for request, future in zip(requests, futures, strict=True) if self._starting else ():
            if request.run_id in self._starting:
                future.add_done_callback(partial(self._known, request.run_id))
        return futures

    async def _tell_of_start(self, request: Request) -> None:
        # However many ask for a run at the same time, the hook is called once, and they share what it comes to.
        run_id, options = request.run_id, request.options
        if run_id not in self._starting:
            info = RunInfo(
                run_id=run_id,
                agent_type=request.agent_type,
                parent_tool_call_id=options.get("tool_call"),
                display_order=options.get("order", 0),
                display=taken_out(options.get("display")),
                detached=bool(options.get("detached")),
                input_preview=taken_out(shown_input(options, request.input)),
            )
            hook = self._life.call_in_turn(self._life.agent.on_agent_tool_start, info)
            self._starting[run_id] = self._life.tasks.start_awaited(hook)
            self._starting[run_id].add_done_callback(partial(self._refused, run_id))
        await self._starting[run_id]

    def _refused(self, run_id: str, hook: asyncio.Future[object]) -> None:
        if hook.cancelled() or hook.exception() is not None:  # then the next request is the first one again
            del self._starting[run_id]

    def _known(self, run_id: str, _answer: asyncio.Future[object]) -> None:
        self._starting.pop(run_id, None)  # from now on the supervisor says that the run is no new one

    async def inspect(self, run_id: str) -> Fields | None:
        run = await self._life.ask(Inspect(check_id("run_id", run_id, self._life.limits.id_max)))
        return cast("Fields", run) if run is not None and run["parent"] == self._life.agent_id else None

    async def has(self, agent_class: type | str, run_id: str) -> bool:
        # Whether it ever had a place: its attempts count from then.
        run = await self.inspect(run_id)
        wanted = agent_class if isinstance(agent_class, str) else type_name(agent_class, self._life.code_dir)
        return run is not None and run["agent_type"] == wanted and run["attempt"] > 0

    async def clear(self, statuses: list[str] | None, before_ms: float | None) -> int:
        cleared = 0
        while True:
            found = await self._life.ask(ListRuns(self._life.agent_id, statuses, before_ms, CLEARED_AT_ONCE))
            if not found:
                return cleared
            await self._life.ask(Clear([run["run_id"] for run in found]))
            cleared += len(found)


async def _first_refusal(futures: Sequence[asyncio.Future[object]]) -> None:
    for future in futures:
        if future.done():
            await future  # raises what it was refused with


def _has_result(future: asyncio.Future[object]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _note(finished: asyncio.Queue[int], at: int, _future: asyncio.Future[object]) -> None:
    finished.put_nowait(at)


async def _taken(finished: asyncio.Queue[int]) -> list[int]:
    taken = [await finished.get()]
    while not finished.empty():
        taken.append(finished.get_nowait())
    return taken


def result_of(agent_class: type | None, run_id: str, outcome: RunOutcome) -> RunResult:
    """The end of a run as its parent sees it, the output typed by the child's annotation; plain without the class. An output that does not
    fit the code any more is a failure of this run alone."""
    body, output, agent_type = outcome.get("output"), None, outcome.get("agent_type", "")
    try:
        if body is not None:
            output = shown(body) if agent_class is None else run_shapes(agent_class).gives.decode("output", body)
    except BadRequest as problem:
        why = f"it has completed, and its output does not fit what `run` of {agent_type} gives now: {problem}"
        return RunFailed(run_id=run_id, agent_type=agent_type, status="error", error=why, reason=UNREADABLE)
    return run_result(
        run_id=run_id,
        agent_type=agent_type,
        status=outcome["status"],
        output=output,
        summary=outcome.get("summary", ""),
        error=outcome.get("error", ""),
        reason=outcome.get("reason"),
        child_still_running=outcome.get("child_still_running"),
        trace=outcome.get("trace", ""),
    )
