"""The story of `perdure run messenger` in its two worlds, and the same agent behind a real bot.

Under Ray everything is real but Telegram, which is a process of its own that speaks the Bot API over HTTP, and the model, which is the
scripted provider: webhooks come in over a socket, agents live in Ray actors, and processes are killed by `SIGKILL`. In the simulated
world the same agent, adapter and app play in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx
import uvicorn

from perdure.actors import Client, Runtime, messenger_app, messengers_of
from perdure.ledger import BadRequest
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.process import ProviderProcess
from perdure.scenarios.provider.sim import SimProvider
from perdure.scenarios.stories.chat_cast import introduced, surroundings
from perdure.scenarios.stories.chat_cast_worlds import SCRIPTED, named_model
from perdure.scenarios.stories.messenger_cast import SIMULATED, Clerk, environment, script_of, telegrams
from perdure.scenarios.stories.messenger_play import Handles, Mailroom, Watcher, chosen, messages_of
from perdure.scenarios.stories.messenger_verdict import Seen, as_object
from perdure.scenarios.stories.stage import RayStage, SimStage, Stage
from perdure.scenarios.telegram.server import TelegramProcess
from perdure.scenarios.telegram.sim import SimTelegram
from perdure.scenarios.testing.laboratory import Laboratory, Violation

PACE: Final = Pace(first_ms=50, between_ms=25)
TIMEOUT_MS: Final = 12 * 3_600_000.0
HOST: Final = "127.0.0.1"


class WebServer(uvicorn.Server):
    """uvicorn, which leaves signals to the command that it is part of."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """They are somebody else's."""
        yield


@contextlib.asynccontextmanager
async def served(app: Any, port: int = 0, host: str = HOST) -> AsyncIterator[str]:
    """Serve an app over HTTP meanwhile; gives its address."""
    server = WebServer(uvicorn.Config(app, host, port, log_level="warning", access_log=False, timeout_keep_alive=75))
    serving = asyncio.ensure_future(server.serve())
    while not server.started and not serving.done():  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0.01)
    if serving.done():
        raise BadRequest("port", f"nothing can be served on {host}:{port}")
    try:
        yield f"http://{host}:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


def under_ray(
    data: Path, updates: int, kills: int, chats: int, seed: int, watcher: Watcher
) -> tuple[dict[str, Any], list[str]]:
    """Play with a Ray of our own; what it came to, and what is wrong."""
    ways = chosen(updates, kills, seed)
    with (
        TelegramProcess() as telegram,
        ProviderProcess(script_of(messages_of(ways), seed), pace=PACE) as provider,
        surroundings({**provider.environment, **environment(telegram.base_url, SCRIPTED)}),
        RayStage(data, None) as stage,
    ):
        if not stage.is_own:
            words = "is served by another process's cluster; stop that one, or give another directory"
            raise BadRequest("data", f"{data} {words}")

        async def play() -> tuple[dict[str, Any], list[str]]:
            async with (
                served(messenger_app(Handles(stage), Clerk)) as address,
                httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as post,
            ):
                room = Mailroom(stage, telegram, post, watcher, seed, chats)
                began_s = stage.now_s()
                await room.play(ways)
                return await _judged(room, [str(record.body) for record in provider.log()], stage, began_s)

        return asyncio.run(play())


def in_simulation(
    updates: int, kills: int, chats: int, seed: int, watcher: Watcher
) -> tuple[dict[str, Any], list[str]]:
    """Play in a world of its own, which must then come to rest with every invariant kept."""
    ways = chosen(updates, kills, seed)
    provider, telegram = SimProvider(script_of(messages_of(ways), seed), pace=PACE), SimTelegram()
    telegrams[SIMULATED] = telegram
    values = environment(SIMULATED, SIMULATED)
    with surroundings(values), introduced(SIMULATED, provider.model(SIMULATED)), Laboratory(seed) as laboratory:

        async def play(client: Client) -> tuple[dict[str, Any], list[str]]:
            stage = SimStage(laboratory, client)
            transport = httpx.ASGITransport(messenger_app(Handles(stage), Clerk))
            async with httpx.AsyncClient(base_url="http://clerk.invalid", transport=transport, timeout=3600) as post:
                room = Mailroom(stage, telegram, post, watcher, seed, chats)
                await room.play(ways)
                return await _judged(room, [str(record.body) for record in provider.log()], stage, 0.0)

        told, wrong = laboratory.run(play, timeout_ms=TIMEOUT_MS)
        try:
            laboratory.heal()
            laboratory.settle()
            laboratory.simulation.raise_errors()
        except (Violation, ExceptionGroup) as problem:
            wrong.append(f"the simulated world: {problem}")
    return {**told, "verified": not wrong}, wrong


async def _judged(room: Mailroom, asked: list[str], stage: Stage, began_s: float) -> tuple[dict[str, Any], list[str]]:
    rows = {chat_id: await room.rows(chat_id) for chat_id in sorted(set(room.chat_of.values()))}
    messages = room.front.log()["messages"]
    seen = Seen(room.seed, room.acknowledged, room.chat_of, rows, messages, asked)
    wrong = [*room.wrong, *seen.wrong()]
    more = {
        "world": stage.world,
        "seed": room.seed,
        "webhooks": {key: room.webhooks[key] for key in ("sent", "acknowledged", "refused")},
        "kills": {key: room.kills[key] for key in ("agent", "supervisor")},
        "seconds": round(stage.now_s() - began_s, 3),
    }
    return as_object(seen, wrong, **more), wrong


def behind_a_bot(
    data: Path, token: str, secret: str, public_url: str, port: int, model: str, api: str, watcher: Watcher
) -> None:
    """The same agent behind a bot of somebody's, until it is stopped: webhooks are asked for at `public_url` and served on `port`."""
    values = environment(api, named_model(model), token, secret)
    with surroundings(values), Runtime(data) as runtime:

        async def serve() -> None:
            (messenger,) = messengers_of(Clerk).values()
            bot: Any = messenger.adapter
            async with served(messenger_app(runtime, Clerk), port) as address:
                await bot.set_webhook(public_url.rstrip("/") + messenger.webhook_path)
                watcher.say(
                    f"@{bot.user_name} answers. Webhooks: {public_url} -> {address}{messenger.webhook_path}. Ctrl-C ends it."
                )
                await asyncio.get_running_loop().create_future()

        asyncio.run(serve())
