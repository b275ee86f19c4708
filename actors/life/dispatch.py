"""The parent's side of agents as tools: check a request, give it its id, ask for it, and wait for its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Unpack, cast

from perdure.actors.code.naming import type_name
from perdure.actors.code.schema import Shape, run_shapes
from perdure.actors.life.activity import ACTIVITY, Activity
from perdure.actors.life.child_types import RunOptions
from perdure.actors.life.class_options import Runs, class_options
from perdure.actors.life.life import Life
from perdure.actors.life.outbox import Outbox
from perdure.actors.life.results import (
    REFUSED_BY_LIMIT,
    Detached,
    RunFailed,
    RunHandle,
    RunHandles,
    RunInfo,
    RunOutcome,
    RunResult,
    run_result,
)
from perdure.actors.link.messages import Fields, Inspect, Known, ListRuns, Plain
from perdure.actors.tasks import Pending
from perdure.actors.telemetry.telemetry import carried_by_run
from perdure.ledger import (
    AdmissionRefused,
    AwaitedInsideHandler,
    BadRequest,
    Cancel,
    Clear,
    Request,
    UnknownAgentType,
    check_id,
    check_ms,
    digest_of,
    preview_of,
    shown_input,
    unpack,
)
from perdure.policies import Json, JsonObject, Limits

CLEARED_AT_ONCE = 500
PLAIN = Detached()
BEHALF_MAX: Final = 8  # agents whose tool call a run is done for
NOT_AWAITED: Final = "the code that waited for it was cancelled"


class Entry(NamedTuple):
    """What is asked for, of which class, and whether it goes on if nobody waits for it any more."""

    agent_class: type
    request: Request
    is_left: bool = False


Wanted = tuple[type, object] | dict[str, Any]
"""How an author asks for one of many runs: class and input, or all arguments of `run_agent_tool` by their names."""


class Kind(NamedTuple):
    """What the runs of one class that are asked for together have in common. Their requests share `options`, which nobody changes."""

    takes: Shape
    agent_type: str
    options: JsonObject
    activity: Activity | None
    wait: bool


class Dispatch:
    """Asks for runs on behalf of one agent."""

    def __init__(self, life: Life, outbox: Outbox) -> None:
        self._life, self._outbox = life, outbox
        self._checked: tuple[Detached, JsonObject] | None = None
        self._starting: dict[str, asyncio.Task[object]] = {}

    def run(
        self, agent_class: type, input: object, *, detached: bool | Detached = False, **options: Unpack[RunOptions]
    ) -> Pending[RunResult | RunHandle] | RunHandle:
        """One run; see `Agent.run_agent_tool`."""
        entry = self._entry(agent_class, input, detached=detached, **options)
        if self._life.transaction is not None:
            return self._post([entry])[0]
        return self._life.bridge(self._one(entry))

    def run_many(
        self, requests: Sequence[Wanted], *, detached: bool | Detached
    ) -> Pending[Sequence[RunResult | RunHandle]] | RunHandles:
        """Many runs; see `Agent.run_agent_tools`."""
        asked = self._from_plain(requests, detached)
        if self._life.transaction is not None:
            return self._post(asked)
        return self._life.bridge(self._many(asked))

    def _post(self, asked: list[Entry]) -> RunHandles:
        """Ask for runs as part of the open transaction."""
        if any(entry.request.wait for entry in asked):
            raise AwaitedInsideHandler(
                "detached", "a run cannot be waited for inside a transaction or a handler; ask for it detached"
            )
        if any("on_limit" in entry.request.options for entry in asked):
            raise BadRequest(
                "on_limit", "a transaction begins its runs when it commits: nobody would be there to be told 'reject'"
            )
        for entry in asked:
            self._outbox.post(entry.request)
        return RunHandles(RunHandle(entry.request.run_id, entry.request.agent_type) for entry in asked)

    async def _one(self, entry: Entry) -> RunResult | RunHandle:
        (future,) = await self._ask_for([entry])
        with self._waiting([entry]):
            return self._told(entry, await future)

    async def _many(self, asked: list[Entry]) -> Sequence[RunResult | RunHandle]:
        futures = await self._ask_for(asked)
        with self._waiting(asked):
            done = [
                self._told(entry, future.result()) if _has_result(future) else await self._end(entry, future)
                for entry, future in zip(asked, futures, strict=True)
            ]
        return done if any(entry.request.wait for entry in asked) else RunHandles(cast("list[RunHandle]", done))

    async def _end(self, entry: Entry, future: asyncio.Future[Plain]) -> RunResult | RunHandle:
        """The end of one of many. That the limit was reached is its end, and not that of the others."""
        try:
            return self._told(entry, await future)
        except AdmissionRefused as refusal:
            request = entry.request
            if not request.wait:
                return RunHandle(request.run_id, request.agent_type, "refused")
            return RunFailed(
                run_id=request.run_id,
                agent_type=request.agent_type,
                status="error",
                error=str(refusal),
                reason=REFUSED_BY_LIMIT,
            )

    def _told(self, entry: Entry, outcome: Plain) -> RunResult | RunHandle:
        request = entry.request
        if request.wait:
            return result_of(entry.agent_class, request.run_id, outcome)
        return RunHandle(request.run_id, request.agent_type, outcome or "running")

    @contextmanager
    def _waiting(self, asked: list[Entry]) -> Iterator[None]:
        """While somebody waits for these runs. If the author's code is cancelled, they are too, unless they are left to go on. Code that
        will be entered again, by the next life perhaps, will ask for them again, so they go on."""
        try:
            yield
        except asyncio.CancelledError:
            activity = ACTIVITY.get()
            is_repeated = self._life.is_leaving or activity is None or activity.is_repeated
            for entry in () if is_repeated else asked:
                if entry.request.wait and not entry.is_left:
                    wish = Cancel(entry.request.run_id, self._life.agent_id, NOT_AWAITED)
                    self._life.services.supervisor.question(wish).add_done_callback(_noted)
            raise

    async def as_completed(self, requests: Sequence[Wanted]) -> AsyncIterator[RunResult]:
        """Results in the order of completion."""
        asked = self._from_plain(requests, detached=False)
        futures = await self._ask_for(asked)
        finished: asyncio.Queue[tuple[Entry, asyncio.Future[Plain]]] = asyncio.Queue()
        for entry, future in zip(asked, futures, strict=True):
            future.add_done_callback(partial(_note, finished, entry))
        for _ in asked:
            with self._waiting(asked):
                entry, future = await finished.get()
            yield cast("RunResult", await self._end(entry, future))

    async def _ask_for(self, asked: list[Entry]) -> list[asyncio.Future[Plain]]:
        """Ask for runs, after the author's hook was told of those that are new. What it raises refuses all of them."""
        requests = [entry.request for entry in asked]
        if self._life.overrides("on_agent_tool_start"):
            known = await self._life.ask(Known([request.run_id for request in requests]))
            for request in requests:
                if request.run_id not in known:
                    await self._tell_of_start(request)
        futures = self._life.services.supervisor.begin_many(requests)
        for request, future in zip(requests, futures, strict=True) if self._starting else ():
            if request.run_id in self._starting:
                future.add_done_callback(partial(self._known, request.run_id))
        return futures

    async def _tell_of_start(self, request: Request) -> None:
        """Call the hook once for a run, however many ask for it at the same time; they share what it comes to."""
        run_id, options = request.run_id, request.options
        if run_id not in self._starting:
            info = RunInfo(
                run_id=run_id,
                agent_type=request.agent_type,
                parent_tool_call_id=options.get("tool_call"),
                display_order=options.get("order", 0),
                display=options.get("display"),
                detached=bool(options.get("detached")),
                input_preview=shown_input(options, request.input),
            )
            hook = self._life.call(self._life.agent.on_agent_tool_start, info)
            self._starting[run_id] = self._life.tasks.start_awaited(hook)
            self._starting[run_id].add_done_callback(partial(self._refused, run_id))
        await self._starting[run_id]

    def _refused(self, run_id: str, told: asyncio.Future[object]) -> None:
        """If the hook raised, whoever asks next is the first one again."""
        if told.cancelled() or told.exception() is not None:
            del self._starting[run_id]

    def _known(self, run_id: str, _answer: asyncio.Future[object]) -> None:
        """From now on the supervisor says that the run is no new one."""
        self._starting.pop(run_id, None)

    def _from_plain(self, requests: Sequence[Wanted], detached: bool | Detached) -> list[Entry]:
        entries: list[Entry] = []
        kinds: dict[
            int, Kind
        ] = {}  # by the identities of their classes, since what an author hands over may be anything
        for each in requests:
            if isinstance(each, dict):
                asked = {"detached": detached, **each}
                agent_class = asked.pop("agent_class", None)
                if agent_class is None:
                    raise BadRequest("agent_class", "is missing")
                entries.append(self._entry(agent_class, asked.pop("input", None), **asked))
                continue
            agent_class, value = each
            kind = kinds.get(id(agent_class))
            if kind is None:
                kind = kinds[id(agent_class)] = self._kind(agent_class, detached)
            entries.append(Entry(agent_class, self._request(kind, value)))
        return entries

    def _entry(
        self,
        agent_class: type,
        input: object,
        *,
        detached: bool | Detached,
        on_cancel: str | None = None,
        **options: Any,
    ) -> Entry:
        if on_cancel not in (None, "cancel", "leave"):
            raise BadRequest("on_cancel", f"{on_cancel!r} is not 'cancel' or 'leave'")
        if on_cancel is not None and detached:
            raise BadRequest("on_cancel", "nobody waits for a detached run, so it is not cancelled with whoever waits")
        request = self.request(agent_class, input, detached=detached, **options)
        return Entry(agent_class, request, on_cancel == "leave")

    def request(
        self,
        agent_class: type,
        input: object,
        *,
        run_id: str | None = None,
        detached: bool | Detached = False,
        parent_tool_call_id: str | None = None,
        display_order: int = 0,
        display: JsonObject | None = None,
        input_preview: Json = None,
        on_limit: str = "queue",
    ) -> Request:
        """The request for a run, checked: what is wrong with it is said before anything is written."""
        kind = self._kind(agent_class, detached, parent_tool_call_id)
        options: JsonObject = {}
        for key, value in (("tool_call", parent_tool_call_id), ("display", display), ("preview", input_preview)):
            if value is not None:
                options[key] = value
        if display_order:
            options["order"] = display_order
        if on_limit == "reject":
            options["on_limit"] = "reject"
        elif on_limit != "queue":
            raise BadRequest("on_limit", f"{on_limit!r} is not 'queue' or 'reject'")
        if run_id is not None:
            check_id("run_id", run_id, self._life.limits.id_max)
        return self._request(kind, input, options, run_id)

    def _kind(self, agent_class: type, detached: bool | Detached, tool_call: str | None = None) -> Kind:
        """What is the same for all runs of a class that are asked for here and now."""
        life, takes = self._life, input_shape(agent_class)
        agent_type = type_name(agent_class, life.code_dir)
        options = class_options(cast("type[Runs]", agent_class), life.agent, life.services.package) | carried_by_run()
        if detached:
            options.update(self._detached_options(detached if isinstance(detached, Detached) else PLAIN))
        activity = ACTIVITY.get()
        run = activity.run if activity is not None else None
        behalf = ([life.agent_id] if tool_call else []) + list(run.behalf if run is not None else ())
        if behalf:
            options["behalf"] = behalf[:BEHALF_MAX]
        return Kind(takes, agent_type, options, activity, not detached)

    def _request(self, kind: Kind, input: object, more: JsonObject | None = None, run_id: str | None = None) -> Request:
        """The request for one of them, with options of its own."""
        life = self._life
        activity = kind.activity or Activity(life.agent_id)
        body = encoded(kind.takes, input, life.limits.input_bytes_max)
        digest, options = digest_of(body), kind.options
        shown = preview(body, life.limits)
        if shown or more:
            options = options | shown | (more or {})
        return Request(
            activity.derive(kind.agent_type, digest) if run_id is None else run_id,
            kind.agent_type,
            life.agent_id,
            activity.run_id,
            digest,
            body,
            options,
            life.incarnation,
            kind.wait,
        )

    def _detached_options(self, detached: Detached) -> JsonObject:
        """The options of a detached run, checked against this agent; of a batch they are checked once."""
        if self._checked is None or self._checked[0] is not detached:
            self._checked = (detached, self._check(detached))
        return self._checked[1]

    def _check(self, detached: Detached) -> JsonObject:
        agent = self._life.agent
        options = detached.options(agent)
        if options.get("notify") and not hasattr(agent, "_perdure_notify"):
            raise BadRequest(
                "notify",
                f"{type(agent).__name__} is no chat agent, so there is no chat to notify; name a handler instead",
            )
        if options.get("notify"):
            options.setdefault("on_finish", "_perdure_notify")
        milestones = options.get("milestones")
        if isinstance(milestones, dict) and hasattr(agent, "_perdure_notify"):
            options.setdefault("on_milestone", f"_perdure_{milestones['mode']}")
        if milestones and "on_milestone" not in options:
            raise BadRequest(
                "on_milestones",
                f"{type(agent).__name__} is no chat agent, so name the method that is told: `on_milestone`",
            )
        for option, attribute in (
            ("max_budget_ms", "detached_max_budget_ms"),
            ("no_progress_budget_ms", "detached_no_progress_budget_ms"),
        ):
            value = getattr(agent, attribute, None)
            if option not in options and value is not None:
                options[option] = check_ms(attribute, value)
        return options

    async def inspect(self, run_id: str) -> Fields | None:
        """What is known of a run of this agent."""
        told = await self._life.ask(Inspect(check_id("run_id", run_id, self._life.limits.id_max)))
        if told is None or told["parent"] != self._life.agent_id:
            return None
        return cast("Fields", told)

    async def has(self, agent_class: type | str, run_id: str) -> bool:
        """Whether a run of this class under this id ever had a place."""
        told = await self.inspect(run_id)
        wanted = agent_class if isinstance(agent_class, str) else type_name(agent_class, self._life.code_dir)
        return told is not None and told["agent_type"] == wanted and told["attempt"] > 0

    async def clear(self, status: Sequence[str] | None, before_ms: float | None) -> int:
        """Clear this agent's runs, a batch at a time."""
        statuses = None if status is None else [str(each) for each in status]
        cleared = 0
        while True:
            found = await self._life.ask(ListRuns(self._life.agent_id, statuses, before_ms, CLEARED_AT_ONCE))
            if not found:
                return cleared
            await self._life.ask(Clear([run["run_id"] for run in found]))
            cleared += len(found)


