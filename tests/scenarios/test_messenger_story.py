"""The story of `perdure run messenger`: it holds in the simulated world, and its verdict finds what is wrong."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import pytest

from perdure.scenarios.cast.clerk import answer_of
from perdure.scenarios.faults.strikes import Victim
from perdure.scenarios.stories.engine import simulated
from perdure.scenarios.stories.messenger import MessengerScenario, correspond
from perdure.scenarios.stories.messenger_checks import NOTE, Seen
from perdure.scenarios.stories.messenger_play import CALM, DEADLY, chosen, messages_of
from perdure.scenarios.stories.stage import Stage


@pytest.mark.shows(messenger="weakness-52")
def test_every_accepted_message_is_answered_once_whatever_breaks() -> None:
    scenario = MessengerScenario(9, 5, 3, seed=2)
    told = simulated(scenario)
    assert scenario.wrong == []
    assert told["verified"]
    assert told["answered"] == told["messages"] >= 9
    assert sum(told["kills"].values()) == 5
    assert told["webhooks"]["acknowledged"] >= told["messages"]


class Resumed(MessengerScenario):
    """The same in two parts: others write after the first."""

    async def play(self, stage: Stage) -> None:
        played = partial(correspond, self, stage, self._telegram, self._provider)
        first, later = self._ways[:3], self._ways[3:]
        self.parts = [await played(first, 2), await played(later, 2, before=messages_of(first))]

    async def kill(self, stage: Stage, kind: str, victim: Victim, aside: str = "") -> None:
        self.kills[kind] += 1


def test_a_correspondence_may_follow_another_one_and_each_is_checked_by_itself() -> None:
    scenario = Resumed(6, 0, 2, seed=2)
    with scenario.surroundings(None):
        scenario.simulate()
    (_, before), (_, after) = scenario.parts
    assert [*before.wrong(), *after.wrong()] == []
    assert before.chat_of.keys().isdisjoint(after.chat_of)
    assert set(before.chat_of.values()).isdisjoint(after.chat_of.values())
    assert len(before.asked) + len(after.asked) == len(scenario._provider.log())  # noqa: SLF001


def test_the_seed_decides_the_ways_and_each_comes_before_any_comes_twice() -> None:
    count = len(CALM) + len(DEADLY)
    ways = chosen(count, len(DEADLY), 7)
    assert ways == chosen(count, len(DEADLY), 7)
    assert ways != chosen(count, len(DEADLY), 8)
    assert set(ways) == {*CALM, *DEADLY}
    assert messages_of(list(DEADLY)) > len(DEADLY)


def sound(answer: str) -> Seen:
    """One message that was answered as it should be."""
    post = {"message_id": "1000", "is_repeated": False}
    row = {
        "reply_id": "1",
        "heard": ["telegram\0update:1000"],
        "status": "settled",
        "outcome": "answered",
        "problem": "",
        "posts": [post],
    }
    message = {"chat_id": 5, "message_id": 1000, "said": [[1, answer[:9]], [2, answer]], "is_deleted": False}
    return Seen(3, {0: 1}, {0: 5}, {5: [row]}, [message], ["asked [0]"])


def spoil(seen: Seen, where: str, what: Any) -> None:
    (row,), (message,) = seen.rows[5], seen.messages
    match where:
        case "row":
            row.update(what)
        case "said":
            message["said"][-1][1] = what
        case "orphan":
            seen.messages.append({**message, "message_id": 1001})
        case "asked":
            seen.asked = []
        case "twice":
            seen.rows[5].append(copy.deepcopy(row))
        case "lost":
            seen.rows[5].clear()
        case "gone":
            message["is_deleted"] = True
        case "early":
            later = copy.deepcopy(row) | {"reply_id": "2"}
            later["posts"][0]["message_id"] = "1001"
            seen.messages.append({**message, "message_id": 1001, "said": [[1, message["said"][-1][1]]]})
            seen.rows[5].append(later)


@pytest.mark.parametrize(
    ("where", "what", "words"),
    [
        ("row", {"status": "parked", "outcome": ""}, "is parked"),
        ("row", {"outcome": "apologised"}, "apologised"),
        ("said", "To number 0:", "for an answer of"),
        ("orphan", None, "stand twice"),
        ("asked", None, "never reached the model"),
        ("twice", None, "stands in 2 replies"),
        ("lost", None, "stands in 0 replies"),
        ("gone", None, "does not stand in the chat"),
        ("early", None, "before the one before it had ended"),
    ],
)
def test_the_verdict_finds_what_is_wrong(where: str, what: Any, words: str) -> None:
    answer = answer_of(0, 3)
    seen = sound(answer)
    assert list(seen.wrong()) == []
    spoiled = sound(answer)
    spoil(spoiled, where, what)
    assert any(words in each for each in spoiled.wrong()), list(spoiled.wrong())


def test_a_message_that_may_stand_twice_and_says_so_is_no_fault() -> None:
    seen = sound(answer_of(0, 3))
    (row,), (message,) = seen.rows[5], seen.messages
    row["posts"][0].update(message_id="1001", is_repeated=True)
    seen.messages.append({**message, "message_id": 1001, "said": [[3, NOTE + message["said"][-1][1]]]})
    assert list(seen.wrong()) == []
    assert seen.told_twice == 1
