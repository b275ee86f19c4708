"""The MCP server: tools that are runs, over the official SDK, for both eras of the protocol.

A handler only watches. Its run is durable before it waits, and goes on when the handler is cancelled, because a broken connection looks
like that. Only a client that says `notifications/cancelled`, `tasks/cancel` or `cancel_run` ends a run.

What a run, or one below it, asks people reaches the client that waits for it, if its principal may answer: as what a task requires; as an
elicitation, where the server can ask the client; else the call is answered by what it requires, and made again with that. All may ask for
the inbox and answer in it (`list_asks`, `answer_ask`).

A client that declares the extension `io.modelcontextprotocol/tasks` (2026-07-28) gets a task for a run, and no other client does. For the
others a call blocks and reports progress; or they use `start_run`, `get_run` and `cancel_run`.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Self, TypeVar, cast

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from perdure.actors.code.naming import type_name
from perdure.actors.gateway.backend import Backend, asked
from perdure.actors.gateway.chat_turns import asked_by
from perdure.actors.gateway.plain_json import json_text
from perdure.actors.gateway.problems import is_known, told
from perdure.actors.gateway.registry import kebab
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.mcp_server.elicitations import CHANNEL, QuestionsBelow, form_elicitation
from perdure.actors.mcp_server.offers import AGENT, RESERVED, Choice, Offer, offers_of
from perdure.actors.tasks import awaited, to_the_end
from perdure.ledger import HARD, AskRow, BadRequest, PerdureError, Status, UnknownRun
from perdure.policies import JsonObject

# ---------------------------------------------------------------- runs
# The runs behind MCP's calls: durable before anything is answered, found again by whoever asked, and by nobody else.
#
# A call has a *handle*, which is what the client sees as the id of its task or run. The run's id is made of the handle and the principal's
# name. So another principal with the same handle comes to another run, which does not exist, and nothing has to be remembered.
#
# The handle is made of the tool and an idempotency key, if the client gives one: the same key is the same run for ever. Without a key it is
# made of the tool and the arguments: an identical call joins the run that is under way, and begins a new one after its end.


PROBES_MAX: Final = 64
"""Identical calls that are looked through for one that is under way."""


class RunProgress(NamedTuple):
    # How far a run is: `value` rises with each, and is a fraction while the run tells one.
    value: float
    total: float | None
    message: str


class McpRuns:
    """Begins, watches and cancels the runs of principals."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def type_of(self, offer: Offer) -> str:
        return type_name(offer.agent_class, (await self._backend.client()).code_dir)

    async def begin(self, who: Principal, offer: Offer, given: Mapping[str, object], key: str) -> str:
        # Begins the run, or finds it. Returns its handle.
        assert offer.tool is not None
        input = offer.tool.agent_input(dict(given))
        handle = await self._handle(who, offer, given, key)
        client = await self._backend.client()
        kind: type[Any] = offer.agent_class
        await client.start(kind, input, run_id=run_id_of(who, handle), began_by=who.began_by)
        return handle

    async def _handle(self, who: Principal, offer: Offer, given: Mapping[str, object], key: str) -> str:
        if key:
            return _digest("key", offer.name, key)
        asked_for = json.dumps(given, sort_keys=True, default=str)
        for number in range(PROBES_MAX):
            handle = _digest("call", offer.name, asked_for, str(number))
            known = await self._inspected(who, handle)
            if known is None or known["status"] not in HARD:
                return handle
        client = await self._backend.client()
        return _digest("call", offer.name, client.world.dice.token())

    async def seen(self, who: Principal, handle: str) -> dict[str, Any]:
        # Raises `UnknownRun`, also for a run of somebody else.
        known = await self._inspected(who, handle)
        if known is None:
            raise UnknownRun("run", f"no run is known as {handle!r:.100}")
        return known

    async def _inspected(self, who: Principal, handle: str) -> JsonObject | None:
        found: JsonObject | None = await self._backend.ask("inspect", run_id_of(who, handle))
        return found

    async def cancel(self, who: Principal, handle: str, reason: str = "cancelled over MCP") -> None:
        known = await self.seen(who, handle)
        if known["status"] not in HARD:
            await self._backend.ask("cancel", run_id_of(who, handle), None, reason)

    async def progress(self, who: Principal, handle: str) -> AsyncGenerator[RunProgress, None]:
        # Ends with the hard end of the run. Whoever stops watching changes nothing.
        last = 0.0
        async with aclosing(self._backend.watch(run_id_of(who, handle))) as batches:
            async for event in (frame["event"] async for batch in batches for frame in batch.frames):
                if event["kind"] not in ("progress", "milestone"):
                    continue
                fraction = event.get("fraction")
                last = fraction if fraction is not None and fraction > last else last + 1e-6
                words = event.get("message") or event.get("name") or event.get("phase") or ""
                yield RunProgress(last, 1.0 if last <= 1 else None, str(words))

    async def call(self, who: Principal, offer: Offer, given: Mapping[str, object]) -> object:
        # The method is called at most once, or again after a death if it is repeatable.
        arguments = dict(given)
        name = arguments.pop(AGENT, None)
        if not isinstance(name, str):
            raise BadRequest(AGENT, "name the agent")
        reached, _ = await self._backend.reach(who, [kebab(offer.agent_class.__name__), name])
        method, args = asked_by(who, CHANNEL, reached, offer.method, (), arguments)
        return await asked(method(*args, **arguments))


