"""AG-UI: `POST /ag-ui/{class}`, for front ends over `@ag-ui/client` and whatever speaks its protocol.

The thread is the name of a chat agent, and a run of AG-UI is a turn of it. A request that is closed leaves the turn to go on; the same run
asked for again is told from its beginning. The library of its models is imported with the first request.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from importlib import import_module
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.followers import is_last
from perdure.actors.chat.turn import TurnPage
from perdure.actors.events.message_parts import CALL_ENDS
from perdure.actors.gateway.backend import Backend, Reached, RouteOfIds
from perdure.actors.gateway.bodies import body_of
from perdure.actors.gateway.chat_turns import ChatTurns, TurnDropped, turn_id
from perdure.actors.gateway.problems import is_known, told
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.security import Principal, Scope
from perdure.actors.gateway.streaming import event_stream
from perdure.actors.gateway.turn_follower import Framed, TurnFollower
from perdure.ledger import BadRequest, PerdureError

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent

    from perdure.actors.ag_ui.turn_translation import AgUiRequest, Decision

TRANSLATION: Final = "perdure.actors.ag_ui.turn_translation"


def routes(backend: Backend) -> list[BaseRoute]:
    serving = _AgUi(backend)
    return [
        Route("/ag-ui/{agent}", serving.run, methods=["POST"]),
        RouteOfIds("/ag-ui/{agent}/{thread_id:path}/steer", serving.steer, methods=["POST"]),
        RouteOfIds("/ag-ui/{agent}/{thread_id:path}/{run_id}/cancel", serving.cancel, methods=["POST"]),
    ]


class _AgUi:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self, request: Request) -> Response:
        who = self._backend.principal(request, Scope.CHAT)
        body = await body_of(request)
        asked: AgUiRequest = import_module(TRANSLATION).AgUiRequest(body)
        reached = await self._reached(who, request, asked.given.thread_id)
        return event_stream(_Serving(self._backend, reached, who, asked).told())

    async def steer(self, request: Request) -> Response:
        # AG-UI has no word for this either, while a run is under way.
        who = self._backend.principal(request, Scope.CHAT)
        message = import_module(TRANSLATION).steering(await body_of(request))
        reached = await self._reached(who, request, request.path_params["thread_id"])
        return JSONResponse(await ChatTurns(reached.caller, who).steer(message))

    async def cancel(self, request: Request) -> Response:
        # AG-UI itself has no word for it, because closing a request ends the watching alone.
        who = self._backend.principal(request, Scope.CHAT)
        reached = await self._reached(who, request, request.path_params["thread_id"])
        turn = turn_id(reached.agent_id, request.path_params["run_id"])
        return JSONResponse({"cancelled": await ChatTurns(reached.caller).cancel(turn)})

    async def _reached(self, who: Principal, request: Request, thread_id: str) -> Reached:
        reached, _ = await self._backend.reach(who, [request.path_params["agent"], thread_id])
        if not issubclass(reached.agent_class, ChatAgent):
            raise NoSuchAgent(f"{reached.agent_class.__name__} is no chat agent")
        return reached


class _Serving:
    # The IO of one run. What is done and told is decided by `AgUiRequest`.

    def __init__(self, backend: Backend, reached: Reached, who: Principal, asked: AgUiRequest) -> None:
        self._backend, self._reached, self._asked, self._run = backend, reached, asked, asked.run
        self._call, self._turns = reached.caller.call, ChatTurns(reached.caller, who, "ag-ui")

    async def told(self) -> AsyncGenerator[bytes, None]:
        # Ends by a terminal event, or by the error of a bug, which cuts the line.
        yield self._asked.encoded(self._asked.begun())
        try:
            async with aclosing(self._events()) as batches:
                async for piece in (self._asked.encoded(events) async for events in batches if events):
                    yield piece
        except PerdureError as problem:
            if not is_known(problem):
                raise
            words = told(problem)
            yield self._asked.encoded(self._run.failed(words["message"], words["type"]))

    async def _events(self) -> AsyncGenerator[list[BaseEvent], None]:
        yield await self._state()
        decision = await self._turns.decided(self._asked.decided(self._reached.agent_id))
        opening = await self._done(decision)
        yield self._asked.opened(decision)
        if not decision.request_id:
            return
        item: TurnPage | Framed | None = None
        async with TurnFollower(self._backend, self._reached, decision.request_id, opening) as follower:
            while not isinstance(item, dict) or not is_last(item):
                item = await follower.next()
                async for piece in self._item(item, follower):
                    yield piece

    async def _done(self, decision: Decision) -> TurnPage | None:
        for each in decision.answers:
            await self._turns.answer(each)
        if decision.earlier:
            await self._call("add_messages", decision.earlier)
        if decision.plan is None:
            return None
        try:
            return await self._turns.begin(decision.plan, decision.request_id, self._asked.options())
        except TurnDropped as problem:
            raise BadRequest("messages", str(problem)) from None

    async def _item(
        self, item: TurnPage | Framed | None, follower: TurnFollower
    ) -> AsyncGenerator[list[BaseEvent], None]:
        if isinstance(item, Framed):
            yield self._asked.framed(item)
        if not isinstance(item, dict):
            return
        # The result of a call comes after all that its run has said, and may have changed the agent's state.
        for event in item["events"]:
            async for framed in follower.said_before(event):
                yield self._asked.framed(framed)
            yield self._run.event(event)
            if event["type"] in CALL_ENDS:
                yield await self._state()
            elif event["type"] == "tool-input-available" and not event.get("providerExecuted"):
                await follower.runs.follow(event["toolCallId"])
        yield await self._state() + (self._run.over(item) if is_last(item) else [])

    async def _state(self) -> list[BaseEvent]:
        return self._run.state(await self._call("_perdure_state"))
