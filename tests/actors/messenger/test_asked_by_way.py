"""Questions of runs that an agent of a messenger posts with buttons (`via`): told once, answered in the ledger, whoever dies when."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Literal

import pytest

from perdure.actors import Agent, KillPoint, Messenger, RunContext, exposed
from perdure.actors.messenger.adapter import ButtonAdapter
from perdure.actors.messenger.messenger_events import Person, conversation_name
from perdure.ledger import AlreadyAnswered, BadRequest
from perdure.policies import Answerer
from perdure.scenarios.simulated_telegram import BotApi, SimWire
from tests.actors.messenger.paper import Board, Bot, Chat, PaperWithButtons, pressed, visit
from tests.actors.messenger.test_approvals import BEN, keys
from tests.kit import Death

OPS, ADA, BEN_IS = "ops-thread", "paper:Ada L. (7)", "paper:Ben (8)"


class Desk(Bot):
    """Shows questions to the people of one thread."""

    ask_threads: ClassVar[Mapping[str, Any]] = {"ops": OPS, "managers": ("paper", "high")}

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="paper", adapter=PaperWithButtons())]


class Colour(enum.Enum):
    """What a wall has."""

    RED = "red"
    BLUE = "blue"


ASKED: dict[str, Any] = {"question": "Print it?", "to": "ops"}


class Press(Agent):
    """Asks what it was told to ask."""

    desk: ClassVar[Any] = Desk
    asked: ClassVar[dict[str, Any]] = ASKED

    async def run(self, input: str, run: RunContext) -> list[Any]:
        answer = await run.ask(**self.asked, via=self.agent(self.desk, "ops"))
        value = answer.value.value if isinstance(answer.value, Colour) else answer.value
        return [value, answer.who, answer.channel]


Story = Callable[["Room"], Awaitable[Any]]


class Room:
    """A run that asks, and the people of a thread."""

    def __init__(self, chat: Chat, press: type[Agent], desk: type[Bot]) -> None:
        self.chat, self.client, self.press_class, self.desk = chat, chat.client, press, desk
        self.presses = 0

    async def begin(self, buttons: int = 2) -> None:
        """The run asks, and its question stands there."""
        await self.client.start(self.press_class, "go", run_id="r")
        await self.chat.until(lambda: bool(Board.messages))
        await self.chat.until(lambda: len(keys()) >= buttons)

    async def press(self, label: str, author: Person | None = None, thread: str = OPS, key: str = "") -> list[str]:
        """Somebody presses a button; what was told to them."""
        self.presses += 1
        press_id = f"p{self.presses}"
        event = pressed(key or keys(label)[0], press_id, thread=thread, author=author)
        await self.client.call(self.desk, conversation_name("paper", thread), "_perdure_press", (event,), {})
        await self.chat.until(lambda: press_id in Board.told)
        return Board.told[press_id]

    async def end(self) -> Any:
        """The end of the run."""
        return (await self.client.run(self.press_class, "go", run_id="r")).output

    async def rest(self) -> None:
        """Until the thread's agent has nothing to deliver."""

        async def is_quiet() -> bool:
            rows = await self.client.call(self.desk, conversation_name("paper", OPS), "list_deliveries", (), {})
            return not any(each["status"] in ("waiting", "running") for each in rows)

        await self.chat.until(is_quiet, every_s=0.5)


def play(
    story: Story,
    *,
    press: type[Press] = Press,
    desk: type[Bot] = Desk,
    asked: Mapping[str, Any] = ASKED,
    **simulation: Any,
) -> Any:
    """Play a story with a run that asks so."""
    press.asked, press.desk = dict(asked), desk
    Board.begin()
    result, _ = visit(lambda chat: story(Room(chat, press, desk)), desk, **simulation)
    return result


@pytest.mark.parametrize(("label", "value"), [("Yes", True), ("No", False)])
def test_a_press_answers_the_run_in_the_ledger_with_who_and_where(label: str, value: bool) -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        assert Board.thread(OPS) == ["Print it?"]
        assert await room.press(label) == [f"{label}, said by {ADA}."]
        output = await room.end()
        await room.rest()
        (row,) = await room.client.ask("asks", None, True)
        assert [(each["who"], each["channel"]) for each in row["answers"]] == [(ADA, "messenger")]
        return output

    assert play(story) == [value, ADA, "messenger"]
    assert Board.thread(OPS) == [f"Print it?\n\n**{label}, said by {ADA}.**"]
    assert keys() == []