def _has_result(future: asyncio.Future[Plain]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _noted(answer: asyncio.Future[Plain]) -> None:
    """A run that is not known any more need not be cancelled."""
    if not answer.cancelled():
        answer.exception()


def _note(
    finished: asyncio.Queue[tuple[Entry, asyncio.Future[Plain]]], entry: Entry, future: asyncio.Future[Plain]
) -> None:
    finished.put_nowait((entry, future))


def input_shape(agent_class: type) -> Shape:
    """What `run` of this class takes."""
    if not isinstance(agent_class, type) or not callable(getattr(agent_class, "run", None)):
        name = getattr(agent_class, "__name__", repr(agent_class))
        raise UnknownAgentType("agent_class", f"{name} is not an agent class with a `run` method")
    return run_shapes(agent_class)[0]


def encoded(takes: Shape, value: object, bytes_max: int) -> bytes:
    """The input of a run, checked against what `run` of its class takes."""
    body = takes.encode("input", value, bytes_max)
    if takes.adapter is not None:
        takes.decode("input", body)  # what the child could not read would park its run
    return body


def preview(body: bytes, limits: Limits) -> JsonObject:
    """The option that shows an input which is too large to stand in its fact; it is cut here, so that nobody else has to read it."""
    return {"preview": preview_of(unpack(body))} if len(body) > limits.inline_bytes_max else {}


def result_of(agent_class: type, run_id: str, outcome: RunOutcome) -> RunResult:
    """The end of a run as its parent sees it, the output typed by the child's annotation."""
    output = outcome.get("output")
    return run_result(
        run_id=run_id,
        agent_type=outcome.get("agent_type", ""),
        status=outcome["status"],
        output=None if output is None else run_shapes(agent_class)[1].decode("output", output),
        summary=outcome.get("summary", ""),
        error=outcome.get("error", ""),
        reason=outcome.get("reason"),
        child_still_running=outcome.get("child_still_running"),
        trace=outcome.get("trace", ""),
    )
