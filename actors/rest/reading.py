"""What is read over REST: the overview, runs by pages, one run, its events, the processes, the account of mail, the
limits, and what agents printed and logged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count
from typing import Annotated, Any, Final, Literal, NamedTuple, cast, get_type_hints

from pydantic import BaseModel, Field, create_model
from starlette.responses import Response

from perdure.actors.gateway.backend import Backend
from perdure.actors.gateway.feeds import Shared, Watched
from perdure.actors.gateway.plain_json import json_bytes
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.gateway.streaming import COMMENT, comment, event, event_stream
from perdure.actors.link.kept_back import KEPT_BACK
from perdure.actors.link.messages import Fields
from perdure.actors.link.questions import OVER_HTTP, OverHttp, about_ask
from perdure.actors.log_files import LATE_MS, ClusterLogs, Logged, WantedLogs
from perdure.actors.ray_world.deployment import LOGS
from perdure.actors.rest import models
from perdure.actors.rest.models import Seq, Words
from perdure.actors.rest.operations import OF_PATHS, ApiRequest, Handlers, Operation, Taken, names_in
from perdure.actors.tasks import Pending, awaited
from perdure.ledger import BadRequest, LedgerError, SupervisorUnreachable, bucket_of
from perdure.policies import JsonObject, answer_refusal

EVENTS = "text/event-stream"


# ---------------------------------------------------------------- live
# Everything that changes, over one connection: `/api/live`.
#
# One look-out asks the supervisor a few times a second which runs have changed since the last fact that it knows, whatever the number of
# those who watch; while nobody watches it asks nothing. What is told is how things stand, not what happened, so a run that changes often is
# told once in a while, with its newest state, and a watcher that is slow misses nothing but states in between.
#
# The number of an event is that of a fact of the ledger. So a watcher that comes again, to whichever gateway, is told what has changed
# since. If that is too long ago, or the supervisor has died meanwhile, it is told `reset`: everything is to be read again. An overview
# follows.


EVERY_S: Final = 0.2
"""Between two looks."""
COUNTS_EVERY: Final = 3
"""How many looks lie between two looks at the counts."""
AT_ONCE: Final = 500
"""How many changed runs, or records of logs, are told at once."""
KEPT: Final = 64
"""How many looks are kept for watchers that are slow. Who lags further behind asks for itself."""
SILENT_S: Final = 2.0
"""After so long without an answer of the supervisor, watchers are told that it is silent."""


class _Look(NamedTuple):
    after: int
    upto: int
    text: bytes


class LookOut(Watched):
    """What changes, for all watchers of one gateway."""

    def __init__(self, backend: Backend) -> None:
        super().__init__()
        self._backend = backend
        self._first = -1  # from this fact on, the looks tell everything
        self._looks: deque[_Look] = deque(maxlen=KEPT)
        self._counts = self._state = b""

    async def _begun(self) -> Pending[None]:
        return self._look_out()

    async def told(self, after: int | None, live_max: int) -> AsyncGenerator[bytes, None]:
        """Events for one watcher: those after a fact, or else an overview and those after it."""
        counts = state = b""
        look = None if after is None else await self._ask(after)
        while True:
            changed = self._changed
            if look is None:  # everything is to be read again
                if after is not None:
                    yield event(b"{}", name="reset")
                # The fact is asked for first, so that what changes meanwhile is told after the overview.
                client = await self._backend.client()
                after = (await client.ask("changed", None, 0))["upto"]
                yield event(json_bytes(await client.ask("ps", live_max)), number=after, name="overview")
            elif look.upto > (-1 if after is None else after) and look.text:
                yield look.text
            after = after if look is None else look.upto
            assert after is not None
            if counts != self._counts:
                counts = self._counts
                yield counts
            if state != self._state:
                state = self._state
                yield state
            look = await self._next(after, changed)

    async def _next(self, after: int, changed: asyncio.Event) -> _Look | None:
        if after < (self._looks[0].after if self._looks else self._first):
            return await self._ask(after)  # this watcher is slow, or new
        found = next((each for each in self._looks if each.upto > after), None)
        if found is None:
            await self._change(changed)
        return found or _Look(after, after, b"")

    async def _ask(self, after: int) -> _Look | None:
        told = await (await self._backend.client()).ask("changed", after, AT_ONCE)
        return None if told["reset"] else _look(after, told)

    async def _look_out(self) -> None:
        after: int | None = None
        try:
            for looks in count():
                told = await self._patiently("changed", after, AT_ONCE)
                if told["reset"]:
                    self._looks.clear()
                    self._first = told["upto"]
                elif told["upto"] != after:
                    self._looks.append(_look(after or 0, told))
                after = told["upto"]
                if looks % COUNTS_EVERY == 0:
                    counted: JsonObject = await self._patiently("ps", 0)
                    shown = {name: it for name, it in counted.items() if name not in ("live", "agents", "facts")}
                    self._counts = event(json_bytes(shown), name="counts")
                self._wake()
                if not told["more"]:
                    await asyncio.sleep(EVERY_S)
        finally:
            self._wake()

    async def _patiently(self, name: str, *args: object) -> Any:
        # While the supervisor is silent, and when it answers again, watchers are told so.
        while True:
            answer = awaited((await self._backend.client()).ask(name, *args))
            try:
                if not (await asyncio.wait({answer}, timeout=SILENT_S))[0]:
                    self._say("silent")
                told = await answer
            except (SupervisorUnreachable, LedgerError):
                self._say("silent")
                await asyncio.sleep(EVERY_S)
                continue
            finally:
                answer.cancel()
            if self._state:
                self._say("answers")
            return told

    def _say(self, state: str) -> None:
        self._state = event(json_bytes({"supervisor": state}), name="state")
        self._wake()


def _look(after: int, told: dict[str, Any]) -> _Look:
    runs, gone = told["runs"], told["gone"]
    text = event(json_bytes({"runs": runs, "gone": gone}), number=told["upto"], name="runs") if runs or gone else b""
    return _Look(after, told["upto"], text)


# ---------------------------------------------------------------- reading


class ReadingHandlers(Handlers):
    """The operations that change nothing."""

    @Operation("GET", "/api/overview", models.OverviewTold, query=models.OverviewAsked)
    async def overview(self, asked: ApiRequest) -> object:
        """Counts, processes and live runs."""
        return await self._backend.ask("ps", asked.query.live)

    @Operation("GET", "/api/runs", models.RunsPage, query=models.RunsAsked)
    async def list_runs(self, asked: ApiRequest) -> object:
        """Runs, the newest request first, by pages. Chosen by their errors, a page may have fewer runs than there is room for."""
        which: models.RunsAsked = asked.query
        return await self._backend.ask("page", [*which.wanted()._replace(before=which.before)], which.limit)

    @Operation("GET", "/api/runs/{run_id}", models.RunTold)
    async def show_run(self, asked: ApiRequest) -> object:
        """Everything about a run."""
        return await self._backend.ask("show", asked.path.run_id)

    @Operation("GET", "/api/hosts", models.HostsTold, tells_of_agents=False)
    async def hosts(self, asked: ApiRequest) -> object:
        """The processes that serve."""
        told = await self._backend.ask("ps", 0)
        return {"supervisor": told["supervisor"], "hosts": told["hosts"]}

    @Operation("GET", "/api/asks", models.AsksTold, query=models.AsksAsked, tells_of_agents=False)
    async def list_asks(self, asked: ApiRequest) -> object:
        """The questions that runs ask people, those that wait for longest first."""
        which: models.AsksAsked = asked.query
        found = await self._backend.ask("asks", which.to, which.closed, which.limit, which.asked_by)
        may_see = self._backend.may_see_ask
        return {"asks": [seen_by(asked.who, each) for each in found if await may_see(asked.who, each)]}

    @Operation("GET", "/api/asks/{ask_id}", models.AskTold)
    async def show_ask(self, asked: ApiRequest) -> object:
        """A question that a run asks people."""
        return seen_by(asked.who, await self._backend.ask(*about_ask(asked.path.ask_id)))


class LiveHandlers(Handlers):
    """What is told as it happens."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self._look_outs: Shared[LookOut] = Shared()

    @Operation("GET", "/api/live", media=EVENTS, query=models.LiveAsked)
    async def live(self, asked: ApiRequest) -> Response:
        """Everything that changes, as an event stream.

        - `overview`: as `/api/overview`. It comes first, and after each `reset`.
        - `runs`: `runs` are lines of runs that have changed, as they are now, `gone` the ids of those that were cleared.
        - `counts`: as `/api/overview`, without `live`, `agents` and `facts`, when it has changed.
        - `state`: `{"supervisor": "silent"}`, and `"answers"` when it does again.
        - `reset`: what has changed since the last event is not known. Read everything again.

        The id of an event is the number of a fact. A client that comes again with the last one, as `Last-Event-ID` or `?after=`, is told
        what has changed since, by whichever gateway.
        """
        since, live_max = after(asked), asked.query.live

        async def pieces() -> AsyncGenerator[bytes, None]:
            async with (
                self._look_outs.watched("", lambda: LookOut(self._backend)) as look_out,
                aclosing(look_out.told(since, live_max)) as told,
            ):
                async for piece in told:
                    yield piece

        return event_stream(pieces())

    @Operation("GET", "/api/runs/{run_id}/events", media=EVENTS, query=models.EventsAsked)
    async def run_events(self, asked: ApiRequest) -> Response:
        """The events of a run as an event stream, from `Last-Event-ID` or `?after=` on, until its end."""
        last, client = after(asked), await self._backend.client()
        batches = self._backend.watch(asked.path.run_id, -1 if last is None else last)
        first = await anext(batches, None)  # an unknown run is refused before the stream begins

        async def pieces() -> AsyncGenerator[bytes, None]:
            batch = first
            while batch is not None:
                yield batch.stream
                batch = await anext(batches, None)
            yield event(b"{}", name="end")

        def silent() -> bytes:  # comments for people: a program that knows nothing of them passes them over
            told = client.kept_back.now.get(asked.path.run_id, ())
            return b"".join(comment(KEPT_BACK + each) for each in told) or COMMENT

        return event_stream(pieces(), silent=silent)