@pytest.mark.parametrize(
    ("schema", "labels", "label", "value"),
    [
        (["on the web", "next week"], ["on the web", "next week"], "next week", "next week"),
        (Literal["a", "b", "c"], ["a", "b", "c"], "c", "c"),
        (Literal[1, 2], ["1", "2"], "2", 2),
        (["only"], ["only"], "only", "only"),
        (Colour, ["red", "blue"], "blue", "blue"),
        ([f"way {number}" for number in range(8)], [f"way {number}" for number in range(8)], "way 7", "way 7"),
        (["x" * 100, "y"], ["x" * 59 + "…", "y"], "x" * 59 + "…", "x" * 100),
    ],
)
def test_there_is_a_button_for_each_choice(schema: Any, labels: list[str], label: str, value: Any) -> None:
    async def story(room: Room) -> Any:
        await room.begin(len(labels))
        assert [each.label for each in Board.buttons["m1"]] == labels
        await room.press(label)
        return await room.end()

    assert play(story, asked={**ASKED, "schema": schema})[0] == value


@pytest.mark.parametrize("schema", [str, int, list[str], [f"way {number}" for number in range(9)]])
def test_what_cannot_be_pressed_says_how_it_is_answered(schema: Any) -> None:
    async def story(room: Room) -> Any:
        await room.begin(0)
        await room.rest()
        assert "Answer it by `perdure answer r:1 ANSWER`" in Board.thread(OPS)[0]
        await room.client.ask("asks")
        value = {"str": "x", "int": 3}.get(getattr(schema, "__name__", ""), ["a"] if schema == list[str] else "way 1")
        await room.client.answer("r:1", value, Answerer("ada", is_operator=True), "cli")
        return await room.end()

    assert play(story, asked={**ASKED, "schema": schema})[1:] == ["ada", "cli"]


def test_of_two_presses_the_first_counts_and_all_others_are_told() -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        (no,) = keys("No")
        first = await room.press("Yes", BEN)
        late = await room.press("No", key=no)
        with pytest.raises(AlreadyAnswered):
            await room.client.answer("r:1", False, Answerer("ada", is_operator=True), "cli")
        return first, late, await room.end()

    first, late, output = play(story)
    assert first == [f"Yes, said by {BEN_IS}."]
    assert late == [f"Answered already. Yes, said by {BEN_IS}."]
    assert output == [True, BEN_IS, "messenger"]


def test_what_was_answered_elsewhere_is_told_to_the_presser() -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        await room.client.answer("r:1", False, Answerer("carl", is_operator=True), "cli")
        output = await room.end()
        assert await room.press("Yes") == ["Answered already. No, said by carl."]
        await room.rest()
        return output

    assert play(story) == [False, "carl", "cli"]
    assert Board.thread(OPS) == ["Print it?\n\n**No, said by carl.**"]


@pytest.mark.parametrize(
    ("end", "words"), [("expire", "It has expired."), ("cancel", "No longer asked."), ("clear", "No longer asked.")]
)
def test_what_is_asked_no_more_is_told_to_the_presser(end: str, words: str) -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        if end == "expire":
            await room.end()
        else:
            await room.client.ask("cancel", "r", "", "enough")
        if end == "clear":
            await asyncio.sleep(5)
            await room.client.ask("clear", ["r"])
            await asyncio.sleep(5)
        told = await room.press("Yes")
        await room.rest()
        return told

    told = play(story, asked={**ASKED, "expires": 60, "otherwise": False} if end == "expire" else ASKED)
    assert told in ([words], ["This question is not known here any more."])
    assert Board.thread(OPS)[0].endswith(f"**{words}**")


