"""`perdure run messenger`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.ledger import BadRequest
from perdure.scenarios.commands.options import AsJson, Data, World, WorldName
from perdure.scenarios.stories.engine import perform
from perdure.scenarios.stories.messenger import MessengerScenario, behind_a_bot

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
BotApi = Annotated[
    str, typer.Option(help="With --token: another server of the Bot API, such as https://example.org/bot.")
]


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
    bot_api: BotApi = "",
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
        _serve(token, public_url, port, model, bot_api, data, world)
        return
    perform(MessengerScenario(updates, kills, chats, seed), world, data, as_json=as_json)


def _serve(
    token: str,
    public_url: str | None,
    port: int,
    model: str | None,
    api: str,
    data: Path,
    world: WorldName,
) -> None:
    if world is WorldName.SIM:
        raise BadRequest("token", "a real bot cannot be reached in virtual time; leave --world out")
    if public_url is None or model is None:
        missing = "public-url" if public_url is None else "model"
        raise BadRequest(missing, f"is needed with --token: say --{missing}")
    behind_a_bot(data, token, secrets.token_urlsafe(32), public_url, port, model, api)
