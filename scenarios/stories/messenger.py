"""`perdure run messenger`: people write to a chat agent through a Telegram bot; or the same agent behind a real bot.

Under Ray only Telegram and the model are simulated, each by a server: webhooks arrive over a socket, and processes are killed by `SIGKILL`.
In the simulated world the same agent, adapter and app play in virtual time.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import httpx
import typer
import uvicorn
from starlette.types import ASGIApp

from perdure import BadRequest, Runtime
from perdure.actors import messenger_app, messengers_of
from perdure.scenarios.cast.clerk import Clerk, clerk_environment, script_of
from perdure.scenarios.cast.environment import SCRIPTED, SIMULATED, checked_model, with_environment
from perdure.scenarios.cast.outside import simulated
from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.commands.shown import in_words
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.scripted import ScriptedProvider
from perdure.scenarios.provider.server import SocketProvider
from perdure.scenarios.simulated_telegram import BotApi, SocketTelegram
from perdure.scenarios.stories.engine import Scenario, perform
from perdure.scenarios.stories.messenger_checks import Seen, figures_of
from perdure.scenarios.stories.messenger_play import Exchanges, Way, chosen, messages_of
from perdure.scenarios.stories.stage import Stage

UPDATES_MAX: Final = 10_000

Updates = Annotated[
    int, typer.Option(min=1, max=UPDATES_MAX, help="Number of exchanges; some have more than one message.")
]
Kills = Annotated[int, typer.Option(min=0, help="Number of exchanges in which a process is killed.")]
Chats = Annotated[int, typer.Option(min=1, max=500, help="Number of chats, each with an agent.")]
Seed = Annotated[int, typer.Option(help="Decides the order and the answers.")]
Token = Annotated[
    str | None,
    typer.Option(
        help="The token of a real bot, from BotFather: serve that bot until stopped.", envvar="PERDURE_BOT_TOKEN"
    ),
]
PublicUrl = Annotated[
    str | None, typer.Option(help="With --token: the HTTPS address at which Telegram reaches --port.")
]
Port = Annotated[int, typer.Option(min=0, max=65535, help="With --token: the port for webhooks.")]
Model = Annotated[
    str | None, typer.Option(help="With --token: the model, by its name in pydantic-ai, such as openai:gpt-5.")
]

PACE: Final = Pace(first_ms=50, between_ms=25)
HOST: Final = "127.0.0.1"
KINDS: Final = ("agent", "supervisor")
WEBHOOKS: Final = ("sent", "acknowledged", "refused")


class MessengerScenario(Scenario):
    """Exchanges of messages, some with a kill, spread over some chats."""

    name: ClassVar[str] = "messenger"
    needs_own_cluster: ClassVar[bool] = True

    def __init__(self, updates: int, kills: int, chats: int, seed: int) -> None:
        super().__init__(seed)
        self._ways, self._chats = chosen(updates, kills, seed), chats

    @contextlib.contextmanager
    def surroundings(self, data: Path | None) -> Iterator[None]:
        script = script_of(messages_of(self._ways), self.seed)
        with contextlib.ExitStack() as stack:
            if data is None:
                outside = stack.enter_context(simulated(script, PACE))
                self._telegram: BotApi = outside.telegram
                self._provider: ScriptedProvider = outside.provider
                values = clerk_environment(SIMULATED, SIMULATED)
            else:
                self._telegram = telegram = stack.enter_context(SocketTelegram())
                self._provider = provider = stack.enter_context(SocketProvider(script, pace=PACE))
                values = {**provider.environment, **clerk_environment(telegram.base_url, SCRIPTED)}
            stack.enter_context(with_environment(values))
            yield

    async def play(self, stage: Stage) -> None:
        played = await correspond(self, stage, self._telegram, self._provider, self._ways, self._chats)
        self._exchanges, self._seen = played
        self.wrong += [*self._exchanges.wrong, *self._seen.wrong()]

    def figures(self) -> dict[str, Any]:
        return {
            "webhooks": {key: self._exchanges.webhooks[key] for key in WEBHOOKS},
            "kills": {kind: self.kills[kind] for kind in KINDS},
            "seconds": round(self.seconds, 3),
            **figures_of(self._seen),
        }

    def sentences(self, told: dict[str, Any]) -> list[str]:
        webhooks, killed = told["webhooks"], in_words(told["kills"])
        said = [
            f"{told['answered']} of {told['messages']} messages were answered in {told['seconds']:.1f} s. Killed: {killed}.",
            f"{webhooks['sent']} webhooks came, {webhooks['refused']} of them were asked to come again.",
            f"{told['posts']} messages were posted and edited {told['edits']} times; {told['shown_recovering']} were seen recovering.",
            f"{told['seen_twice_and_told_so']} may be seen twice and say so.",
        ]
        if told["verified"]:
            said.append("Verified: every accepted message answered once, in order, with the whole answer.")
        return said


async def correspond(
    scenario: Scenario,
    stage: Stage,
    telegram: BotApi,
    provider: ScriptedProvider,
    ways: list[Way],
    chats: int,
    before: int = 0,
) -> tuple[Exchanges, Seen]:
    """Play these exchanges with a clerk, after `before` earlier messages, and return what was seen of them."""
    since = provider.counters().requests
    app = messenger_app(stage.client, Clerk)
    async with posting(app) if stage.world == "ray" else posting_inside(app) as post:
        kill = partial(scenario.kill, stage)
        room = Exchanges(stage, telegram, post, scenario.screen.say, kill, scenario.seed, chats, before)
        await room.play(ways)
        rows = {chat_id: await room.rows(chat_id) for chat_id in sorted(set(room.chat_of.values()))}
    asked = [str(record.body) for record in provider.log(since)]
    messages = telegram.log()["messages"]
    return room, Seen(scenario.seed, room.acknowledged, room.chat_of, rows, messages, asked)


# webhooks over HTTP


# It leaves signals to the command that it is part of.
class WebServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def served(app: ASGIApp, port: int = 0) -> AsyncIterator[str]:
    server = WebServer(uvicorn.Config(app, HOST, port, log_level="warning", access_log=False, timeout_keep_alive=75))
    serving = asyncio.ensure_future(server.serve())
    while not server.started and not serving.done():  # noqa: ASYNC110 - the server has no event for it
        await asyncio.sleep(0.01)
    if serving.done():
        raise BadRequest("port", f"nothing can be served on {HOST}:{port}")
    try:
        yield f"http://{HOST}:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@contextlib.asynccontextmanager
async def posting(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    async with served(app) as address, httpx.AsyncClient(base_url=address, timeout=30, trust_env=False) as post:
        yield post


def posting_inside(app: ASGIApp) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url="http://clerk.invalid", transport=httpx.ASGITransport(app), timeout=3600)


def _serve_bot(
    token: str, public_url: str | None, port: int, model: str | None, api: str, data: Path, world: WorldName
) -> None:
    # Its webhooks reach `port` by way of `public_url`.
    if world is WorldName.SIM:
        raise BadRequest("token", "a real bot cannot be reached in virtual time; leave --world out")
    if public_url is None or model is None:
        missing = "public-url" if public_url is None else "model"
        raise BadRequest(missing, f"is needed with --token: say --{missing}")
    values = clerk_environment(api, checked_model(model), token, secrets.token_urlsafe(32))
    with with_environment(values), Runtime(data) as runtime:

        async def serve() -> None:
            (messenger,) = messengers_of(Clerk).values()
            bot: Any = messenger.adapter
            async with served(messenger_app(runtime, Clerk), port) as address:
                await bot.set_webhook(public_url.rstrip("/") + messenger.webhook_path)
                print(
                    f"@{bot.user_name} answers. Webhooks: {public_url} -> {address}{messenger.webhook_path}. Ctrl-C ends it.",
                    flush=True,
                )
                await asyncio.get_running_loop().create_future()

        asyncio.run(serve())


def run_messenger(
    updates: Updates = 24,
    kills: Kills = 8,
    chats: Chats = 4,
    seed: Seed = 0,
    world: World = WorldName.RAY,
    token: Token = None,
    public_url: PublicUrl = None,
    port: Port = 8080,
    model: Model = None,
    bot_api: Annotated[
        str, typer.Option(help="With --token: another server of the Bot API, such as https://example.org/bot.")
    ] = "",
    data: Data = Path("perdure-data"),
    as_json: AsJson = False,
) -> None:
    """Let people write to a chat agent through a Telegram bot, while webhooks repeat, posts get lost, and processes are killed.

    Telegram is simulated by a process, over real HTTP, and the model is scripted. Webhooks are delivered again until they are acknowledged.
    The agent is killed before it accepts a message, after that, in the middle of an answer, and after a post whose reply it has not seen.
    Each accepted message must be answered once, in order, with the whole answer. A message that may be seen twice, because nobody can tell
    whether a post arrived, must say so. The exit code is 1 if anything differs.

    With --token the command serves a real bot instead, until it is stopped.

    Examples:
        perdure run messenger
        perdure run messenger --updates 60 --kills 30 --seed 7 --json
        perdure run messenger --world sim --updates 300 --kills 150
        perdure run messenger --token 123:ABC --public-url https://example.org --model openai:gpt-5
    """
    if token is not None:
        _serve_bot(token, public_url, port, model, bot_api, data, world)
        return
    perform(MessengerScenario(updates, kills, chats, seed), world, data, as_json=as_json)
