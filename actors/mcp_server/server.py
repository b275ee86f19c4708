"""The MCP server: tools that are runs, over the official SDK, for both eras of the protocol.

A handler only watches. Its run is durable before it waits, and goes on when the handler is cancelled, because a broken connection looks
like that. Only a client that says `notifications/cancelled`, `tasks/cancel` or `cancel_run` ends a run.

A client that declares the extension `io.modelcontextprotocol/tasks` (2026-07-28) gets a task for a run, and no other client does. For the
others a call blocks and reports progress; or they use `start_run`, `get_run` and `cancel_run`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar, cast

from mcp import types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.shared.exceptions import MCPError
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from perdure.actors.gateway.backend import Backend, asked
from perdure.actors.gateway.plain_json import json_text
from perdure.actors.gateway.problems import is_known, told
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.life.handle import Handle
from perdure.actors.mcp_server.long_runs import McpRuns
from perdure.actors.mcp_server.offers import RESERVED, Choice, Offer, offers_of
from perdure.actors.tasks import awaited, to_the_end
from perdure.ledger import HARD, BadRequest, PerdureError, Status, UnknownRun
from perdure.policies import JsonObject, Part, TurnStatus, open_calls, tool_name

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
}
"""The arguments of the tools for clients without tasks."""
Context = ServerRequestContext[Any, Any]
P = TypeVar("P")
T = TypeVar("T")
Handler = Callable[[Context, P], Awaitable[T]]


# ---------------------------------------------------------------- people
# What a chat's run asks of a person, as elicitations of an MCP task, and the answers.


APPROVAL: Final[JsonObject] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}},
    "required": ["approved"],
}
RESULT: Final[JsonObject] = {"type": "object", "properties": {"result": {"type": "string"}}, "required": ["result"]}


class Questions:
    """The questions of chats that are runs: the conversation of such a run has the run's id as its name."""

    def __init__(self, backend: Backend, runs: McpRuns) -> None:
        self._backend, self._runs = backend, runs

    async def open(self, offer: Offer, known: Mapping[str, object]) -> JsonObject:
        """The elicitations that wait, by the ids of their calls; ids are never used again."""
        return {call_id: elicitation(part) for call_id, part in (await self._waiting(offer, known)).items()}

    async def answer(self, offer: Offer, known: Mapping[str, object], said: Mapping[str, object]) -> None:
        """Answer some of them. What waits for nothing is ignored: the first answer counts. Raises `BadRequest` for an ill-formed one."""
        waiting = await self._waiting(offer, known) if offer.is_chat else {}
        handle = await self._chat(offer, known)
        for call_id, response in said.items():
            if not isinstance(response, Mapping) or response.get("action") not in ("accept", "decline", "cancel"):
                raise BadRequest("inputResponses", f"the answer to {call_id!r:.100} has no action")
            if call_id not in waiting:
                continue
            content, is_yes = response.get("content") or {}, response["action"] == "accept"
            if waiting[call_id].get("state") == "approval-requested":
                approved = is_yes and content.get("approved", True) is True
                await asked(handle.respond_to_approval(call_id, approved))
            elif is_yes:
                await asked(handle.resolve_tool_call(call_id, content.get("result", content)))
            else:
                await asked(handle.resolve_tool_call(call_id, error="The user did not answer."))

    async def _waiting(self, offer: Offer, known: Mapping[str, object]) -> dict[str, Part]:
        handle = await self._chat(offer, known)
        turn = await asked(handle.inspect_turn(known["run_id"]))
        if turn is None or turn["status"] != TurnStatus.PARKED:
            return {}
        parts = [part for message in await asked(handle.get_messages()) for part in message["parts"]]
        return {str(part["toolCallId"]): part for part in open_calls(parts)}

    async def _chat(self, offer: Offer, known: Mapping[str, object]) -> Handle:
        client = await self._backend.client()
        return cast("Handle", client.agent(offer.agent_class, str(known["run_id"])))


def elicitation(part: Part) -> JsonObject:
    is_approval = part.get("state") == "approval-requested"
    name = tool_name(part)
    words = f"May {name} be called with {part.get('input')}?" if is_approval else f"{name}: {part.get('input')}"
    params: JsonObject = {"mode": "form", "message": words, "requestedSchema": APPROVAL if is_approval else RESULT}
    return {"method": "elicitation/create", "params": params}


# ---------------------------------------------------------------- server


