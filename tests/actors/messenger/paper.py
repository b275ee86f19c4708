"""A messenger on paper: what stands outside of every simulated process, and an adapter that writes on it. Faults are said beforehand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar

from perdure.actors import ChatAgent, Client
from perdure.actors.events.observability import ObservedEvent, subscribe
from perdure.actors.messenger.adapter import (
    Button,
    MalformedUpdate,
    MessageGone,
    MessageUnchanged,
    Messenger,
    ProviderBusy,
    ProviderRefused,
    ProviderSilent,
    ProviderTrouble,
    ProviderUnreached,
    TextLimits,
    Webhook,
)
from perdure.actors.messenger.messenger_agent import MessengerAgent
from perdure.actors.messenger.messenger_events import Action, Kind, MessengerEvent, Person
from perdure.policies import Counting, Delivery
from perdure.scenarios.provider.events import Done, Finish, Role, Usage
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.script import Script, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import Outside
from tests.kit import address

LIMIT = 300
TROUBLES: dict[str, type[ProviderTrouble]] = {
    "busy": ProviderBusy,
    "unreached": ProviderUnreached,
    "silent": ProviderSilent,
    "lost": ProviderSilent,
    "refused": ProviderRefused,
    "gone": MessageGone,
}


class Board:
    """What people see, in every thread: messages by id, with all that each one said. And what will go wrong, request by request."""

    messages: ClassVar[dict[str, dict[str, list[str]]]] = {}
    deleted: ClassVar[list[str]] = []
    requests: ClassVar[list[tuple[float, str, str]]] = []
    buttons: ClassVar[dict[str, list[Button]]] = {}
    told: ClassVar[dict[str, list[str]]] = {}
    faults: ClassVar[dict[str, list[str]]] = {}
    busy_ms: ClassVar[float] = 3_000
    slow_s: ClassVar[float] = 0.01

    @classmethod
    def begin(cls, **faults: Sequence[str]) -> None:
        """An empty board. For each method what becomes of its first, second, … request: `ok`, or one of `TROUBLES`.

        `silent` was done and nobody is told; `lost` was not done and nobody is told.
        """
        cls.messages, cls.deleted, cls.requests = {}, [], []
        cls.buttons, cls.told = {}, {}
        cls.faults = {name: list(each) for name, each in faults.items()}
        cls.slow_s = 0.01

    @classmethod
    def thread(cls, name: str = "t") -> list[str]:
        """What stands in a thread now."""
        return [said[-1] for said in cls.messages.get(name, {}).values()]

    @classmethod
    def history(cls, name: str = "t") -> list[list[str]]:
        """All that each message of a thread said."""
        return list(cls.messages.get(name, {}).values())


class Paper:
    """The adapter."""

    provider = "paper"
    verifies = True

    def verify(self, webhook: Webhook) -> bool:
        return webhook.headers.get("x-secret") == "right"

    def parse(self, messenger_id: str, webhook: Webhook) -> list[MessengerEvent]:
        text = webhook.body.decode("utf-8", "replace")
        if text.startswith("malformed"):
            raise MalformedUpdate("update", "it says so itself")
        return [said(text, key=text, messenger_id=messenger_id)]

    def limits(self, thread_id: str) -> TextLimits:
        return TextLimits(LIMIT, Counting.CHARACTERS, 200)

    async def _asked(self, what: str, thread_id: str, done: Callable[[], Any]) -> Any:
        now_s = asyncio.get_running_loop().time()
        Board.requests.append((now_s, what, thread_id))
        await asyncio.sleep(Board.slow_s)
        planned = Board.faults.get(what, [])
        fate = planned.pop(0) if planned else "ok"
        result = done() if fate in ("ok", "silent") else None
        if fate == "bug":
            raise ZeroDivisionError("the adapter is broken")
        if fate != "ok":
            raise TROUBLES[fate](f"{what} is {fate}", Board.busy_ms if fate == "busy" else None)
        return result

    async def post(self, thread_id: str, text: str) -> str:
        return await self._post(thread_id, text, ())

    async def _post(self, thread_id: str, text: str, buttons: Sequence[Button]) -> str:
        def done() -> str:
            thread = Board.messages.setdefault(thread_id, {})
            message_id = f"m{sum(map(len, Board.messages.values())) + len(Board.deleted) + 1}"
            thread[message_id] = [text]
            Board.buttons[message_id] = [*buttons]
            return message_id

        return str(await self._asked("post", thread_id, done))

    async def edit(self, thread_id: str, message_id: str, text: str) -> None:
        await self._edit(thread_id, message_id, text, ())

    async def _edit(self, thread_id: str, message_id: str, text: str, buttons: Sequence[Button]) -> None:
        def done() -> None:
            said = Board.messages[thread_id][message_id]
            if (said[-1], Board.buttons[message_id]) == (text, [*buttons]):
                raise MessageUnchanged("it is as it is")
            said.append(text)
            Board.buttons[message_id] = [*buttons]

        await self._asked("edit", thread_id, done)

    async def delete(self, thread_id: str, message_id: str) -> None:
        def done() -> None:
            del Board.messages[thread_id][message_id]
            Board.deleted.append(message_id)

        await self._asked("delete", thread_id, done)

    async def typing(self, thread_id: str) -> None:
        await self._asked("typing", thread_id, lambda: None)


class PaperWithButtons(Paper):
    """The adapter of a provider that has buttons."""

    async def post_with_buttons(self, thread_id: str, text: str, buttons: Sequence[Button]) -> str:
        return await self._post(thread_id, text, buttons)

    async def edit_with_buttons(self, thread_id: str, message_id: str, text: str, buttons: Sequence[Button]) -> None:
        await self._edit(thread_id, message_id, text, buttons)

    async def answer_press(self, press_id: str, text: str) -> None:
        await self._asked("press", "", lambda: Board.told.setdefault(press_id, []).append(text))


def pressed(key: str, press_id: str, *, thread: str = "t", author: Person | None = None) -> MessengerEvent:
    """Somebody presses a button, by its key."""
    action_id, _, value = key.partition(":")
    action = Action(id=action_id, value=value, press_id=press_id)
    more: dict[str, Any] = {} if author is None else {"author": author}
    return said("", thread=thread, key=f"press {press_id}", kind=Kind.ACTION, action=action, **more)


def said(text: str, *, thread: str = "t", key: str = "", messenger_id: str = "paper", **more: Any) -> MessengerEvent:
    """Somebody writes something."""
    fields: dict[str, Any] = {
        "kind": Kind.DIRECT,
        "messenger_id": messenger_id,
        "provider": "paper",
        "thread_id": thread,
        "message_id": key or text,
        "dedupe_key": key or text,
        "author": Person(id="7", user_name="ada", full_name="Ada L."),
        "text": text,
        "is_direct": True,
    }
    return MessengerEvent(**{**fields, **more})


class Bot(MessengerAgent):
    """Answers by a script."""

    delivery: ClassVar[Delivery] = Delivery()
    chat_stream_stall_timeout_ms = 5_000

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="paper", adapter=Paper(), delivery=cls.delivery)]

    def get_model(self) -> Any:
        return Outside.model


STORY = "Once upon a time there was a programme that answered. " * 3
SCRIPT = Script(
    questions=(
        ScriptedQuestion(asks="story", concludes=STORY),
        ScriptedQuestion(asks="long", concludes="\n\n".join(f"Paragraph {n}. " + "word " * 30 for n in range(8))),
        ScriptedQuestion(asks="short", concludes="Yes"),
        ScriptedQuestion(
            asks="silence", verbatim=((Role(), Finish(reason="stop"), Usage(prompt=1, completion=0), Done()),)
        ),
    )
)


def answer_to(word: str) -> str:
    """What the model says to a question."""
    question = next(each for each in SCRIPT.questions if each.asks == word)
    return f"{question.concludes}: 0 results.\nThat is all. ∎"


class Chat:
    """One agent, as those see it who write to it."""

    def __init__(self, laboratory: Laboratory, client: Client, agent: type[MessengerAgent]) -> None:
        self.laboratory, self.client, self.agent = laboratory, client, agent

    async def do(self, method: str, *args: Any, name: str = "bot", **options: Any) -> Any:
        """Call a method."""
        return await self.client.call(self.agent, name, method, args, options)

    async def hear(self, text: str, name: str = "bot", **more: Any) -> Any:
        """A webhook comes in."""
        return await self.do("receive", said(text, **more), name=name)

    async def until(self, is_so: Callable[[], Any], seconds: float = 600, every_s: float = 0.02) -> None:
        """Let time pass until something is so."""
        async with asyncio.timeout(seconds):
            while True:
                found = is_so()
                if await found if isinstance(found, Awaitable) else found:
                    return
                await asyncio.sleep(every_s)

    async def rows(self, status: str | None = None) -> list[dict[str, Any]]:
        """The replies."""
        found: list[dict[str, Any]] = await self.do("list_deliveries", status, 500)
        return found

    async def rest(self) -> list[dict[str, Any]]:
        """Let time pass until no reply is open; all of them."""

        async def is_quiet() -> bool:
            return not any(each["status"] in ("waiting", "running") for each in await self.rows())

        await self.until(is_quiet, every_s=0.5)
        return await self.rows()

    def kill(self, name: str = "bot") -> None:
        """Kill the process in which the agent lives."""
        activation = self.laboratory.supervisors[-1].view.agents[address(self.agent, name)]
        self.laboratory.simulation.kill(activation.host_id)


Story = Callable[[Chat], Awaitable[Any]]


def visit(
    story: Story,
    agent: type[MessengerAgent] = Bot,
    *,
    script: Script = SCRIPT,
    plan: FaultPlan | None = None,
    pace: Pace | None = None,
    timeout_ms: float = 3_600_000,
    **simulation: Any,
) -> tuple[Any, list[ObservedEvent]]:
    """Play a story; the world must come to rest. What it gave, and what was told on the channel of messengers."""
    Outside.begin(script, plan, pace)
    heard: list[ObservedEvent] = []
    forget = subscribe("messenger", heard.append)
    try:
        with Laboratory(3, **simulation) as laboratory:
            result = laboratory.play(lambda client: story(Chat(laboratory, client, agent)), timeout_ms=timeout_ms)
            laboratory.settle()
            laboratory.simulation.raise_errors()
    finally:
        forget()
    assert Outside.provider.counters().illegal == 0
    return result, heard


__all__ = ["SCRIPT", "Board", "Bot", "Chat", "ChatAgent", "Laboratory", "Outside", "answer_to", "said", "visit"]