def run_id_of(who: Principal, handle: str) -> str:
    return "mcp-" + _digest(who.name, handle)


def _digest(*parts: str) -> str:
    return blake2b("\0".join(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()


# ---------------------------------------------------------------- server


TASKS: Final = "io.modelcontextprotocol/tasks"
KEY: Final = "perdure/idempotencyKey"
POLL_MS: Final = 1_000
UNKNOWN: Final = "no such task"  # the same words for one that does not exist and for another's
CANCELLED: Final = "mcp-cancelled"
CALLS_MAX: Final = 10_000
PORTABLE: Final[Mapping[str, frozenset[str]]] = {
    "start_run": frozenset({"tool", "arguments", "idempotency_key"}),
    "get_run": frozenset({"run"}),
    "cancel_run": frozenset({"run"}),
    "list_asks": frozenset({"to"}),
    "answer_ask": frozenset({"ask_id", "value", "args", "digest", "who"}),
}
"""The arguments of the tools that every server has: for clients without tasks, and for the inbox."""
ASKS: Final = frozenset({"list_asks", "answer_ask"})
TRIES: Final = 3
"""How often a person is asked for an answer that fits."""
Context = ServerRequestContext[Any, Any]
P = TypeVar("P")
T = TypeVar("T")
Handler = Callable[[Context, P], Awaitable[T]]


class TaskParams(types.RequestParams):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    task_id: str


class TaskUpdateParams(TaskParams):
    input_responses: JsonObject = Field(default_factory=dict)


class McpServer:
    """The server of one gateway, or of one `perdure mcp`.

    Args:
        backend: what is behind it.
        choices: agents and methods that are its tools.
        local: who asks where there is no request, so over stdio.
    """

    def __init__(self, backend: Backend, choices: Iterable[Choice], local: Principal | None = None) -> None:
        self.offers = offers_of(choices)
        self._backend, self._runs, self._local = backend, McpRuns(backend), local
        self._questions = QuestionsBelow(backend)
        self._neighbours = backend.neighbours
        self._neighbours.on(CANCELLED, self._cancel)
        # Their runs, by session, request and principal: nobody ends the call of another one.
        self._calls: OrderedDict[tuple[str, str, str], str] = OrderedDict()
        self.server: Server[object] = Server("perdure", on_list_tools=worded(self._list), on_call_tool=self._called)
        self.server.extensions = {TASKS: {}}
        self.server.add_request_handler("tasks/get", TaskParams, worded(self._task))
        self.server.add_request_handler("tasks/cancel", TaskParams, worded(self._task_cancel))
        self.server.add_request_handler("tasks/update", TaskUpdateParams, worded(self._task_update))
        self.server.add_notification_handler(
            "notifications/cancelled", types.CancelledNotificationParams, self._cancelled
        )

    # tools

    async def _list(self, ctx: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        self._who(ctx, Scope.READ)
        tools = [tool_of(offer) for offer in self.offers.values()]
        if any(offer.is_run for offer in self.offers.values()):
            tools += portable(sorted(name for name, offer in self.offers.items() if offer.is_run))
        return types.ListToolsResult(tools=tools + inbox())

    async def _called(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        try:
            return await self._call(ctx, params)
        except PerdureError as problem:
            if not is_known(problem):
                raise
            return failed(told(problem)["message"])

    async def _call(self, ctx: Context, params: types.CallToolRequestParams) -> object:
        name, given = params.name, params.arguments or {}
        if name in RESERVED:
            return await self._portable(ctx, name, given)
        offer = self._offer(name)
        who = self._who(ctx, scope_of(offer))
        if not offer.is_run:
            return done(offer, await self._runs.call(who, offer, given))
        again = InputRound.of(params.request_state)
        if again is None:
            again = InputRound(await self._runs.begin(who, offer, given, taken(ctx.meta or {}, KEY, str, "")))
        elif await self._offer_of(await self._runs.seen(who, again.run)) is not offer:
            raise BadRequest("requestState", f"is not that of a call of {name}")
        if takes_tasks(ctx):
            return await self._shown(who, again.run, "task")
        self._calls[call_of(ctx, who, ctx.request_id)] = again.run
        while len(self._calls) > CALLS_MAX:
            self._calls.popitem(last=False)
        required = await self._awaited(ctx, who, again, params.input_responses or {})
        return required or result_of(offer, await self._runs.seen(who, again.run))

    async def _awaited(
        self, ctx: Context, who: Principal, again: InputRound, said: Mapping[str, object]
    ) -> types.InputRequiredResult | None:
        # Until the run has ended; or until it requires something that the client can be asked for only by the answer to its call.
        watching = awaited(self._report(ctx, who, again.run))
        jobs: list[asyncio.Task[object]] = [watching]
        if takes_forms(ctx) and ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            jobs.append(awaited(self._required(who, again, said)))
        elif takes_forms(ctx) and ctx.session.can_send_request:
            jobs.append(awaited(self._elicit(ctx, who, again.run)))
        try:
            done, _ = await asyncio.wait(jobs, return_when=asyncio.FIRST_COMPLETED)
            results = [each.result() for each in jobs if each in done]
            return None if watching in done else cast("types.InputRequiredResult", results[0])
        finally:
            for each in jobs:
                each.cancel()
            await asyncio.gather(*jobs, return_exceptions=True)

    async def _report(self, ctx: Context, who: Principal, handle: str) -> None:
        async with aclosing(self._runs.progress(who, handle)) as progress:
            async for each in progress:
                await ctx.session.report_progress(each.value, each.total, each.message or None)

    # people

    async def _required(
        self, who: Principal, again: InputRound, said: Mapping[str, object]
    ) -> types.InputRequiredResult:
        run_id, wrong = run_id_of(who, again.run), dict[str, str]()
        asks = await self._questions.of_run(who, run_id)
        for key in asks.keys() & said.keys():
            try:
                await self._questions.fill_in(who, asks[key], plain_response(said[key]))
            except BadRequest as problem:
                wrong[key] = str(problem)
        left = (again.left | said.keys()) - wrong.keys()
        async with aclosing(self._questions.changes(who, run_id)) as changes:
            async for found in changes:
                new = {key: form_elicitation(row, wrong.get(key)) for key, row in found.items() if key not in left}
                if new:
                    requests: Any = {key: types.ElicitRequest.model_validate(each) for key, each in new.items()}
                    state = InputRound(again.run, frozenset(left & found.keys())).text
                    return types.InputRequiredResult(input_requests=requests, request_state=state)
        raise AssertionError("a run is looked at until its call is cancelled")

    async def _elicit(self, ctx: Context, who: Principal, handle: str) -> None:
        # Each in a task of its own: what is answered elsewhere meanwhile is withdrawn.
        asking: dict[str, asyncio.Task[None]] = {}
        changes = self._questions.changes(who, run_id_of(who, handle))
        try:
            async for found in changes:
                for key in asking.keys() - found.keys():
                    asking[key].cancel()
                asking |= {
                    key: awaited(self._elicit_one(ctx, who, row)) for key, row in found.items() if key not in asking
                }
        finally:
            await changes.aclose()
            for each in asking.values():
                each.cancel()
            await asyncio.gather(*asking.values(), return_exceptions=True)

    async def _elicit_one(self, ctx: Context, who: Principal, row: AskRow) -> None:
        wrong: str | None = None
        for _ in range(TRIES):
            form = types.ElicitRequestFormParams.model_validate(form_elicitation(row, wrong)["params"])
            try:
                told = await ctx.session.elicit_form(form.message, form.requested_schema, ctx.request_id)
            except MCPError:  # the client cannot show it, or is gone; others still can answer
                return
            try:
                await self._questions.fill_in(who, row, plain_response(told))
            except PerdureError as problem:
                wrong = str(problem)
            else:
                return

    async def _portable(self, ctx: Context, name: str, given: Mapping[str, object]) -> types.CallToolResult:
        for each in given:
            if each not in PORTABLE[name]:
                raise BadRequest(each, f"{name} has no such argument")
        if name in ASKS:
            return await self._inbox(ctx, name, given)
        if name == "start_run":
            offer = self._offer(taken(given, "tool", str))
            if not offer.is_run:
                raise BadRequest("tool", f"{offer.name} is no run; call it")
            who = self._who(ctx, scope_of(offer))
            key = taken(given, "idempotency_key", str, "")
            handle = await self._runs.begin(who, offer, taken(given, "arguments", dict), key)
        else:
            who = self._who(ctx, Scope.READ if name == "get_run" else Scope.CHAT)
            handle = taken(given, "run", str)
        if name == "cancel_run":
            await self._runs.cancel(who, handle)
        known = await self._runs.seen(who, handle)
        names = ("status", "progress", "milestones", "output", "summary", "error")
        shown = {"run": handle, **{each: known[each] for each in names if known.get(each) not in (None, [], "")}}
        return types.CallToolResult(content=[text(shown)], structured_content=shown)

    async def _inbox(self, ctx: Context, name: str, given: Mapping[str, object]) -> types.CallToolResult:
        # With the scopes that REST asks for.
        who = self._who(ctx, Scope.READ if name == "list_asks" else Scope.CHAT)
        shown: JsonObject
        if name == "list_asks":
            shown = {"asks": cast("Any", await self._questions.inbox(who, taken(given, "to", str, "") or None))}
        else:
            if "value" not in given:
                raise BadRequest("value", "is missing")
            args, digest, named = given.get("args"), taken(given, "digest", str, ""), taken(given, "who", str, "")
            ask_id, value = taken(given, "ask_id", str), given["value"]
            await self._backend.check_ask(who, ask_id)
            shown = await self._questions.answer_ask(
                who, ask_id, value, args=args, digest=digest or None, named=named or None
            )
        return types.CallToolResult(content=[text(shown)], structured_content=json.loads(json_text(shown)))

    def _offer(self, name: str) -> Offer:
        if name not in self.offers:
            raise MCPError(code=types.INVALID_PARAMS, message=f"there is no tool {name!r:.100}")
        return self.offers[name]

    def _who(self, ctx: Context, scope: Scope) -> Principal:
        # That of this very request, also within a session.
        who = self._local if ctx.request is None else cast("Principal", ctx.request.state.principal)
        assert who is not None, "a request has a principal"
        who.check(scope)
        return who

    # cancelling

    async def _cancelled(self, ctx: Context, params: types.CancelledNotificationParams) -> None:
        # In the newer era nobody says so: the stream is closed, and the run goes on.
        who = self._who(ctx, Scope.READ)
        said = (*call_of(ctx, who, params.request_id), params.reason or "cancelled over MCP")
        await to_the_end(awaited(self._end(*said)))  # outside of a session the SDK cancels this once it has answered

    async def _end(self, *said: str) -> None:
        if not await self._cancel(*said):
            self._neighbours.tell(CANCELLED, *said)  # another process may have begun the run

    async def _cancel(self, session: str, request_id: str, name: str, reason: str) -> bool:
        handle = self._calls.pop((session, request_id, name), None)
        if handle is not None:
            await self._runs.cancel(Principal(name), handle, reason)
        return handle is not None

    # tasks

    async def _task(self, ctx: Context, params: TaskParams) -> JsonObject:
        return await self._about_task(self._who(ctx, Scope.READ), params.task_id)

    async def _about_task(self, who: Principal, handle: str) -> JsonObject:
        try:
            return await self._shown(who, handle, "complete")
        except UnknownRun as problem:
            raise MCPError(code=types.INVALID_PARAMS, message=UNKNOWN) from problem

    async def _task_cancel(self, ctx: Context, params: TaskParams) -> JsonObject:
        who = self._who(ctx, Scope.CHAT)
        await self._about_task(who, params.task_id)
        await self._runs.cancel(who, params.task_id)
        return {}

    async def _task_update(self, ctx: Context, params: TaskUpdateParams) -> JsonObject:
        who = self._who(ctx, Scope.CHAT)
        await self._about_task(who, params.task_id)
        known = await self._runs.seen(who, params.task_id)
        run_id = run_id_of(who, params.task_id)
        await self._questions.answer(who, await self._offer_of(known), run_id, known, params.input_responses)
        return {}

    async def _shown(self, who: Principal, handle: str, kind: str) -> JsonObject:
        # A run that is interrupted and tried again is at work.
        known = await self._runs.seen(who, handle)
        offer = await self._offer_of(known)
        shown: JsonObject = {
            "resultType": kind,
            "taskId": handle,
            "status": "working" if kind == "task" else TASK_STATUS.get(known["status"], "working"),
            "createdAt": instant(known["started_at_ms"]),
            "lastUpdatedAt": instant(
                known.get("completed_at_ms") or known.get("signal_at_ms") or known["started_at_ms"]
            ),
            "ttlMs": None,
            "pollIntervalMs": POLL_MS,
        }
        words = (known.get("progress") or {}).get("message")
        if words:
            shown["statusMessage"] = words
        if shown["status"] == "completed":
            result = result_of(offer, known)
            shown["result"] = result.model_dump(mode="json", by_alias=True, exclude_none=True)
        elif shown["status"] == "working" and kind == "complete":
            asked = await self._questions.open(who, offer, run_id_of(who, handle), known)
            if asked:
                shown |= {"status": "input_required", "inputRequests": cast("JsonObject", asked)}
        return shown

    async def _offer_of(self, known: Mapping[str, object]) -> Offer:
        for offer in self.offers.values():
            if offer.is_run and await self._runs.type_of(offer) == known["agent_type"]:
                return offer
        raise BadRequest("taskId", f"no tool here is a run of {known['agent_type']}")


TASK_STATUS: Final[Mapping[str, str]] = {
    Status.COMPLETED: "completed",
    Status.ERROR: "completed",  # with `isError`: the protocol's `failed` is for errors of JSON-RPC
    Status.ABORTED: "cancelled",
}


def worded(handle: Handler[P, T]) -> Handler[P, T]:
    # Refusals are errors of the protocol, in words. For the SDK any other exception is a fault of the server.
    async def handled(ctx: Context, params: P) -> T:
        try:
            return await handle(ctx, params)
        except PerdureError as problem:
            if not is_known(problem):
                raise
            raise MCPError(code=types.INVALID_REQUEST, message=told(problem)["message"]) from problem

    return handled


def scope_of(offer: Offer) -> Scope:
    # The same as over REST.
    return Scope.OPERATE if offer.is_run and not offer.is_chat else Scope.CHAT


def taken(given: Mapping[str, object], name: str, kind: type[T], default: T | None = None) -> T:
    value = given.get(name, default)
    if value is None:
        raise BadRequest(name, "is missing")
    if not isinstance(value, kind):
        raise BadRequest(name, f"is {type(value).__name__}, not {kind.__name__}")
    return value


def takes_tasks(ctx: Context) -> bool:
    capabilities = ctx.session.client_capabilities
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and TASKS in (
        (capabilities and capabilities.extensions) or {}
    )


def takes_forms(ctx: Context) -> bool:
    able = ctx.session.client_capabilities
    forms = None if able is None else able.elicitation
    return forms is not None and (forms.form is not None or forms.url is None)


def plain_response(said: object) -> object:
    return said.model_dump(mode="json") if isinstance(said, types.ElicitResult) else said


class InputRound(NamedTuple):
    """What a client hands back with what its call required: the handle of the run, and the questions that were answered or left open."""

    run: str
    left: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return json_text([self.run, *sorted(self.left)])

    @classmethod
    def of(cls, state: str | None) -> Self | None:
        # A first call has no state, so the answer is None.
        if state is None:
            return None
        try:
            run, *left = json.loads(state)
        except (ValueError, TypeError) as problem:
            raise BadRequest("requestState", "is none of this server's") from problem
        if not all(isinstance(each, str) for each in (run, *left)):
            raise BadRequest("requestState", "is none of this server's")
        return cls(run, frozenset(left))


def call_of(ctx: Context, who: Principal, request_id: object) -> tuple[str, str, str]:
    session = "" if ctx.request is None else ctx.request.headers.get("mcp-session-id", "")
    return session, str(request_id), who.name


def tool_of(offer: Offer) -> types.Tool:
    hints = types.ToolAnnotations(
        title=offer.name.replace("_", " ").capitalize(),
        idempotent_hint=offer.is_repeatable if offer.method else None,
    )
    return types.Tool(
        name=offer.name,
        description=offer.description,
        input_schema=offer.parameters,
        output_schema=offer.output,
        annotations=hints,
    )


def portable(runs: list[str]) -> list[types.Tool]:
    # The tools for clients without tasks.
    run = {"run": {"type": "string", "description": "What start_run has returned."}}
    start = {
        "tool": {"type": "string", "enum": runs},
        "arguments": {"type": "object", "description": "The arguments of that tool."},
        "idempotency_key": {"type": "string", "description": "The same key is the same run."},
    }
    return [
        described("start_run", "Begin a long run of a tool and return at once.", start, ["tool", "arguments"]),
        described("get_run", "How far a run is, and its output when it has ended.", run, ["run"], reads=True),
        described("cancel_run", "Cancel a run.", run, ["run"]),
    ]


def inbox() -> list[types.Tool]:
    # The tools for what runs ask people.
    to = {"to": {"type": "string", "description": "A group or a person; by default all questions are told."}}
    answer = {
        "ask_id": {"type": "string", "description": "What list_asks tells of the question."},
        "value": {"description": "The answer, of the schema of the question."},
        "args": {"type": "object", "description": "Arguments in place of the proposed ones of these names."},
        "digest": {"type": "string", "description": "That of the question as it was shown."},
        "who": {"type": "string", "description": "Who answers, where the server does not know that."},
    }
    return [
        described("list_asks", "List the open questions that runs ask people.", to, [], reads=True),
        described("answer_ask", "Hand in a person's answer to a question.", answer, ["ask_id", "value"]),
    ]


def described(
    name: str, words: str, properties: Mapping[str, object], required: list[str], *, reads: bool = False
) -> types.Tool:
    return types.Tool(
        name=name,
        description=words,
        input_schema={"type": "object", "properties": properties, "required": required},
        annotations=types.ToolAnnotations(read_only_hint=reads),
    )


def result_of(offer: Offer, known: Mapping[str, object]) -> types.CallToolResult:
    if known["status"] == Status.COMPLETED:
        return done(offer, known.get("output"))
    assert known["status"] in HARD
    return failed(str(known.get("error") or known.get("reason") or f"the run was {known['status']}"))


def done(offer: Offer, output: object) -> types.CallToolResult:
    structured = json.loads(json_text(offer.structured(output)))
    return types.CallToolResult(
        content=[types.TextContent(text=output) if isinstance(output, str) else text(structured)],
        structured_content=structured,
    )


def failed(words: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=words)], is_error=True)


def text(value: object) -> types.TextContent:
    return types.TextContent(text=json_text(value))


def instant(at_ms: float) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat().replace("+00:00", "Z")