class TaskParams(types.RequestParams):
    """Names a task."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)
    task_id: str


class TaskUpdateParams(TaskParams):
    """Answers what a task asks."""

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
        self._runs, self._local = McpRuns(backend), local
        self._questions = Questions(backend, self._runs)
        self._neighbours = backend.neighbours
        self._neighbours.on(CANCELLED, self._cancelled_elsewhere)
        # By session and request: whose run it is, and which.
        self._calls: OrderedDict[tuple[str, str], tuple[str, str]] = OrderedDict()
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
        return types.ListToolsResult(tools=tools)

    async def _called(self, ctx: Context, params: types.CallToolRequestParams) -> Any:
        try:
            return await self._call(ctx, params.name, params.arguments or {})
        except PerdureError as problem:
            if not is_known(problem):
                raise
            return failed(told(problem)["message"])

    async def _call(self, ctx: Context, name: str, given: Mapping[str, object]) -> object:
        if name in RESERVED:
            return await self._portable(ctx, name, given)
        offer = self._offer(name)
        who = self._who(ctx, scope_of(offer))
        if not offer.is_run:
            return done(offer, await self._runs.call(who, offer, given))
        handle = await self._runs.begin(who, offer, given, taken(ctx.meta or {}, KEY, str, ""))
        if takes_tasks(ctx):
            return await self._shown(who, handle, "task")
        self._remember(ctx, who, handle)
        async for each in self._runs.progress(who, handle):
            await ctx.session.report_progress(each.value, each.total, each.message or None)
        return result_of(offer, await self._runs.seen(who, handle))

    async def _portable(self, ctx: Context, name: str, given: Mapping[str, Any]) -> types.CallToolResult:
        for each in given:
            if each not in PORTABLE[name]:
                raise BadRequest(each, f"{name} has no such argument")
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

    def _remember(self, ctx: Context, who: Principal, handle: str) -> None:
        self._calls[call_of(ctx, ctx.request_id)] = who.name, handle
        while len(self._calls) > CALLS_MAX:
            self._calls.popitem(last=False)

    async def _cancelled(self, ctx: Context, params: types.CancelledNotificationParams) -> None:
        # In the newer era nobody says so: the stream is closed, and the run goes on.
        who = self._who(ctx, Scope.READ)
        said = (*call_of(ctx, params.request_id), who.name, params.reason or "cancelled over MCP")
        await to_the_end(awaited(self._end(*said)))  # outside of a session the SDK cancels this once it has answered

    async def _end(self, *said: str) -> None:
        if not await self._cancel(*said):
            self._neighbours.tell(CANCELLED, *said)  # another process may have begun the run

    async def _cancel(self, session: str, request_id: str, name: str, reason: str) -> bool:
        # Another principal's call is known, and stays as it is.
        owner, handle = self._calls.get((session, request_id), ("", ""))
        if owner == name:
            del self._calls[session, request_id]
            await self._runs.cancel(Principal(name), handle, reason)
        return bool(handle)

    async def _cancelled_elsewhere(self, *said: str) -> None:
        await self._cancel(*said)

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
        await self._questions.answer(await self._offer_of(known), known, params.input_responses)
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
        elif shown["status"] == "working" and kind == "complete" and offer.is_chat:
            asked = await self._questions.open(offer, known)
            if asked:
                shown |= {"status": "input_required", "inputRequests": asked}
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
    """A handler whose refusals are errors of the protocol, in words. For the SDK any other exception is a fault of the server."""

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


def taken(given: Mapping[str, Any], name: str, kind: type[T], default: T | None = None) -> T:
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


def call_of(ctx: Context, request_id: object) -> tuple[str, str]:
    return (ctx.request.headers.get("mcp-session-id", "") if ctx.request is not None else ""), str(request_id)


def tool_of(offer: Offer) -> types.Tool:
    """An offer as a tool."""
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
    """The tools for clients without tasks."""
    run = {"run": {"type": "string", "description": "What start_run has returned."}}
    start = {
        "tool": {"type": "string", "enum": runs},
        "arguments": {"type": "object", "description": "The arguments of that tool."},
        "idempotency_key": {"type": "string", "description": "The same key is the same run."},
    }
    told = (
        ("start_run", "Begin a long run of a tool and return at once.", start, ["tool", "arguments"], False),
        ("get_run", "How far a run is, and its output when it has ended.", run, ["run"], True),
        ("cancel_run", "Cancel a run.", run, ["run"], False),
    )
    return [
        types.Tool(
            name=name,
            description=words,
            input_schema={"type": "object", "properties": properties, "required": required},
            annotations=types.ToolAnnotations(read_only_hint=reads),
        )
        for name, words, properties, required, reads in told
    ]


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