def seen_by(who: Principal, ask: Fields) -> Fields:
    # `refusal` says why this principal may not answer the question, or is None.
    refusal = f"{who.name} may only look, without the scope {Scope.CHAT.value!r}"
    if Scope.CHAT in who.scopes:
        began_by = str(ask["began_by"] or "")
        refusal = answer_refusal(who.answerer(), ask["to"], began_by, self_answer=ask["self_answer"])
    return {**ask, "refusal": refusal or None}


def after(asked: ApiRequest) -> int | None:
    # The last event that is known. What a client says of itself when it comes again wins.
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


# ---------------------------------------------------------------- logs


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


# ---------------------------------------------------------------- questions
# What is asked as it is declared (`link.questions.OVER_HTTP`): the routes and their models are made of the questions.


class QuestionHandlers(Handlers):
    """The questions."""

    def table(self) -> list[Operation]:
        return [self._operation(*declared) for declared in OVER_HTTP.items()]

    def _operation(self, kind: type[Any], how: OverHttp) -> Operation:
        async def ask(asked: ApiRequest) -> object:
            place = dict(asked.path)
            told = await (await self._backend.client()).supervisor.ask(kind(**place, **dict(asked.query)))
            return {**place, how.within: told} if how.within else told

        ask.__name__, ask.__doc__ = how.name, kind.__doc__
        named = names_in(how.path)
        fields: dict[str, Any] = {name: (hint, ...) for name, hint in get_type_hints(how.answer).items()}
        answer = create_model(how.answer.__name__, __doc__=how.answer.__doc__, **fields)
        of = _taken(f"Of{kind.__name__}", kind, named)
        query = _taken(f"{kind.__name__}Asked", kind, [name for name in kind._fields if name not in named])
        tells = how.tells_of_agents
        return Operation("GET", how.path, answer, path_model=of, query=query, tells_of_agents=tells, handler=ask)


def _taken(name: str, kind: type[Any], names: list[str]) -> type[Taken]:
    known = OF_PATHS.get((*names,))
    fields: dict[str, Any] = {}
    for each in names if known is None else ():
        hint = get_type_hints(kind, include_extras=True)[each]
        said = next((words for words in getattr(hint, "__metadata__", ()) if isinstance(words, str)), None)
        fields[each] = hint, Field(kind._field_defaults.get(each, ...), description=said)
    return known or create_model(name, __base__=Taken, __doc__=kind.__doc__, **fields)