def test_two_who_say_the_same_are_waited_for_and_one_with_two_names_is_one() -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        first = await room.press("Yes")
        renamed = await room.press("Yes", Person(id="7", full_name="Eve"))
        await room.rest()
        assert f"So far: Yes, said by {ADA}." in Board.thread(OPS)[0]
        assert len(keys()) == 2
        last = await room.press("Yes", BEN)
        return first, renamed, last, await room.end()

    first, renamed, last, output = play(story, asked={**ASKED, "people": 2})
    assert first == [f"2 people are asked to say the same. So far: Yes, said by {ADA}."]
    assert "has answered so already" in renamed[0]
    assert last == [f"Yes, said by {BEN_IS}."]
    assert output == [True, BEN_IS, "messenger"]


def test_those_of_a_thread_answer_as_those_whose_thread_it_is() -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        assert list(Board.messages) == ["high"]
        assert await room.press("Yes", thread="high") == [f"Yes, said by {ADA}."]
        return await room.end()

    assert play(story, asked={**ASKED, "to": "managers"}) == [True, ADA, "messenger"]


def test_a_thread_that_is_that_of_the_desk_and_not_of_those_who_are_asked_may_not_answer() -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        told = await room.press("Yes")
        await room.client.answer("r:1", True, Answerer("ada", is_operator=True), "cli")
        await room.end()
        return told

    (told,) = play(story, asked={**ASKED, "to": "board"})
    assert told == f"{ADA} is not asked; board may answer"


def test_what_a_caller_says_of_a_question_is_not_shown_to_people() -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        row = await room.client.ask("ask", "r", 1)
        desk: Any = room.client.agent(Desk, "ops")
        for made_up in ({}, {"ask_id": "r:2"}, {"ask_id": 7}, {**row, "ask_id": "s:1"}):
            await desk.on_ask(made_up)
        await desk.on_ask({**row, "question": "Pizza?", "to": ["managers"]})
        await room.chat.until(lambda: len(Board.thread(OPS)) == 2)
        await room.press("Yes")
        await desk.on_ask(row)
        await room.rest()
        return await room.end()

    assert play(story)[0] is True
    assert [*Board.messages] == [OPS]
    assert all("Print it?" in each for each in Board.thread(OPS))
    assert len(Board.thread(OPS)) == 2


class Named(Desk):
    """One agent for all threads, which chooses the thread itself."""

    ask_threads: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        return [Messenger(id="paper", adapter=PaperWithButtons(), conversation=lambda _event: "ops")]

    def ask_thread(self, ask: Mapping[str, Any]) -> str:
        return OPS if "ops" in ask["to"] else "nowhere"


def test_an_agent_that_has_all_threads_posts_where_its_method_says() -> None:
    async def story(room: Room) -> Any:
        await room.begin()
        event = pressed(keys("Yes")[0], "p", thread=OPS)
        await room.client.call(Named, "ops", "_perdure_press", (event,), {})
        return await room.end()

    assert play(story, desk=Named) == [True, ADA, "messenger"]


class Notes(Agent):
    """Notes what it is told, and is no messenger."""

    @exposed
    def on_ask(self, ask: dict[str, Any]) -> None:
        self.state["asks"] = [*self.state.get("asks", []), ask["ask_id"]]

    @exposed(repeatable=True)
    def noted(self) -> list[str]:
        """The questions."""
        found: list[str] = self.state.get("asks", [])
        return found


class Mute(Agent):
    """Has no such method."""

    def on_ask(self, ask: dict[str, Any]) -> None:
        """Is not exposed."""


@pytest.mark.parametrize(
    ("via", "to", "field"),
    [
        (lambda _: "ops", "ops", "via"),
        (lambda _: Desk, "ops", "via"),
        (lambda agent: agent.agent(Mute, "ops"), "ops", "via"),
        (lambda agent: agent.agent(Press, "ops"), "ops", "via"),
        (lambda agent: agent.agent(Desk, "other"), "nobody", "ask_threads"),
        (lambda agent: agent.agent(Desk, ""), "ops", "name"),
        (lambda agent: agent.agent("Desk", "ops"), "ops", "agent_class"),
    ],
)
def test_a_way_that_leads_nowhere_is_refused_where_it_is_given(via: Callable[[Any], Any], to: str, field: str) -> None:
    Lost.via, Lost.to = via, to

    async def story(chat: Chat) -> Any:
        return (await chat.client.run(Lost, "go")).output

    Board.begin()
    assert visit(story)[0] == field


