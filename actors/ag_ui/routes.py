"""AG-UI: `POST /ag-ui/{class}`, for front ends over `@ag-ui/client` and whatever speaks its protocol.

The thread is the name of a chat agent, and a run of AG-UI is a turn of it. A request that is closed leaves the turn to go on; the same run
asked for again is told from its beginning. The library of its models is imported with the first request.
"""

from __future__ import annotations

from importlib import import_module

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.gateway.backend import Backend, Reached
from perdure.actors.gateway.bodies import body_of
from perdure.actors.gateway.chat_turns import ChatTurns, turn_id
from perdure.actors.gateway.refusals import NoSuchAgent
from perdure.actors.gateway.security import Scope
from perdure.actors.gateway.streaming import event_stream

SERVING = "perdure.actors.ag_ui.turn_translation"


def routes(backend: Backend) -> list[BaseRoute]:
    serving = _AgUi(backend)
    return [
        Route("/ag-ui/{agent}", serving.run, methods=["POST"]),
        Route("/ag-ui/{agent}/{thread_id}/steer", serving.steer, methods=["POST"]),
        Route("/ag-ui/{agent}/{thread_id}/{run_id}/cancel", serving.cancel, methods=["POST"]),
    ]


class _AgUi:
    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def run(self, request: Request) -> Response:
        who = self._backend.principal(request, Scope.CHAT)
        body = await body_of(request)
        serving = import_module(SERVING)
        given = serving.input_of(body)
        reached, _ = await self._backend.reach(who, [request.path_params["agent"], given.thread_id])
        return event_stream(serving.serve(self._backend, _chat(reached), who, given))

    async def steer(self, request: Request) -> Response:
        # AG-UI has no word for this either, while a run is under way.
        who = self._backend.principal(request, Scope.CHAT)
        message = import_module(SERVING).steering(await body_of(request))
        names = request.path_params
        reached, _ = await self._backend.reach(who, [names["agent"], names["thread_id"]])
        return JSONResponse(await ChatTurns(_chat(reached).caller, who).steer(message))

    async def cancel(self, request: Request) -> Response:
        # AG-UI itself has no word for it, because closing a request ends the watching alone.
        who = self._backend.principal(request, Scope.CHAT)
        names = request.path_params
        reached, _ = await self._backend.reach(who, [names["agent"], names["thread_id"]])
        turn = turn_id(reached.agent_id, names["run_id"])
        return JSONResponse({"cancelled": await ChatTurns(_chat(reached).caller).cancel(turn)})


def _chat(reached: Reached) -> Reached:
    if not issubclass(reached.agent_class, ChatAgent):
        raise NoSuchAgent(f"{reached.agent_class.__name__} is no chat agent")
    return reached
