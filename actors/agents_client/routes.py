"""The protocol of the npm packages `agents` and `@cloudflare/ai-chat`: `AgentClient`, `useAgent`, `useAgentChat`, `useAgentToolEvents`.

    WebSocket  /agents/{class}/{name}[/sub/{class}/{name} …][/rest]
    GET        the same address and /get-messages

One WebSocket carries everything of one agent: who it is, its state in both directions, calls of its exposed methods, its conversation, and
the events of its runs. A connection that may not be is accepted and closed by a code, because these clients take a failed upgrade for a
failed network. Whatever is durable is told from what is durable, so a gateway that is killed is replaced by the next one.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, aclosing, suppress
from itertools import count
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from perdure.actors.agent.agent import Agent
from perdure.actors.agents_client.chat_requests import PASSIVE, ChatDesk
from perdure.actors.agents_client.frames import encoded, json_text
from perdure.actors.agents_client.line import CHANNEL, ChatLine, ClientSocket, Closed
from perdure.actors.agents_client.talk import MESSAGES, Attendance, ShownTurn, Talk
from perdure.actors.agents_client.tool_runs import RunList, RunTeller
from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.followers import Caller, Rest
from perdure.actors.code.author_call import tried
from perdure.actors.code.signatures import gives_bit_by_bit
from perdure.actors.gateway.backend import Backend, Reached, asked, segments_of
from perdure.actors.gateway.chat_turns import ChatTurns, asked_by
from perdure.actors.gateway.feeds import KnownState, Shared, Watched, WatchedState
from perdure.actors.gateway.problems import close_code, problem_text
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.registry import kebab
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.life.state_watch import version_of
from perdure.actors.link.wire import RemoteError
from perdure.actors.tasks import Pending, Tasks
from perdure.ledger import AgentUnreachable, BadRequest, PerdureError, pack_value
from perdure.policies import Json, JsonObject

PREFIX: Final = "/agents/"
TAB: Final = "_pk"
TRANSCRIPT: Final = "get-messages"
RECHECK_S: Final = 60.0
"""How often a connection is asked anew whether its principal is valid."""
RETRIED: Final = 1011
NO_TOOLS: Final[JsonObject] = {"servers": {}, "tools": [], "prompts": [], "resources": []}
REMEMBERED_MAX: Final = 10_000
"""How many tabs with a lost line are remembered; the oldest are forgotten first."""


# ---------------------------------------------------------------- calls
# What a client of the npm package `agents` does with any agent: it sets the state and calls methods (client protocols A.4, A.5).


CROSSES_S: Final = 5.0
UNKNOWN: Final = "unknown"
STATE, RPC, REFUSED = "cf_agent_state", "rpc", "cf_agent_state_error"


class CallDesk:
    """The state and the calls of one connection, whose client was told this state."""

    TYPES: Final = frozenset({STATE, RPC})

    def __init__(self, line: ClientSocket, reached: Reached, state: WatchedState, told: KnownState) -> None:
        self._line, self._reached, self._state = line, reached, state
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
                self._set = tuple(await self._reached.caller.call("_perdure_set_state", state))
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
            called, taken = asked_by(self._line.who, CHANNEL, self._reached, method, args, {})
            given = called(*taken)
            if gives_bit_by_bit(function):
                await self._stream(call_id, given)
            else:
                result = await asked(given)
                await self._line.send_text(encoded(RPC, id=call_id, success=True, done=True, result=result))
        except PerdureError as problem:
            await self._line.send(RPC, id=call_id, success=False, error=problem_text(problem))
        except (
            TypeError,
            ValueError,
        ) as problem:  # no such method, arguments that do not fit, or a result that has no JSON
            await self._line.send(RPC, id=call_id, success=False, error=str(problem))

    async def _stream(self, call_id: str, given: AsyncGenerator[object, None]) -> None:
        # The generator goes on only when the client has taken what came.
        async with aclosing(given) as values:
            async for value in values:
                await self._line.send_text(encoded(RPC, id=call_id, success=True, done=False, result=value))
        await self._line.send(RPC, id=call_id, success=True, done=True)

    def _function(self, method: str) -> Callable[..., object]:
        # Raises `ValueError` in the words of the original.
        agent_class: type[Agent] = self._reached.agent_class
        function: Callable[..., object] | None = None if method.startswith("_") else getattr(agent_class, method, None)
        if function is None:
            raise ValueError(f"Method {method} does not exist")
        if not hasattr(function, "__perdure_exposed__") and not hasattr(function, "__perdure_afar__"):
            raise ValueError(f"Method {method} is not callable")
        return function


# ---------------------------------------------------------------- chat
# What is told and done in a conversation is decided by `Talk`, `Attendance` and `ChatDesk`; here that is had.


SETTLE_S: Final = 0.15
"""A tab works off its queue of chunks after the end of a stream; then it takes the transcript as it is told (client protocols A.8)."""
PENDING_AGAIN_S: Final = 45.0
"""A client that was told `pending` waits a minute."""


class WatchedChat(Watched):
    """A conversation that is followed for all connections of the gateway."""

    def __init__(self, caller: Caller) -> None:
        super().__init__()
        self.talk = Talk(asyncio.get_running_loop().time, self._settle_soon)
        self.problem: BaseException | None = None
        self.caller, self.turns = caller, ChatTurns(caller)
        self._jobs = Tasks("what follows in a conversation")

    async def _begun(self) -> Pending[None]:
        standing = await self.turns.standing()
        self.talk.begin(standing)
        return self._attempt(self._take_all(standing["next"]))

    async def stop(self) -> None:
        await super().stop()
        await self._jobs.stop()

    async def _attempt(self, job: Pending[None]) -> None:
        # An error of it ends the connections.
        _, problem = await tried(job)
        self.problem = self.problem or problem
        self.talk.wake()

    async def _take_all(self, first: int) -> None:
        rest = Rest(self.caller)
        while True:
            page = await rest.ask("_perdure_feed", first)
            await self.turns.decided(self.talk.take(page["events"]))
            first = page["next"]
            await rest.after(is_resting=page["is_resting"])

    def _settle_soon(self) -> None:
        self._jobs.start_awaited(self._attempt(self._settled()))

    async def _settled(self) -> None:
        await asyncio.sleep(SETTLE_S)
        await self.turns.decided(self.talk.show_all())


class ChatClient(ChatLine):
    """One connection to a conversation."""

    def __init__(self, line: ClientSocket, who: Principal, watched: WatchedChat, missed: ShownTurn | None) -> None:
        super().__init__(line, watched.caller, who)
        self._watched, self._woken = watched, asyncio.Event()
        self.attendance = Attendance(line.number, watched.talk, missed, self._woken.set)
        self.desk = ChatDesk(line.number, watched.talk, self.attendance)

    async def serve(self) -> None:
        await self.decided(self.attendance.announce())
        while True:
            self._woken.clear()
            step = self.attendance.step()
            if step is not None:
                await self.decided(step)
            elif self._watched.problem is not None:
                raise self._watched.problem
            else:
                await self._woken.wait()

    async def remind(self) -> None:
        while True:
            await asyncio.sleep(PENDING_AGAIN_S)
            await self.decided(self.attendance.remind())


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
            await _close(socket, *closed.args)
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
        async with AsyncExitStack() as held:
            key = reached.agent_id
            state = await held.enter_async_context(self._states.watched(key, lambda: WatchedState(reached.caller)))
            told = state.known  # it may be another one once the client is greeted
            await self._greet(line, reached, told)
            client = await self._backend.client()
            own = await self._backend.own_id(key)
            runs = await held.enter_async_context(self._runs.watched(own, lambda: RunList(client, own)))
            chat: ChatClient | None = None
            if issubclass(reached.agent_class, ChatAgent):
                watched = await held.enter_async_context(self._talks.watched(key, lambda: WatchedChat(reached.caller)))
                chat = await self._welcome(line, who, watched, key)
                held.callback(self._part, line, chat.attendance, key)
            calls = CallDesk(line, reached, state, told)
            jobs = [self._read(line, calls, chat), calls.serve(), RunTeller(line, self._backend, runs).serve()]
            jobs += [chat.serve(), chat.remind()] if chat is not None else []
            await line.together(*jobs, self._recheck(line.socket))

    async def _welcome(self, line: ClientSocket, who: Principal, watched: WatchedChat, key: str) -> ChatClient:
        # A tab that may have lost its line in a turn is told the conversation: what it shows may be half an answer.
        untold = self._lost.pop((key, line.socket.query_params.get(TAB, "")), None)
        talk = watched.talk
        chat = ChatClient(line, who, watched, await watched.turns.decided(talk.missed(untold or "")))
        if untold is not None or (talk.has_just_ended and TAB in line.socket.query_params):
            await line.send(MESSAGES, messages=await chat.decided(talk.transcript()), connect=True)
        return chat

    def _part(self, line: ClientSocket, attendance: Attendance, key: str) -> None:
        untold = attendance.leave()
        if tab := line.socket.query_params.get(TAB, ""):
            self._lost[key, tab] = untold
        if len(self._lost) > REMEMBERED_MAX:
            self._lost.popitem(last=False)

    async def _greet(self, line: ClientSocket, reached: Reached, state: KnownState) -> None:
        agent = kebab(reached.agent_class.__name__)
        follows = {"stateFollows": True} if state.version else {}
        await line.send("cf_agent_identity", name=reached.name, agent=agent, **follows)
        if state.version:
            await line.send("cf_agent_state", state=state.state)
        await line.send("cf_agent_mcp_servers", mcp=NO_TOOLS)

    async def _read(self, line: ClientSocket, calls: CallDesk, chat: ChatClient | None) -> None:
        # What the client may not do is refused, and what is no frame of ours is ignored.
        while True:
            told = await line.receive()
            if told is None:
                continue
            frame = told.fields
            if frame["type"] in PASSIVE:
                self._backend.principal(line.socket, Scope.READ)
            elif frame["type"] in CallDesk.TYPES and Scope.CHAT not in line.who.scopes:
                await calls.refuse(frame, "Connection is readonly")
                continue
            else:
                self._backend.principal(line.socket, Scope.CHAT)
            if frame["type"] in CallDesk.TYPES:
                await (calls.refuse(frame, told.wrong) if told.wrong else calls.take(frame))
            elif chat is not None:
                await chat.decided(chat.desk.refuse(frame, told.wrong) if told.wrong else chat.desk.take(frame))

    async def _recheck(self, socket: WebSocket) -> None:
        while True:
            await asyncio.sleep(RECHECK_S)
            socket.state.principal = await socket.state.principal_again()


async def _close(socket: WebSocket, code: int, reason: str) -> None:
    with suppress(RuntimeError):  # the client was faster
        await socket.close(code, reason)
