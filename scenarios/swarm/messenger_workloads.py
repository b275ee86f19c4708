"""Letters to agents behind a messenger, under the fire of the swarm: deaths, lost posts, pauses that the provider asks for, broken answers.

What is outside of every simulated process, the pretended Telegram and the model, is one `Post` for each seed. Each play sends the same
letters again, as providers do. At the end every letter stands in one reply, the reply shows the whole answer, in order, and whatever may
stand in a chat twice says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any, Final

from telegram.request import BaseRequest

from perdure.actors import Messenger, MessengerAgent, Telegram, Webhook, conversation_name
from perdure.policies import ChatRecovery, Delivery
from perdure.scenarios.provider.events import dumped
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.stories.messenger_agents import PRETENDED_SECRET, PRETENDED_TOKEN, script_of, update_of
from perdure.scenarios.stories.messenger_checks import Seen
from perdure.scenarios.swarm.outside import outside, outside_of
from perdure.scenarios.swarm.play_context import OFTEN, PlayContext, persist
from perdure.scenarios.telegram.bot_api import BotFault

LETTERS: Final = 40
ANSWERS: Final = 7  # the seed of what is answered
METHODS: Final = ("sendMessage", "editMessageText")
KINDS: Final = ("busy", "silent", "lost", "error")
FAULTS: Final = (
    Fault(kind=FaultKind.RESET, event=4),
    Fault(kind=FaultKind.STALL, event=9),
    Fault(kind=FaultKind.END, event=2),
)
LOOK_S: Final = 0.5


around_letters = partial(outside, "letters", script_of(LETTERS, ANSWERS), Pace(between_ms=20))
"""What letters need outside of the simulated processes."""

outside_of_letters = partial(outside_of, "letters")


def _wire_of_now() -> BaseRequest:
    return outside_of_letters().telegram.wire()


class Reception(MessengerAgent):
    """Answers letters."""

    chat_recovery = ChatRecovery(max_attempts=100, no_progress_timeout_ms=3_600_000)
    chat_stream_stall_timeout_ms = 2_000

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        """A bot of the pretended Telegram that is there when it is used."""
        bot = Telegram(
            PRETENDED_TOKEN,
            secret_token=PRETENDED_SECRET,
            text_max=500,
            edit_every_ms=100,
            requests_per_s=1_000,
            wire=_wire_of_now,
        )
        return [Messenger(id="post", adapter=bot, delivery=Delivery(first_pause_ms=50, burst_ms=100))]

    def get_model(self) -> Any:
        """The scripted one."""
        return outside_of_letters().model


async def letters(context: PlayContext) -> None:
    """Some letters in one or two chats, some at the same time, while posts get lost and connections break."""
    die, office = context.die, outside_of_letters()
    faults = [_fault(die) for _ in range(die.randint(0, 6))]
    rules = tuple(Rule(fault=each, times=die.randint(1, 2)) for each in FAULTS if die.random() < OFTEN)
    count = die.randint(1, 8)
    first = int(context.tag.strip("-") or 0) % 4 * 10
    chat_of = {number: 5 + first + die.randint(0, 1) for number in range(first, first + count)}
    office.telegram.faults = [] if context.patient else faults
    office.provider.set_plan(FaultPlan() if context.patient else FaultPlan(rules=rules))
    told = await asyncio.gather(*(_send(context, *each, die.choice((0.0, 0.2, 3.0))) for each in chat_of.items()))
    if context.patient and all(each is not None for each in told):
        await _judge(context, chat_of)


def _fault(die: Random) -> BotFault:
    return BotFault(method=die.choice(METHODS), kind=die.choice(KINDS), seconds=1, times=die.randint(1, 2))


async def _send(context: PlayContext, number: int, chat_id: int, pause_s: float) -> Any:
    await asyncio.sleep(pause_s)
    webhook = Webhook("POST", "/", {}, dumped(update_of(number, chat_id, ANSWERS)).encode())
    (event,) = Reception.messengers()[0].adapter.parse("post", webhook)
    return await persist(context, partial(_call, context, chat_id, "receive", event))


async def _call(context: PlayContext, chat_id: int, method: str, *args: Any) -> Any:
    name = conversation_name("post", f"telegram:{chat_id}")
    return await context.client.call(Reception, name, method, args, {})


async def _judge(context: PlayContext, chat_of: dict[int, int]) -> None:
    """Wait until everything is answered, with whatever was parked tried again, and look at all sides."""
    office = outside_of_letters()
    rows = {chat_id: await _settled(context, chat_id) for chat_id in sorted(set(chat_of.values()))}
    messages = office.telegram.log()["messages"]
    asked = [str(record.body) for record in office.provider.log()]
    seen = Seen(ANSWERS, dict.fromkeys(chat_of, 1), chat_of, rows, messages, asked)
    for complaint in seen.wrong():
        context.expect(False, complaint)


async def _settled(context: PlayContext, chat_id: int) -> list[dict[str, Any]]:
    while True:
        rows: list[dict[str, Any]] = await persist(
            context, partial(_call, context, chat_id, "list_deliveries", None, 500)
        )
        for row in rows:
            if row["status"] == "parked":
                await persist(context, partial(_call, context, chat_id, "retry_delivery", row["reply_id"]))
        if all(row["status"] == "settled" for row in rows):
            return rows
        await asyncio.sleep(LOOK_S)