class Lost(Agent):
    """Asks by a way that leads nowhere."""

    via: ClassVar[Any] = None
    to: ClassVar[str] = ""

    async def run(self, input: str, run: RunContext) -> str:
        with pytest.raises(BadRequest) as refused:
            await run.ask("Print it?", to=self.to, via=type(self).via(self))
        assert str(refused.value)
        return refused.value.field


class WrongThread(Desk):
    ask_threads: ClassVar[Mapping[str, Any]] = {"ops": ("fax", "1")}


class NoThread(Desk):
    ask_threads: ClassVar[Any] = ["ops"]


class BlankThread(Desk):
    ask_threads: ClassVar[Mapping[str, Any]] = {"ops": " "}


@pytest.mark.parametrize("desk", [WrongThread, NoThread, BlankThread])
def test_threads_that_are_none_are_refused_where_the_class_is_used(desk: type[Bot]) -> None:
    async def story(chat: Chat) -> None:
        with pytest.raises(BadRequest, match="ask_threads"):
            await chat.hear("hi")

    visit(story, desk)


class Wordy(Press):
    """Asks by way of an agent of its own kind of notes."""

    desk: ClassVar[Any] = Notes


DEATHS = [
    (KillPoint.MID_RUN, "ask 1"),
    (KillPoint.MID_RUN, "question 1 shown"),
    (KillPoint.BEFORE_COMMIT, ""),
    (KillPoint.MID_HANDLER, ""),
    (KillPoint.BEFORE_HANDLER_COMMIT, ""),
    (KillPoint.AFTER_HANDLER_COMMIT, ""),
    (KillPoint.BEFORE_EFFECT, "messenger answer"),
    (KillPoint.AFTER_EFFECT, "messenger answer"),
    (KillPoint.BEFORE_EFFECT, "messenger press"),
    (KillPoint.AFTER_EFFECT, "messenger press"),
    (KillPoint.AFTER_EFFECT, "messenger edit"),
]


@pytest.mark.parametrize(("point", "detail"), DEATHS)
def test_a_death_between_question_mail_press_and_answer_repeats_nothing(point: KillPoint, detail: str) -> None:
    death = Death(point, of=f"{detail}*")

    async def story(room: Room) -> Any:
        await room.begin()
        (no,) = keys("No")
        first = await room.press("Yes", BEN)
        late = await room.press("No", key=no)
        output = await room.end()
        await room.rest()
        return first, late, output

    first, late, output = play(story, kill_when=death)
    assert death.victims
    assert {*first} == {f"Yes, said by {BEN_IS}."}
    assert {*late} == {f"Answered already. Yes, said by {BEN_IS}."}
    assert output == [True, BEN_IS, "messenger"]
    assert Board.thread(OPS) == [f"Print it?\n\n**Yes, said by {BEN_IS}.**"]


@pytest.mark.parametrize("place", range(2, 40, 3))
def test_an_agent_is_told_of_a_question_exactly_once(place: int) -> None:
    async def story(chat: Chat) -> Any:
        await chat.client.start(Wordy, "go", run_id="r")
        await asyncio.sleep(60)
        noted = await chat.client.call(Notes, "ops", "noted", (), {})
        await chat.client.answer("r:1", True, Answerer("ada", is_operator=True), "cli")
        await chat.client.run(Wordy, "go", run_id="r")
        await asyncio.sleep(60)
        assert await chat.client.call(Notes, "ops", "noted", (), {}) == noted
        return noted

    Wordy.asked, Wordy.desk = ASKED, Notes
    Board.begin()
    noted, _ = visit(story, kill_at=place)
    assert noted == ["r:1"]


def test_an_adapter_is_known_to_have_buttons_by_its_methods() -> None:
    from perdure.actors import Telegram  # noqa: PLC0415 - it brings a library
    from tests.actors.messenger.paper import Paper  # noqa: PLC0415

    bot = Telegram("1:x", wire=partial(SimWire, BotApi()))
    assert [isinstance(each, ButtonAdapter) for each in (PaperWithButtons(), bot, Paper())] == [True, True, False]
