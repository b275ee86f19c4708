"""Questions to chat agents and letters to agents behind a messenger, under the fire of the swarm: deaths, lost posts, broken connections.

The model and the pretended Telegram are outside of every simulated process. Each play asks and sends the same again, as clients and
providers do. At the end each effect of a tool happened once at most, and every request to the model was legal. Each caller has the whole
answer, unless a call died at work (then the model says that its outcome is unknown) or the patience of recovery was exhausted. Every letter
stands in one reply that shows the whole answer, and whatever may stand in a chat twice says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any, Final

from perdure import AskClosed, TurnResult
from perdure.actors import Webhook
from perdure.policies import TURN_ENDED, Answerer, steered_message
from perdure.scenarios.cast.calculator import EXPENSES, QUESTIONS, TOPICS, Calculator, answer_about
from perdure.scenarios.cast.clerk import Reception, clerk_environment, clerk_of, script_of, update_of
from perdure.scenarios.cast.environment import SIMULATED, outside, with_environment
from perdure.scenarios.cast.outside import Outside, simulated
from perdure.scenarios.provider.events import dumped
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.provider.script import Script
from perdure.scenarios.simulated_telegram import BotFault
from perdure.scenarios.stories.messenger_checks import Seen
from perdure.scenarios.swarm.play_context import OFTEN, PlayContext

UNKNOWN: Final = ("OUTCOME UNKNOWN", "whose outcome is still unknown")  # of a call, or of one that it would repeat
EXHAUSTED: Final = ("recovery_exhausted", "max_attempts_exceeded", "work_budget_exceeded", "no_progress_timeout")
BREAKS: Final = (
    Fault(kind=FaultKind.RESET, event=4),
    Fault(kind=FaultKind.END, event=6),
    Fault(kind=FaultKind.STALL, event=3),
    Fault(kind=FaultKind.STATUS, status=503),
    Fault(kind=FaultKind.ERROR, event=5),
)
LETTERS: Final = 40
ANSWERS: Final = 7  # the seed of what is answered
METHODS: Final = ("sendMessage", "editMessageText")
KINDS: Final = ("busy", "silent", "lost", "error")
BREAKS_OF_LETTERS: Final = (
    Fault(kind=FaultKind.RESET, event=4),
    Fault(kind=FaultKind.STALL, event=9),
    Fault(kind=FaultKind.END, event=2),
)
LOOK_S: Final = 0.5

around_chats = partial(simulated, Script(questions=(*QUESTIONS, *EXPENSES)))
"""What chats need outside of the simulated processes."""


@contextmanager
def around_letters() -> Iterator[Outside]:
    values = clerk_environment(SIMULATED, SIMULATED)
    with with_environment(values), simulated(script_of(LETTERS, ANSWERS), Pace(between_ms=20)) as found:
        yield found


async def chats(context: PlayContext) -> None:
    """Questions to one or two chat agents, some at the same time, while connections break."""
    die = context.die
    topics = die.sample(range(TOPICS), die.randint(1, 4))
    outside().provider.set_plan(FaultPlan(rules=() if context.patient else _rules(die, BREAKS, 3)))
    outside().provider.open_door()
    chatting = [_chat(context, f"{context.tag}chat-{topic % 2}", topic) for topic in topics]
    pauses = [die.choice((0.0, 0.1, 0.4, 2.0)) for topic in topics if die.random() < OFTEN]
    steering = [
        _steer(context, f"{context.tag}chat-{topics[at] % 2}", topics[at], each) for at, each in enumerate(pauses)
    ]
    await asyncio.gather(*chatting, *steering)


def _rules(die: Random, faults: Sequence[Fault], times_max: int) -> tuple[Rule, ...]:
    return tuple(Rule(fault=each, times=die.randint(1, times_max)) for each in faults if die.random() < OFTEN)


async def _chat(context: PlayContext, name: str, topic: int) -> None:
    result = await context.persist(partial(_to_its_end, context, name, topic))
    if result is None or not context.patient:
        return
    errors = [part.get("errorText", "") for part in (result.message or {"parts": []})["parts"]]
    unknown = any(words in error for error in errors for words in UNKNOWN)
    is_excused = unknown or result.reason in EXHAUSTED
    context.expect(result.ok or is_excused, f"the turn about topic {topic} ended {result.status}: {result.error}")
    if result.ok and not unknown:
        context.expect(
            result.text.endswith(answer_about(topic)), f"the answer about topic {topic} is not whole: {result.text}"
        )


async def _to_its_end(context: PlayContext, name: str, topic: int) -> TurnResult:
    request_id = f"{name}-{topic}"
    call = partial(context.client.call, Calculator, name)
    result: TurnResult = await call("chat", (f"Please: topic {topic}.",), {"request_id": request_id})
    while result.status == "interrupted":
        result = await call("attach", (request_id,), {"first": result.next_event})
    return result


async def _steer(context: PlayContext, name: str, topic: int, pause_s: float) -> None:
    # Whatever turn is under way by then; or none.
    await asyncio.sleep(pause_s)
    request_id, call = f"{name}-steer-{topic}", partial(context.client.call, Calculator, name)
    receipt = await context.persist(partial(call, "steer", (f"Mind the {topic}.",), {"request_id": request_id}))
    ended = await context.persist(partial(call, "attach", (request_id,), {"follow": True}))
    turn = await context.persist(partial(call, "inspect_turn", (request_id,), {}))
    if turn is not None and turn["steers"]:  # its answer is in the transcript when it has ended
        await context.persist(partial(call, "attach", (turn["steers"],), {"follow": True}))
    messages = await context.persist(partial(call, "get_messages", (), {}))
    if receipt is None or ended is None or messages is None:
        return
    said = [steered_message(part) or each for each in messages for part in each["parts"]]
    places = {id(each) for each in said if each["id"] == receipt["message_id"]}
    context.expect(len(places) == 1, f"what was said about {topic} stands in {len(places)} places; its turn is {ended}")
    context.expect(
        (ended.reason == "steered") is (receipt["message_id"] not in {each["id"] for each in messages}),
        f"what was said about {topic} was not read where it stands; its turn is {ended}",
    )


async def approvals(context: PlayContext) -> None:
    """Calls that wait for people, of whom several answer each at the same time, by the list of questions."""
    die = context.die
    amounts = die.sample(range(TOPICS), die.randint(1, 3))
    outside().provider.set_plan(FaultPlan())
    outside().provider.open_door()
    plans = [
        [(die.choice((True, True, False)), die.choice((0.0, 0.0, 0.01, 0.5, 8.0))) for _ in range(3)] for _ in amounts
    ]
    await asyncio.gather(*(_expense(context, *each) for each in zip(amounts, plans, strict=True)))


async def _expense(context: PlayContext, amount: int, plan: Sequence[tuple[bool, float]]) -> None:
    name = f"{context.tag}purse-{amount % 2}"
    request_id, call = f"{name}-{amount}", partial(context.client.call, Calculator, name)
    await context.persist(partial(call, "submit_messages", (f"Please: expense {amount}.",), {"request_id": request_id}))
    ask_id, turn = "", None
    while not ask_id and (turn is None or turn["status"] not in TURN_ENDED):  # or another play has answered
        rows = await context.persist(partial(context.client.ask, "asks", "purse"))
        mine = [each["ask_id"] for each in rows or () if each["args"] == {"amount": amount}]
        context.expect(len(mine) <= 1, f"expense {amount} is asked for {len(mine)} times")
        ask_id = "".join(mine[:1])
        turn = await context.persist(partial(call, "inspect_turn", (request_id,), {}))
        await asyncio.sleep(0 if ask_id else LOOK_S)
    said = await asyncio.gather(*(_allow(context, ask_id, number, *each) for number, each in enumerate(plan)))
    ended = await context.persist(partial(call, "attach", (request_id,), {"follow": True}))
    counted = [approved for (approved, _), counts in zip(plan, said, strict=True) if counts]
    context.expect(len(counted) <= 1, f"{len(counted)} answers to expense {amount} counted")
    spent = outside().effects[f"spend {amount}"]
    context.expect(spent <= 1, f"expense {amount} was made {spent} times")
    if counted and ended is not None:
        context.expect(counted[0] or not spent, f"expense {amount} was made though it was denied")
    rows = await context.persist(partial(context.client.ask, "asks", "purse"))
    left = [each for each in rows or () if each["ask_id"] == ask_id]
    context.expect(not left or ended is None, f"expense {amount} is asked for though its turn has ended")


async def _allow(context: PlayContext, ask_id: str, number: int, approved: bool, pause_s: float) -> bool:
    await asyncio.sleep(pause_s)
    by, answer_id = Answerer(f"person {number}", ["purse"]), f"{context.tag}{ask_id}-{number}"
    give = partial(context.client.answer, ask_id, approved, by, "swarm", answer_id=answer_id)
    try:
        return bool(ask_id) and await context.persist(give) is not None
    except AskClosed:  # somebody else was first
        return False


async def letters(context: PlayContext) -> None:
    """Some letters in one or two chats, some at the same time, while posts get lost and connections break."""
    die, office = context.die, outside()
    faults = [
        BotFault(method=die.choice(METHODS), kind=die.choice(KINDS), seconds=1, times=die.randint(1, 2))
        for _ in range(die.randint(0, 6))
    ]
    rules = _rules(die, BREAKS_OF_LETTERS, 2)
    count = die.randint(1, 8)
    first = int(context.tag.strip("-") or 0) % 4 * 10
    chat_of = {number: 5 + first + die.randint(0, 1) for number in range(first, first + count)}
    office.telegram.faults = [] if context.patient else faults
    office.provider.set_plan(FaultPlan(rules=() if context.patient else rules))
    told = await asyncio.gather(*(_send(context, *each, die.choice((0.0, 0.2, 3.0))) for each in chat_of.items()))
    if context.patient and all(each is not None for each in told):
        await _judge(context, chat_of)


async def _send(context: PlayContext, number: int, chat_id: int, pause_s: float) -> object:
    await asyncio.sleep(pause_s)
    webhook = Webhook("POST", "/", {}, dumped(update_of(number, chat_id, ANSWERS)).encode())
    (messenger,) = Reception.messengers()
    (event,) = messenger.adapter.parse(messenger.id, webhook)
    return await context.call(Reception, clerk_of(chat_id), "receive", event)


async def _judge(context: PlayContext, chat_of: dict[int, int]) -> None:
    office = outside()
    rows = {chat_id: await _settled(context, chat_id) for chat_id in sorted(set(chat_of.values()))}
    messages = office.telegram.log()["messages"]
    asked = [str(record.body) for record in office.provider.log()]
    seen = Seen(ANSWERS, dict.fromkeys(chat_of, 1), chat_of, rows, messages, asked)
    for complaint in seen.wrong():
        context.expect(False, complaint)


async def _settled(context: PlayContext, chat_id: int) -> list[dict[str, Any]]:
    while True:
        rows: list[dict[str, Any]] = await context.call(Reception, clerk_of(chat_id), "list_deliveries", None, 500)
        for row in rows:
            if row["status"] == "parked":
                await context.call(Reception, clerk_of(chat_id), "retry_delivery", row["reply_id"])
        if all(row["status"] == "settled" for row in rows):
            return rows
        await asyncio.sleep(LOOK_S)
