"""The protocol of the npm packages `agents` and `@cloudflare/ai-chat`: `AgentClient`, `useAgent`, `useAgentChat`, `useAgentToolEvents`.

    WebSocket  /agents/{class}/{name}[/sub/{class}/{name} …][/rest]
    GET        the same address and /get-messages

One WebSocket carries everything of one agent: who it is, its state in both directions, calls of its exposed methods, its conversation, and
the events of its runs. A connection that may not be is accepted and closed by a code, because these clients take a failed upgrade for a
failed network. Whatever is durable is told from what is durable, so a gateway that is killed is replaced by the next one.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from itertools import count
from typing import Any, Final, cast
from urllib.parse import quote, unquote

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.actors.agents_client.calls import CallDesk
from perdure.actors.agents_client.chat import ChatDesk
from perdure.actors.agents_client.line import Closed, Line, chosen_protocol, json_text, words_of
from perdure.actors.agents_client.resume import Attendance
from perdure.actors.agents_client.returning import Returning
from perdure.actors.agents_client.runs import RunList, RunTeller
from perdure.actors.agents_client.talk import MESSAGES, Talk
from perdure.actors.agents_client.transcript import transcript
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.gateway.problems import close_code
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.registry import kebab
from perdure.actors.gateway.security import Scope
from perdure.actors.gateway.shared import Shared
from perdure.actors.gateway.state_feed import Known, WatchedState
from perdure.actors.life.handle import address_of
from perdure.actors.link.caller import CallerSide
from perdure.actors.link.wire import RemoteError
from perdure.ledger import AgentUnreachable, BadRequest, PerdureError
from perdure.policies import JsonObject

PREFIX: Final = "/agents/"
TAB: Final = "_pk"
TRANSCRIPT: Final = "get-messages"
RECHECK_S: Final = 60.0
"""How often a connection is asked anew whether its principal is valid."""
RETRIED: Final = 1011
NO_TOOLS: Final[JsonObject] = {"servers": {}, "tools": [], "prompts": [], "resources": []}
READ_ONLY: Final = "Connection is readonly"


def routes(backend: Backend) -> list[BaseRoute]:
    """The routes under `/agents`."""
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
        self._talks: Shared[Talk] = Shared()
        self._runs: Shared[RunList] = Shared()
        self._numbers = count()
        self._returning = Returning()

    async def messages(self, request: Request) -> Response:
        """The transcript of a chat agent, as a JSON array."""
        who = self._backend.principal(request, Scope.READ)
        reached, rest = await self._backend.reach(who, segments_of(request))
        if rest != [TRANSCRIPT] or not issubclass(reached.agent_class, ChatAgent):
            raise NoSuchAgent(f"{request.url.path!r:.200} has no transcript")
        try:
            found = await transcript(await self._caller(reached))
        except AgentUnreachable as problem:
            raise NoSuchAgent(str(problem)) from problem
        return Response(json_text(found), media_type="application/json")

    async def connect(self, socket: WebSocket) -> None:
        """Serve a connection."""
        await socket.accept(subprotocol=chosen_protocol(socket))
        line = Line(socket, next(self._numbers))
        try:
            await self._serve(line)
        except WebSocketDisconnect:
            return
        except Closed as closed:
            await _close(socket, closed.code, closed.reason)
        except AgentUnreachable as problem:
            await _close(socket, *close_code(NoSuchAgent(str(problem))))
        except RemoteError as problem:  # the author's code failed, and may not next time
            await _close(socket, RETRIED, words_of(problem))
        except PerdureError as problem:
            await _close(socket, *close_code(problem))

    async def _serve(self, line: Line) -> None:
        who = self._backend.principal(line.socket, Scope.READ)
        if line.socket.query_params.get("__agents_transport"):
            raise BadRequest("transport", "transport not supported: this gateway speaks the JSON frames")
        reached, rest = await self._backend.reach(who, segments_of(line.socket))
        if rest:
            raise NoSuchAgent(f"no agent is addressed so: {'/'.join(rest)!r:.60} is left")
        caller = await self._caller(reached)
        async with AsyncExitStack() as held:
            key = reached.agent_id
            state = await held.enter_async_context(self._states.watched(key, lambda: WatchedState(caller)))
            told = await self._greet(line, reached, state.known)
            client = await self._backend.client()
            own = await self._backend.own_id(key)
            runs = await held.enter_async_context(self._runs.watched(own, lambda: RunList(client, own)))
            chat: ChatDesk | None = None
            attendance: Attendance | None = None
            if issubclass(reached.agent_class, ChatAgent):
                talk = await held.enter_async_context(self._talks.watched(key, lambda: Talk(caller)))
                attendance = await self._welcome(line, talk, key)
                held.callback(self._part, line, attendance, key)
                chat = ChatDesk(line, talk, attendance)
            calls = CallDesk(line, reached, caller, state, told)
            jobs = [self._read(line, calls, chat), calls.serve(), RunTeller(line, self._backend, runs).serve()]
            jobs += [attendance.serve(), attendance.remind()] if attendance is not None else []
            await line.together(*jobs, self._recheck(line.socket))

    async def _welcome(self, line: Line, talk: Talk, key: str) -> Attendance:
        """A tab comes. One that may have lost its line in a turn is told the conversation: what it shows may be half an answer."""
        untold = self._returning.came(key, line.socket.query_params.get(TAB, ""))
        attendance = Attendance(line, talk, await talk.missed(untold or ""))
        if untold is not None or (talk.has_just_ended and TAB in line.socket.query_params):
            await line.send(MESSAGES, messages=await talk.transcript(), connect=True)
        return attendance

    def _part(self, line: Line, attendance: Attendance, key: str) -> None:
        self._returning.left(key, line.socket.query_params.get(TAB, ""), attendance.untold)
        attendance.leave()

    async def _greet(self, line: Line, reached: Reached, state: Known) -> Known:
        """Say who is reached, and its state if it has one; the state that was told."""
        agent = kebab(reached.agent_class.__name__)
        follows = {"stateFollows": True} if state.version else {}
        await line.send("cf_agent_identity", name=reached.name, agent=agent, **follows)
        if state.version:
            await line.send("cf_agent_state", state=state.state)
        await line.send("cf_agent_mcp_servers", mcp=NO_TOOLS)
        return state

    async def _read(self, line: Line, calls: CallDesk, chat: ChatDesk | None) -> None:
        """Take in the frames of the client. What it may not do is refused, and what is no frame of ours is ignored."""
        while True:
            told = await line.receive()
            if told is None:
                continue
            frame = told.fields
            if frame["type"] in PASSIVE:
                self._backend.principal(line.socket, Scope.READ)
            elif frame["type"] in CallDesk.TYPES and not self._may_chat(line):
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

    def _may_chat(self, line: Line) -> bool:
        return Scope.CHAT in cast("Any", line.socket.state.principal).scopes

    async def _recheck(self, socket: WebSocket) -> None:
        """Ask from time to time whether the principal is still valid. Raises `Unauthenticated` or `Forbidden`."""
        while True:
            await asyncio.sleep(RECHECK_S)
            socket.state.principal = await socket.state.principal_again()

    async def _caller(self, reached: Reached) -> CallerSide:
        client = await self._backend.client()
        address = address_of(reached.handle)
        assert address is not None
        return CallerSide(client.caller, address)


PASSIVE: Final = frozenset({"cf_agent_stream_resume_request", "cf_agent_stream_resume_ack"})


def segments_of(connection: HTTPConnection) -> list[str]:
    """The segments of an address, each decoded once: a slash within a name is no end of it."""
    raw = connection.scope.get("raw_path")
    path = raw.decode("latin-1") if raw else quote(connection.scope["path"])
    path = path.removeprefix(quote(connection.scope.get("root_path", "")))
    return [unquote(each) for each in path.removeprefix(PREFIX).split("/")]


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    try:
        await socket.close(code, reason)
    except RuntimeError:  # the client was faster
        return
