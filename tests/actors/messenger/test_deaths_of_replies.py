"""A process dies at each place of an answer: what was accepted is answered once, with the whole answer; who may see it twice is told so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from perdure.actors import Client, KillPoint, Messenger, MessengerEvent
from perdure.actors.events.observability import subscribe
from perdure.actors.messenger.messenger_agent import _MESSENGERS
from perdure.policies import Delivery
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import Outside
from tests.actors.messenger.paper import SCRIPT, Board, Bot, Chat, Paper, answer_to, visit
from tests.kit import Death

NOTE = Delivery().repeated_text
TOLD = answer_to("story")
PACE = Pace(first_ms=100, between_ms=60)


def told(**simulation: Any) -> tuple[list[dict[str, Any]], int]:
    """One question, its webhook delivered twice; the rows, and how many places to die it came by."""
    Outside.begin(SCRIPT, None, PACE)
    Board.begin()
    with Laboratory(3, **simulation) as laboratory:

        async def story(client: Client) -> list[dict[str, Any]]:
            chat = Chat(laboratory, client, Bot)
            first, again = await chat.hear("a story please"), await chat.hear("a story please")
            assert first["reply"] == again["reply"]
            assert again["accepted"] is False
            return await chat.rest()

        rows = laboratory.play(story, timeout_ms=3_600_000)
        laboratory.heal()
        laboratory.settle()
        laboratory.simulation.raise_errors()
        places = laboratory.simulation.visit_count
    assert Outside.provider.counters().illegal == 0
    return rows, places


def check(rows: list[dict[str, Any]]) -> int:
    """What must hold whatever died; how many messages may stand there twice."""
    (row,) = rows
    assert row["outcome"] == "answered"
    shown = {message_id: said[-1] for message_id, said in Board.messages["t"].items()}
    recorded = [post["message_id"] for post in row["posts"]]
    answer = "".join(shown.pop(message_id) for message_id in recorded)
    assert answer in (TOLD, f"{NOTE}\n\n{TOLD}")
    assert len(shown) <= answer.startswith(NOTE), "nobody sees two without being told so"
    assert all(TOLD not in each for each in shown.values()), "and never two whole ones"
    return len(shown)


@pytest.mark.shows(chat_recovery="C-1044", messenger="W23 W25 W27 W28 weakness-47")
@pytest.mark.parametrize(
    ("point", "detail", "doubled"),
    [
        (KillPoint.MID_STREAM, "text-delta", 0),
        (KillPoint.BEFORE_EFFECT, "messenger post", 0),
        (KillPoint.AFTER_EFFECT, "messenger post", 1),
        (KillPoint.BEFORE_EFFECT, "messenger edit", 0),
        (KillPoint.AFTER_EFFECT, "messenger edit", 0),
        (KillPoint.BEFORE_REPORT, "fiber", 0),
    ],
)
def test_a_death_at_a_named_place_changes_nothing_but_what_nobody_can_know(
    point: KillPoint, detail: str, doubled: int
) -> None:
    """W23 to W27, cases 18 and 19 of §13.7: mid-stream, before and after posting and before recording, and after everything."""
    death = Death(point, of=f"{detail}*")
    rows, _ = told(kill_when=death)
    assert death.victims
    assert check(rows) == doubled
    if detail == "text-delta":
        assert len(Outside.provider.log()) == 2, "one turn, and its recovery; never a second turn (W28)"


@pytest.mark.shows(messenger="W26 case-19")
def test_who_dies_after_the_last_edit_apologises_to_nobody() -> None:
    """W26, case 19: the reply is settled, its fiber is not."""
    rows, _ = told(kill_when=Death(KillPoint.BEFORE_REPORT, of="fiber*"))
    assert check(rows) == 0
    assert Board.thread() == [TOLD]


@pytest.mark.shows(chat_recovery="C-0723 C-1043", messenger="M35 W24 case-18")
def test_a_death_in_a_message_that_was_seen_shows_it_recovering_and_edits_it_on() -> None:
    """Seed 001, case 18, W24, W25: the same message, and no second one."""
    told(kill_when=Death(KillPoint.MID_STREAM, of="text-delta*", visit=8))
    (history,) = Board.history()
    assert any(each.endswith(Delivery().recovering_text) for each in history)
    assert history[-1] == TOLD


@pytest.mark.shows(messenger="W22 case-14")
@pytest.mark.parametrize("offset", range(3))
def test_wherever_a_process_dies_a_message_is_answered_once(offset: int) -> None:
    """Any of supervisor, host and client, at a fifteenth of all the places that the story comes by (W21, W22, weaknesses 41 to 48)."""
    _, places = told()
    seen: Counter[int] = Counter()
    for place in range(1 + 5 * offset, places + 1, 15):
        rows, _ = told(kill_at=place)
        seen[check(rows)] += 1
    assert seen[0] > 3 * seen[1]


def test_two_deaths_in_a_row_are_survived_too() -> None:
    first = Death(KillPoint.AFTER_EFFECT, of="messenger post*")
    second = Death(KillPoint.AFTER_EFFECT, of="messenger edit*", when=lambda: first.victims, visit=2)
    rows, _ = told(kill_when=lambda *place: first(*place) or second(*place))
    assert second.victims
    assert check(rows) == 1


@pytest.mark.shows(messenger="weakness-42")
def test_a_reply_whose_delivery_kills_its_process_again_and_again_is_parked_in_the_end() -> None:
    """Weakness 1, 3: a fiber that never gets further is not entered for ever."""
    Outside.begin(SCRIPT, None, Pace())
    Board.begin()
    deaths = Death(KillPoint.BEFORE_EFFECT, of="messenger post", times=60)
    with Laboratory(3, kill_when=deaths) as laboratory:

        async def story(client: Client) -> list[dict[str, Any]]:
            chat = Chat(laboratory, client, Bot)
            await chat.hear("short")
            await asyncio.sleep(3_600)
            return await chat.rows()

        (row,) = laboratory.play(story, timeout_ms=7_200_000)
        laboratory.settle()
    assert row["status"] == "parked"
    assert "the process died" in row["problem"]
    assert deaths.left


class Deadly(Bot):
    """Ends its process when it is to say who speaks, before the model is asked."""

    kill: ClassVar[Callable[[], None] | None] = None

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        def speaker(event: MessengerEvent) -> str:
            if cls.kill is not None:
                cls.kill()
            return "Ada"

        return [Messenger(id="paper", adapter=Paper(), speaker=speaker)]


def test_a_reply_that_was_parked_before_the_model_was_asked_asks_it_when_it_is_tried_again() -> None:
    async def story(chat: Chat) -> list[dict[str, Any]]:
        Deadly.kill = chat.kill
        await chat.hear("one short", is_direct=False)
        await chat.until(lambda: chat.do("list_deliveries", "parked"), seconds=3_600, every_s=60)
        Deadly.kill = None
        (row,) = await chat.rows()
        assert "the process died" in row["problem"]
        assert (row["request_id"], row["outcome"], len(Outside.provider.log())) == ("", "", 0)
        assert await chat.do("retry_delivery", row["reply_id"]) is True
        return await chat.rest()

    Board.begin()
    (row,), _ = visit(story, Deadly)
    assert (row["outcome"], Board.thread()) == ("answered", [answer_to("short")])


def test_a_reply_of_a_messenger_that_its_class_has_no_more_is_tried_once_and_parked_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And delivered once the messenger is there again."""
    fibers: list[str] = []
    forget = subscribe("fiber", lambda event: fibers.append(event.type))

    async def story(chat: Chat) -> list[dict[str, Any]]:
        await chat.hear("a story please")
        await chat.until(lambda: len(Outside.provider.log()) == 1)
        with monkeypatch.context() as without:
            without.setitem(_MESSENGERS, Bot, {})
            chat.kill()
            for _ in range(3):  # lives
                await chat.rows()
                await asyncio.sleep(30)
            (row,) = await chat.rows()
            assert (row["status"], "'paper' is none of (none)" in row["problem"]) == ("parked", True)
            await asyncio.sleep(30)
            assert fibers.count("fiber:run:failed") == 1, "a messenger does not come back by trying again"
        assert await chat.do("retry_delivery", row["reply_id"]) is True
        return await chat.rest()

    Board.begin()
    try:
        (row,), _ = visit(story, pace=Pace(first_ms=1_000))
    finally:
        forget()
    assert (row["outcome"], Board.thread()) == ("answered", [TOLD])
