"""The ASGI app for webhooks. It acknowledges an event when the event is durable.

    too long            413
    not verified        401     or what the verifier answers
    malformed           400     and a line in the log
    accepted            200     the agent has committed it, now or before; or no agent answers such events
    cannot be accepted  503     with `Retry-After`: the provider delivers it again, and the agent knows it by its key

A death at any line is a webhook without an answer, which providers deliver again. Other methods than POST get 405, other paths 404. No
request gets 500.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from perdure.actors.code.author_call import in_words, tried, tried_now
from perdure.actors.gateway.bodies import bytes_of
from perdure.actors.messenger.adapter import Messenger, Webhook, WebhookReply
from perdure.actors.messenger.messenger_agent import MessengerAgent, messengers_of
from perdure.actors.messenger.messenger_events import MessengerEvent
from perdure.ledger import BadRequest, PerdureError, TooLarge
from perdure.policies import JsonObject

BODY_MAX: Final = 1_000_000
ACCEPT_S: Final = 20.0
RETRY_AFTER_S: Final = 2
log = logging.getLogger("perdure.messenger")


class Handles(Protocol):
    """What gives handles of agents: a `Runtime` or a `Client`."""

    def agent(self, agent_class: type[MessengerAgent], name: str) -> Any:
        """A handle."""


def messenger_app(
    handles: Handles,
    *agent_classes: type[MessengerAgent],
    body_max: int = BODY_MAX,
    accept_timeout_s: float = ACCEPT_S,
) -> Starlette:
    """The app for the messengers of these classes; for any ASGI server, or to be mounted in an app of your own.

    Args:
        body_max: bytes of one webhook.
        accept_timeout_s: how long an acceptance may take until the provider is asked to deliver again.
    """
    doors: dict[str, WebhookEndpoint] = {}
    for agent_class in agent_classes:
        for messenger in messengers_of(agent_class).values():
            path = messenger.webhook_path
            if path in doors:
                raise BadRequest("messengers.path", f"{path!r} is also used by {doors[path].agent_class.__name__}")
            doors[path] = WebhookEndpoint(handles, agent_class, messenger, body_max, accept_timeout_s)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        for door in doors.values():
            await door.prepare()
        yield
        for door in doors.values():
            await door.close()

    routes = [Route(path, door.serve, methods=["POST"]) for path, door in doors.items()]
    app = Starlette(routes=routes, lifespan=lifespan)
    app.router.redirect_slashes = False  # a path is that path, and no other one
    return app


class WebhookEndpoint:
    """The endpoint for the webhooks of one messenger."""

    def __init__(
        self,
        handles: Handles,
        agent_class: type[MessengerAgent],
        messenger: Messenger,
        body_max: int,
        accept_timeout_s: float,
    ) -> None:
        self.agent_class, self.messenger = agent_class, messenger
        self._handles, self._body_max, self._accept_s = handles, body_max, accept_timeout_s

    async def prepare(self) -> None:
        job = getattr(self.messenger.adapter, "prepare", None)
        _, problem = (None, None) if job is None else await tried(job())
        if problem is not None:  # webhooks are accepted all the same
            log.warning("messenger %s could not prepare: %s", self.messenger.id, in_words(problem))

    async def close(self) -> None:
        job = getattr(self.messenger.adapter, "close", None)
        if job is not None:
            await tried(job())

    async def serve(self, request: Request) -> Response:
        try:
            body = await bytes_of(request, self._body_max)
        except TooLarge as refused:
            return self._refused(413, str(refused))
        except ClientDisconnect:
            body = b""
        headers = {name.lower(): value for name, value in request.headers.items()}
        webhook = Webhook(request.method, request.url.path, headers, body)
        verdict, problem = tried_now(lambda: self.messenger.verified(webhook))
        if isinstance(verdict, WebhookReply):
            return PlainTextResponse(verdict.text, verdict.status)
        if problem is not None or verdict is not True:
            return self._refused(401, f"not verified{f': {in_words(problem)}' if problem is not None else ''}")
        events, problem = tried_now(lambda: self.messenger.adapter.parse(self.messenger.id, webhook))
        if events is None:
            return self._refused(400, in_words(problem) if problem is not None else "nothing in it")
        return await self._accepted([each for each in events if self.messenger.takes(each)])

    async def _accepted(self, events: list[MessengerEvent]) -> Response:
        accepted = 0
        for event in events:
            told, problem = await tried(self._accept(event))
            if told is None or problem is not None:
                return self._unaccepted(event, RuntimeError("the agent said nothing") if problem is None else problem)
            accepted += bool(told["accepted"])
        return JSONResponse({"ok": True, "accepted": accepted})

    async def _accept(self, event: MessengerEvent) -> JsonObject:
        agent = self._handles.agent(self.agent_class, self.messenger.agent_name(event))
        async with asyncio.timeout(self._accept_s):
            accept = agent._perdure_press if event.is_press else agent.receive  # noqa: SLF001 - gateways have no way to it
            told: JsonObject = await accept(event)
        return told

    def _unaccepted(self, event: MessengerEvent, problem: Exception) -> Response:
        if isinstance(problem, BadRequest):
            return self._refused(413 if isinstance(problem, TooLarge) else 400, str(problem))
        why = str(problem) if isinstance(problem, PerdureError) else in_words(problem)
        log.warning("messenger %s: %s was not accepted, to be delivered again: %s", self.messenger.id, event.key, why)
        return JSONResponse({"ok": False}, 503, {"retry-after": str(RETRY_AFTER_S)})

    def _refused(self, status: int, why: str) -> Response:
        log.warning("messenger %s: a webhook was refused with %d: %.500s", self.messenger.id, status, why)
        return JSONResponse({"ok": False}, status)
