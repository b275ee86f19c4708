"""The protocol of the npm packages `agents` and `@cloudflare/ai-chat`: `AgentClient`, `useAgent`, `useAgentChat`, `useAgentToolEvents`.

    WebSocket  /agents/{class}/{name}[/sub/{class}/{name} …][/rest]
    GET        the same address and /get-messages

One WebSocket carries everything of one agent: who it is, its state in both directions, calls of its exposed methods, its conversation, and
the events of its runs. A connection that may not be is accepted and closed by a code, because these clients take a failed upgrade for a
failed network. Whatever is durable is told from what is durable, so a gateway that is killed is replaced by the next one.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing
from itertools import count
from typing import ClassVar, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.actors.agent.agent import Agent
from perdure.actors.agents_client.line import ClientSocket, Closed, encoded, json_text
from perdure.actors.agents_client.talk import MESSAGES, RESPONSE, Attendance, Author, TurnNotice, WatchedChat
from perdure.actors.agents_client.tool_runs import RunList, RunTeller
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.code.signatures import gives_bit_by_bit
from perdure.actors.gateway.backend import Backend, Reached, asked, segments_of
from perdure.actors.gateway.bodies import parsed_object
from perdure.actors.gateway.chat_turns import CallAnswer, ChatTurns, TurnDropped
from perdure.actors.gateway.feeds import KnownState, Shared, WatchedState
from perdure.actors.gateway.problems import close_code, problem_text
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.registry import kebab
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.life.state_watch import version_of
from perdure.actors.link.caller import CallerSide
from perdure.actors.link.wire import RemoteError
from perdure.actors.tasks import Pending
from perdure.ledger import AgentUnreachable, BadRequest, PerdureError, pack_value
from perdure.policies import Json, JsonObject, plan_request

PREFIX: Final = "/agents/"
TAB: Final = "_pk"
TRANSCRIPT: Final = "get-messages"
RECHECK_S: Final = 60.0
"""How often a connection is asked anew whether its principal is valid."""
RETRIED: Final = 1011
NO_TOOLS: Final[JsonObject] = {"servers": {}, "tools": [], "prompts": [], "resources": []}
READ_ONLY: Final = "Connection is readonly"
REMEMBERED_MAX: Final = 10_000
"""How many tabs with a lost line are remembered; the oldest are forgotten first."""


# ---------------------------------------------------------------- calls
# What a client of the npm package `agents` does with any agent: it sets the state and calls methods (client protocols A.4, A.5).


CROSSES_S: Final = 5.0
UNKNOWN: Final = "unknown"
STATE, RPC, REFUSED = "cf_agent_state", "rpc", "cf_agent_state_error"


class CallDesk:
    """The state and the calls of one connection.

    Args:
        told: the state that the client was told.
    """

    TYPES: Final = frozenset({STATE, RPC})

    def __init__(
        self, line: ClientSocket, reached: Reached, caller: CallerSide, state: WatchedState, told: KnownState
    ) -> None:
        self._line, self._reached, self._caller, self._state = line, reached, caller, state
        self._told, self._shown = told.number, told.version
        """The number of what was looked at last, and the version that the client shows. Whatever the client sets it shows at once."""
        self._set, self._setting = told.edition, asyncio.Lock()
        """The edition of what the client has set last."""
        self._sent_at_s = asyncio.get_running_loop().time() if told.version else float("-inf")

    async def take(self, frame: JsonObject) -> None:
        call_id, method, args = frame.get("id"), frame.get("method"), frame.get("args")
        if frame["type"] == STATE:
            await self._set_state(frame.get("state"))
        elif isinstance(call_id, str) and isinstance(method, str) and isinstance(args, list):
            await self._line.beside(self._call(call_id, method, args))

    async def refuse(self, frame: JsonObject, why: str) -> None:
        if frame["type"] == STATE:
            await self._line.send(REFUSED, error=why)
            await self._send_state()
        elif isinstance(frame.get("id"), str):
            await self._line.send(RPC, id=frame["id"], success=False, error=why)

    # the state

    async def serve(self) -> None:
        while True:
            known = await self._state.after(self._told)
            self._told = known.number
            async with self._setting:  # what is being set comes after what is known by now
                known = self._state.known
                if known.version != self._shown and not known.is_before(self._set):
                    await self._send_state()

    async def _send_state(self) -> None:
        known = self._state.known
        self._shown, self._sent_at_s = known.version, asyncio.get_running_loop().time()
        await self._line.send(STATE, state=known.state)

    async def _set_state(self, state: object) -> None:
        # The client shows its state already. If it is refused the client is told so, and then the state that counts.
        async with self._setting:
            try:
                if isinstance(state, dict):
                    self._shown = version_of(pack_value("state", state))
                self._set = tuple(await self._caller.call("_perdure_set_state", state))
                if asyncio.get_running_loop().time() - self._sent_at_s < CROSSES_S:
                    self._shown = UNKNOWN  # what was sent may have crossed what the client has set, and stand there now
            except AgentUnreachable:
                raise
            except PerdureError as problem:
                await self._line.send(REFUSED, error=problem_text(problem))
                await self._send_state()

    # calls

    async def _call(self, call_id: str, method: str, args: list[Json]) -> None:
        try:
            function = self._function(method)
            if isinstance(function, str):
                await self._line.send(RPC, id=call_id, success=False, error=function)
            elif gives_bit_by_bit(function):
                await self._stream(call_id, getattr(self._reached.handle, method)(*args))
            else:
                result = await asked(getattr(self._reached.handle, method)(*args))
                await self._line.send_text(encoded(RPC, id=call_id, success=True, done=True, result=result))
        except PerdureError as problem:
            await self._line.send(RPC, id=call_id, success=False, error=problem_text(problem))
        except (TypeError, ValueError) as problem:  # the arguments do not fit, or the result has no JSON
            await self._line.send(RPC, id=call_id, success=False, error=str(problem))

    async def _stream(self, call_id: str, given: AsyncGenerator[object, None]) -> None:
        # The generator goes on only when the client has taken what came.
        async with aclosing(given) as values:
            async for value in values:
                await self._line.send_text(encoded(RPC, id=call_id, success=True, done=False, result=value))
        await self._line.send(RPC, id=call_id, success=True, done=True)

    def _function(self, method: str) -> Callable[..., object] | str:
        # Why there is none is told in the words of the original.
        agent_class: type[Agent] = self._reached.agent_class
        function = None if method.startswith("_") else getattr(agent_class, method, None)
        if function is None:
            return f"Method {method} does not exist"
        is_exposed = hasattr(function, "__perdure_exposed__") or hasattr(function, "__perdure_afar__")
        return function if is_exposed else f"Method {method} is not callable"


# ---------------------------------------------------------------- chat
# What a client of `@cloudflare/ai-chat` asks of a conversation: turns, cancels, clears, another transcript, answers to calls.


OWN_FIELDS: Final = frozenset({"messages", "trigger", "clientTools"})
logger = logging.getLogger("perdure.gateway")


class ChatDesk:
    """Takes in the chat frames of one connection. What they cause is told to all connections by the feed of the conversation."""

    def __init__(self, line: ClientSocket, who: Principal, talk: WatchedChat, attendance: Attendance) -> None:
        self._line, self._talk, self._attendance = line, talk, attendance
        self._call, self._turns = talk.caller.call, ChatTurns(talk.caller, who, "agents-client")

    async def take(self, frame: JsonObject) -> None:
        taking = self._taking.get(str(frame["type"]))
        if taking is not None:
            await taking(self, frame)

    async def refuse(self, frame: JsonObject, why: str) -> None:
        logger.warning("a frame %.80r of a chat client was refused: %s", frame["type"], why)
        request_id = frame.get("id")
        if frame["type"] == "cf_agent_use_chat_request" and isinstance(request_id, str):
            await self._refuse(request_id, why)

    # turns

    async def _request(self, frame: JsonObject) -> None:
        request_id = frame.get("id")
        if not isinstance(request_id, str) or not request_id:
            return
        init = frame.get("init")
        body = init.get("body") if isinstance(init, dict) else None
        try:
            await self._submit(request_id, parsed_object(body if isinstance(body, str) else "", "init.body"))
        except PerdureError as problem:
            await self._refuse(request_id, problem_text(problem))

    async def _submit(self, request_id: str, body: JsonObject) -> None:
        standing = await self._turns.standing(request_id)
        if standing["known"] is not None:
            return  # the same request again: its turn is under way, or over
        waiting = [[each["id"], each["role"]] for turn in standing["turns"] for each in turn["waiting"]]
        sent = body.get("messages")
        plan = plan_request(
            [*standing["messages"], *waiting], sent if isinstance(sent, list) else [], body.get("trigger")
        )
        if plan.trigger is None:
            await self._refuse(request_id, plan.why)
            return
        self._talk.authors[request_id] = Author(self._line.number, self._talk.head)
        try:
            await self._turns.accept(plan, request_id, _options(body))
        except TurnDropped:
            self._talk.authors.pop(request_id, None)
            await self._line.send(MESSAGES, messages=await self._talk.transcript())
            await self._line.send(RESPONSE, id=request_id, body="", done=True, outcome="skipped")

    async def _refuse(self, request_id: str, why: str) -> None:
        self._talk.authors.pop(request_id, None)
        await self._line.send(RESPONSE, id=request_id, body=why, done=False, error=True)
        await self._line.send(RESPONSE, id=request_id, body="", done=True, outcome="error")

    async def _cancel(self, frame: JsonObject) -> None:
        wire = frame.get("id")
        turn = next((each.turn for each in self._talk.turns.values() if each.wire == wire), wire)
        if isinstance(turn, str) and turn:
            await self._turns.cancel(turn)

    # the transcript

    async def _clear(self, _frame: JsonObject) -> None:
        self._talk.cleared_by = self._line.number
        await self._call("clear")

    async def _replace(self, frame: JsonObject) -> None:
        if not isinstance(frame.get("messages"), list):
            return
        try:
            await self._call("_perdure_replace_messages", frame["messages"])
        except PerdureError as problem:
            logger.warning("a chat client's transcript was refused: %s", problem)
            await self._line.send(MESSAGES, messages=await self._talk.transcript())
            return
        await self._talk.show_all(besides=self._line.number)

    # answers to calls

    async def _result(self, frame: JsonObject) -> None:
        call_id, error = frame.get("toolCallId"), None
        if frame.get("state") == "output-error":
            error = str(frame.get("errorText") or "the client could not execute the call")
        if isinstance(call_id, str):
            await self._answer(frame, CallAnswer(call_id, frame.get("output"), error))

    async def _approval(self, frame: JsonObject) -> None:
        call_id, approved = frame.get("toolCallId"), frame.get("approved")
        if isinstance(call_id, str) and isinstance(approved, bool):
            await self._answer(frame, CallAnswer(call_id, approved=approved))

    async def _answer(self, frame: JsonObject, answer: CallAnswer) -> None:
        # The one who wants the continuation of the turn owns it, from before it can begin.
        try:
            turns = (await self._turns.standing())["turns"] if frame.get("autoContinue") is True else []
            for turn in (each for each in turns if answer.call_id in each["waits_for"]):
                self._attendance.answered(turn["request_id"])
            counted = await self._turns.answer(answer)
        except PerdureError as problem:
            logger.warning("the answer of a chat client to the call %.80r was refused: %s", answer.call_id, problem)
            counted = False
        if counted and (message := await self._turns.holder({answer.call_id})) is not None:
            self._talk.add(TurnNotice("updated", frame=encoded("cf_agent_message_updated", message=message)))

    # resuming

    async def _ask(self, frame: JsonObject) -> None:
        self._attendance.ask(frame)

    _taking: ClassVar[dict[str, Callable[[ChatDesk, JsonObject], Pending[None]]]] = {
        "cf_agent_use_chat_request": _request,
        "cf_agent_chat_request_cancel": _cancel,
        "cf_agent_chat_clear": _clear,
        "cf_agent_chat_messages": _replace,
        "cf_agent_tool_result": _result,
        "cf_agent_tool_approval": _approval,
        "cf_agent_stream_resume_request": _ask,
        "cf_agent_stream_resume_ack": _ask,
    }


def _options(body: JsonObject) -> JsonObject:
    # What else the client has sent is the turn's metadata.
    more = {name: value for name, value in body.items() if name not in OWN_FIELDS}
    found: JsonObject = {"metadata": more} if more else {}
    return found | ({"client_tools": body["clientTools"]} if body.get("clientTools") else {})


# ---------------------------------------------------------------- routes


def routes(backend: Backend) -> list[BaseRoute]:
    clients = AgentsClients(backend)
    return [
        WebSocketRoute(f"{PREFIX}{{path:path}}", clients.connect),
        Route(f"{PREFIX}{{path:path}}/{TRANSCRIPT}", clients.messages, methods=["GET"]),
    ]


class AgentsClients:
    """The connections of one gateway."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._states: Shared[WatchedState] = Shared()
        self._talks: Shared[WatchedChat] = Shared()
        self._runs: Shared[RunList] = Shared()
        self._numbers = count()
        # By agents and tabs: the turn whose end the tab had not been told when its line was lost, or an empty text. A tab that comes back
        # to the same gateway names itself by the same `_pk`.
        self._lost: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def messages(self, request: Request) -> Response:
        who = self._backend.principal(request, Scope.READ)
        reached, rest = await self._backend.reach(who, segments_of(request, PREFIX))
        if rest != [TRANSCRIPT] or not issubclass(reached.agent_class, ChatAgent):
            raise NoSuchAgent(f"{request.url.path!r:.200} has no transcript")
        try:
            found = await ChatTurns(reached.caller).transcript()
        except AgentUnreachable as problem:
            raise NoSuchAgent(str(problem)) from problem
        return Response(json_text(found), media_type="application/json")

    async def connect(self, socket: WebSocket) -> None:
        """Serve a connection, which is accepted first: these clients take a failed upgrade for a failed network."""
        offered: list[str] = socket.scope.get("subprotocols") or []
        await socket.accept(subprotocol=offered[0] if offered else None)
        line = ClientSocket(socket, next(self._numbers))
        try:
            await self._serve(line)
        except WebSocketDisconnect:
            return
        except Closed as closed:
            await _close(socket, closed.code, closed.reason)
        except AgentUnreachable as problem:
            await _close(socket, *close_code(NoSuchAgent(str(problem))))
        except RemoteError as problem:  # the author's code failed, and may not next time
            await _close(socket, RETRIED, problem_text(problem))
        except PerdureError as problem:
            await _close(socket, *close_code(problem))

    async def _serve(self, line: ClientSocket) -> None:
        who = self._backend.principal(line.socket, Scope.READ)
        if line.socket.query_params.get("__agents_transport"):
            raise BadRequest("transport", "transport not supported: this gateway speaks the JSON frames")
        reached, rest = await self._backend.reach(who, segments_of(line.socket, PREFIX))
        if rest:
            raise NoSuchAgent(f"no agent is addressed so: {'/'.join(rest)!r:.60} is left")
        caller = reached.caller
        async with AsyncExitStack() as held:
            key = reached.agent_id
            state = await held.enter_async_context(self._states.watched(key, lambda: WatchedState(caller)))
            told = state.known  # it may be another one once the client is greeted
            await self._greet(line, reached, told)
            client = await self._backend.client()
            own = await self._backend.own_id(key)
            runs = await held.enter_async_context(self._runs.watched(own, lambda: RunList(client, own)))
            chat: ChatDesk | None = None
            attendance: Attendance | None = None
            if issubclass(reached.agent_class, ChatAgent):
                talk = await held.enter_async_context(self._talks.watched(key, lambda: WatchedChat(caller)))
                attendance = await self._welcome(line, talk, key)
                held.callback(self._part, line, attendance, key)
                chat = ChatDesk(line, who, talk, attendance)
            calls = CallDesk(line, reached, caller, state, told)
            jobs = [self._read(line, calls, chat), calls.serve(), RunTeller(line, self._backend, runs).serve()]
            jobs += [attendance.serve(), attendance.remind()] if attendance is not None else []
            await line.together(*jobs, self._recheck(line.socket))

    async def _welcome(self, line: ClientSocket, talk: WatchedChat, key: str) -> Attendance:
        # A tab that may have lost its line in a turn is told the conversation: what it shows may be half an answer.
        untold = self._lost.pop((key, line.socket.query_params.get(TAB, "")), None)
        attendance = Attendance(line, talk, await talk.missed(untold or ""))
        if untold is not None or (talk.has_just_ended and TAB in line.socket.query_params):
            await line.send(MESSAGES, messages=await talk.transcript(), connect=True)
        return attendance

    def _part(self, line: ClientSocket, attendance: Attendance, key: str) -> None:
        if tab := line.socket.query_params.get(TAB, ""):
            self._lost[key, tab] = attendance.untold
        if len(self._lost) > REMEMBERED_MAX:
            self._lost.popitem(last=False)
        attendance.leave()

    async def _greet(self, line: ClientSocket, reached: Reached, state: KnownState) -> None:
        agent = kebab(reached.agent_class.__name__)
        follows = {"stateFollows": True} if state.version else {}
        await line.send("cf_agent_identity", name=reached.name, agent=agent, **follows)
        if state.version:
            await line.send("cf_agent_state", state=state.state)
        await line.send("cf_agent_mcp_servers", mcp=NO_TOOLS)

    async def _read(self, line: ClientSocket, calls: CallDesk, chat: ChatDesk | None) -> None:
        # What the client may not do is refused, and what is no frame of ours is ignored.
        while True:
            told = await line.receive()
            if told is None:
                continue
            frame = told.fields
            if frame["type"] in PASSIVE:
                self._backend.principal(line.socket, Scope.READ)
            elif frame["type"] in CallDesk.TYPES and Scope.CHAT not in line.socket.state.principal.scopes:
                await calls.refuse(frame, READ_ONLY)
                continue
            else:
                self._backend.principal(line.socket, Scope.CHAT)
            if told.wrong and frame["type"] in CallDesk.TYPES:
                await calls.refuse(frame, told.wrong)
            elif told.wrong and chat is not None:
                await chat.refuse(frame, told.wrong)
            elif frame["type"] in CallDesk.TYPES:
                await calls.take(frame)
            elif chat is not None:
                await chat.take(frame)

    async def _recheck(self, socket: WebSocket) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            socket.state.principal = await socket.state.principal_again()


PASSIVE: Final = frozenset({"cf_agent_stream_resume_request", "cf_agent_stream_resume_ack"})


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    try:
        await socket.close(code, reason)
    except RuntimeError:  # the client was faster
        return
