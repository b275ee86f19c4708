"""The exchanges of the messenger scenario, one after the other.

An *exchange* is one or more messages of one chat, sent as webhooks that are repeated until acknowledged. Its *way* says what breaks: a
process is killed at a moment that is visible in the chat, or the simulated Telegram fails by a plan.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

import httpx

from perdure.scenarios.cast.clerk import MESSENGER, PRETENDED_SECRET, Clerk, clerk_of, update_of
from perdure.scenarios.faults.strikes import Victim, home_of, hosts_in, supervisor_in
from perdure.scenarios.simulated_telegram import BotApi, BotFault
from perdure.scenarios.stories.stage import Stage

PATH: Final = f"/messengers/{MESSENGER}/webhook"
HEADERS: Final = {"x-telegram-bot-api-secret-token": PRETENDED_SECRET, "content-type": "application/json"}
LOOK_S: Final = 0.05
MOMENT_S: Final = 60.0
REST_S: Final = 240.0
HOLD_S: Final = 2.0
AGAIN_S: Final = 0.5
ROWS: Final = 500
HELD: Final = {"posted": "sendMessage", "edited": "editMessageText"}


@dataclass(frozen=True)
class Way:
    """What goes wrong with one exchange.

    Attributes:
        victim: the process to kill: `agent`, `supervisor`, or none.
        moment: `before` the webhook, `accepted`, `streaming`, or `posted` or `edited` (before the reply to that request is seen).
        messages: how many are sent at once; `late` is one more during the first answer.
        copies: how often each webhook is delivered at the same time.
    """

    name: str
    victim: str = ""
    moment: str = ""
    fault: BotFault | None = None
    messages: int = 1
    late: bool = False
    copies: int = 1


CALM: Final = (
    Way("nothing breaks"),
    Way("each webhook comes three times", copies=3),
    Way("three messages at once", messages=3),
    Way("a message comes during an answer", late=True),
    Way("Telegram asks for a pause", fault=BotFault(method="sendMessage", kind="busy", seconds=1)),
    Way("an edit is refused for a while", fault=BotFault(method="editMessageText", kind="busy", seconds=1, times=2)),
    Way("a post is done and its answer lost", fault=BotFault(method="sendMessage", kind="silent")),
    Way("a post is lost", fault=BotFault(method="sendMessage", kind="lost")),
    Way("an edit is lost", fault=BotFault(method="editMessageText", kind="lost")),
)
DEADLY: Final = (
    Way("the agent dies in the midst of its answer", "agent", "streaming"),
    Way("the agent dies after a post and before it knows", "agent", "posted"),
    Way("the agent dies as soon as it has accepted", "agent", "accepted", copies=2),
    Way("the supervisor dies in the midst of an answer", "supervisor", "streaming"),
    Way("the agent dies after an edit and before it knows", "agent", "edited", late=True),
    Way("the agent dies before the webhook", "agent", "before"),
    Way("the agent dies with three messages to answer", "agent", "accepted", messages=3, copies=2),
    Way("the supervisor dies before the webhook", "supervisor", "before", copies=2),
)


Kill = Callable[[str, Victim], Awaitable[None]]


@dataclass
class Exchanges:
    """Plays exchanges. `post` is a client of the webhook app. `before` is how many messages were sent earlier, in other chats."""

    stage: Stage
    front: BotApi
    post: httpx.AsyncClient
    say: Callable[[str], None]
    kill: Kill
    seed: int
    chats: int
    before: int = 0
    acknowledged: Counter[int] = field(default_factory=Counter)
    webhooks: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    chat_of: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._number = self.before

    async def play(self, ways: list[Way]) -> None:
        for at, way in enumerate(ways):
            chat_id = 501 + self.before + at % self.chats
            began_s = self.stage.now_s()
            await self._exchange(way, chat_id)
            self.say(f"{at + 1:4}  {way.name}: {self.stage.now_s() - began_s:.1f} s")

    async def _exchange(self, way: Way, chat_id: int) -> None:
        seen = len(self._posts(chat_id))
        if way.fault is not None:
            self.front.plan([way.fault.model_copy(update={"chat_id": chat_id})])
        if way.moment in HELD:
            self.front.plan([BotFault(method=HELD[way.moment], kind="hold", chat_id=chat_id, seconds=HOLD_S)])
        if way.moment == "before":
            await self._kill(way, chat_id)
        await asyncio.gather(*(self._send(chat_id, way.copies) for _ in range(way.messages)))
        late = asyncio.ensure_future(self._send_late(chat_id, seen)) if way.late else None
        if way.moment and way.moment != "before" and await self._moment(way, chat_id, seen):
            await self._kill(way, chat_id)
        if late is not None:
            await late
        await self._rest(way, chat_id)

    async def _send_late(self, chat_id: int, seen: int) -> None:
        async def is_answering() -> bool:
            return len(self._posts(chat_id)) > seen

        await self.stage.until(is_answering, MOMENT_S, LOOK_S)
        await self._send(chat_id, 1)

    async def _send(self, chat_id: int, copies: int) -> None:
        number, self._number = self._number, self._number + 1
        self.chat_of[number] = chat_id
        body = json.dumps(update_of(number, chat_id, self.seed)).encode()
        await asyncio.gather(*(self._deliver(number, body) for _ in range(copies)))

    async def _deliver(self, number: int, body: bytes) -> None:
        async def is_accepted() -> bool:
            is_ok = False
            with suppress(httpx.HTTPError):
                is_ok = (await self.post.post(PATH, content=body, headers=HEADERS)).is_success
            self.webhooks.update(["sent", "acknowledged" if is_ok else "refused"])
            self.acknowledged[number] += is_ok
            return is_ok

        if not await self.stage.until(is_accepted, REST_S, AGAIN_S):
            self.wrong.append(f"message {number} was never accepted")

    # moments and deaths

    async def _moment(self, way: Way, chat_id: int, seen: int) -> bool:
        # Returns False, and notes that, if it does not come.
        if way.moment == "accepted":
            return True

        async def has_come() -> bool:
            if way.moment == "streaming":
                return len(self._posts(chat_id)) > seen
            asked = [each for each in self.front.log()["asked"] if each["chat_id"] == chat_id]
            return any(each["method"] == HELD[way.moment] and each["fate"] == "hold" for each in asked[-3:])

        return await self._until(has_come, f"{way.name}: its moment did not come")

    async def _until(
        self, condition: Callable[[], Awaitable[bool]], otherwise: str, within_s: float = MOMENT_S
    ) -> bool:
        if await self.stage.until(condition, within_s, LOOK_S):
            return True
        self.wrong.append(otherwise)
        return False

    async def _kill(self, way: Way, chat_id: int) -> None:
        if way.moment == "before":
            await self.rows(chat_id)  # wakes the agent: asleep, it has no process that could die
        overview = await self.stage.ask("ps", ROWS)
        home = home_of(overview, self.stage.agent_id(Clerk, clerk_of(chat_id)))
        victim = supervisor_in(overview) if way.victim == "supervisor" else hosts_in(overview).get(home)
        if victim is not None:  # asleep, it has no process
            await self.kill(way.victim, victim)

    async def _rest(self, way: Way, chat_id: int) -> None:
        # Until every accepted message of the chat is answered, or something is parked.
        async def is_over() -> bool:
            rows = await self.rows(chat_id)
            return bool(rows) and all(row["status"] not in ("waiting", "running") for row in rows)

        await self._until(is_over, f"{way.name}: it was not answered within {REST_S:.0f} s", REST_S)

    async def rows(self, chat_id: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = await self.stage.call(Clerk, clerk_of(chat_id), "list_deliveries", None, ROWS)
        return found

    def _posts(self, chat_id: int) -> list[dict[str, Any]]:
        return [each for each in self.front.log()["messages"] if each["chat_id"] == chat_id]


def chosen(updates: int, kills: int, seed: int) -> list[Way]:
    """Draw exchanges, some of them with a kill. Every way comes once before any comes twice."""
    die = Random(f"{seed} ways")
    deaths = min(kills, updates)
    ways = [DEADLY[at % len(DEADLY)] for at in range(deaths)] + [CALM[at % len(CALM)] for at in range(updates - deaths)]
    die.shuffle(ways)
    return ways


def messages_of(ways: list[Way]) -> int:
    return sum(way.messages + way.late for way in ways)
