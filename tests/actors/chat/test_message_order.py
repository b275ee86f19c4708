"""What becomes of messages that come at the same time: who waits, who is skipped, what stays, and who is told."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.scenarios.provider.faults import Pace
from tests.actors.chat.desk import Adder, Listener, Outside
from tests.actors.chat.room import Room, texts, visit, visiting

UNHURRIED = Pace(first_ms=3_000)
ENDED: list[tuple[str, str]] = []


class Attentive(Adder):
    """Writes down which turns ended, and how."""

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Remember."""
        ENDED.append((response["request_id"], response["status"]))


class Latest(Attentive):
    """Answers the last of what came meanwhile."""

    message_concurrency = "latest"


class Merging(Attentive):
    """Answers what came meanwhile all at once."""

    message_concurrency = "merge"


class Patient(Attentive):
    """Waits until people have finished."""

    message_concurrency: ClassVar[Any] = {"strategy": "debounce", "debounce_ms": 2_000}


class Curt(Attentive):
    """Takes nothing meanwhile."""

    message_concurrency = "drop"


async def _burst(room: Room, count: int = 4, pause_s: float = 0.5) -> list[str]:
    ENDED.clear()
    jobs = []
    for number in range(count):
        jobs.append(room.soon("chat", f"words {number}", request_id=f"r{number}"))
        await asyncio.sleep(pause_s)
    return [(await job).status for job in jobs]


@pytest.mark.shows(
    chat_recovery="C-1014 C-1015 C-1017 C-1022 C-1023 C-1147 C-1171 C-1172 C-1173 C-1180 C-1181 C-1182 C-1183"
)
@pytest.mark.parametrize(
    ("agent", "statuses", "roles", "seen"),
    [
        (Attentive, ["completed"] * 4, "uauauaua", ["0", "01", "012", "0123"]),
        (Latest, ["completed", "skipped", "skipped", "completed"], "uauuua", ["0", "0123"]),
        (Merging, ["completed", "skipped", "skipped", "completed"], "uauuua", ["0", "0123"]),
        (Patient, ["completed", "skipped", "skipped", "completed"], "uauuua", ["0", "0123"]),
        (Curt, ["completed", "skipped", "skipped", "skipped"], "ua", ["0"]),
    ],
)
def test_a_burst_of_messages(agent: type[Adder], statuses: list[str], roles: str, seen: list[str]) -> None:
    """Each strategy: who is answered, what stays for ever, what the model sees, and of which turns the hook hears (C-1171…C-1183)."""

    async def story(room: Room) -> None:
        assert await _burst(room) == statuses
        await asyncio.sleep(0.1)
        answered = [f"r{number}" for number, status in enumerate(statuses) if status == "completed"]
        assert [(request_id, "completed") for request_id in answered] == ENDED
        await room.sleep()
        assert await room.roles() == roles
        said = [
            text for message in await room.do("get_messages") for text in texts(message) if text.startswith("words")
        ]
        assert said == [f"words {number}" for number in range(roles.count("u"))]

    visit(agent, story, pace=UNHURRIED)
    requests = [
        [each for each in record.body["messages"] if each["role"] == "user"] for record in Outside.provider.log()
    ]
    assert ["".join(each["content"][-1] for each in users) for users in requests] == seen


@pytest.mark.shows(chat_recovery="C-1018 C-1174")
@visiting(Patient, pace=UNHURRIED)
async def test_the_last_of_a_burst_waits_until_it_has_been_quiet(room: Room, /) -> None:
    """Counted from the last message, which alone is answered (C-1174)."""
    await _burst(room, count=5, pause_s=1.5)
    told = [await room.do("inspect_turn", f"r{number}") for number in range(5)]
    assert [each["status"] for each in told] == ["completed", "skipped", "skipped", "skipped", "completed"]
    assert told[-1]["started_at_ms"] - told[-1]["accepted_at_ms"] >= 2_000


def test_where_messages_are_dropped_a_repeat_is_answered_by_the_turn_that_it_repeats() -> None:
    """The client asks again because its line was cut: under the same id, or the same key, it is told how its own turn ends."""

    async def story(room: Room) -> None:
        own = {"request_id": "first", "idempotency_key": "k"}
        first = room.soon("chat", "words 0", **own)
        await asyncio.sleep(0.5)
        again = room.soon("chat", "words 0", **own)
        other = await room.do("chat", "words 1", request_id="second")
        assert (other.status, other.reason) == ("skipped", "dropped")
        third = await room.do("_perdure_accept_turn", "chat", "words 2", "third", {})
        assert (third["accepted"], third["reason"]) == (False, "dropped"), "a client may send it again"
        told, repeated = await first, await again
        assert (repeated.status, repeated.text, repeated.message) == ("completed", told.text, told.message)
        assert (await room.do("submit_messages", "words 0", **own))["accepted"] is False
        assert await room.roles() == "ua"

    visit(Curt, story, pace=UNHURRIED)
    assert len(Outside.provider.log()) == 1


@pytest.mark.shows(chat_recovery="C-1177 C-1204")
@visiting(Curt, pace=UNHURRIED)
async def test_only_messages_of_people_are_dropped_or_skipped(room: Room, /) -> None:
    """What the program asks for waits for its place (C-1177, W-38)."""
    first = room.soon("chat", "words 0", request_id="first")
    await asyncio.sleep(0.5)
    saved, submitted = room.soon("save_messages", "words 1"), await room.do("submit_messages", "words 2")
    again = room.soon("continue_last_turn")
    anew = room.soon("regenerate")
    assert [(await job).status for job in (first, saved, again, anew)] == ["completed"] * 4
    assert (await room.do("attach", submitted["request_id"])).ok
    assert await room.roles() == "uauaua"


@pytest.mark.shows(chat_recovery="W-10 W-38")
@visiting(Curt, pace=UNHURRIED)
async def test_a_turn_that_is_being_recovered_makes_nobody_wait_outside(room: Room, /) -> None:
    """A person's next message is taken, although this agent takes none during a turn (W-38)."""
    first = room.soon("chat", "words 0", request_id="first")
    await asyncio.sleep(1)
    room.kill()
    await asyncio.sleep(0.5)
    result = await room.do("chat", "words 1")
    assert result.ok, result
    await first
    assert await room.is_("completed", "first")
    assert await room.roles() == "uaua"


@pytest.mark.shows(chat_recovery="C-1021 C-1154 C-1155 C-1178 C-1179 C-1208")
def test_after_the_conversation_was_cleared_a_message_overlaps_with_nothing() -> None:
    """What waited is not answered any more, and its sender is told (C-1154, C-1155, C-1178, C-1179, C-1208)."""

    async def story(room: Room) -> None:
        listeners = [Listener() for _ in range(3)]
        jobs = [room.soon("chat", f"words {number}", listener) for number, listener in enumerate(listeners)]
        jobs.append(room.soon("save_messages", "words 3"))
        await asyncio.sleep(1)
        await room.do("clear")
        assert [(await job).status for job in jobs] == ["aborted"] * 4
        assert [listener.ends for listener in listeners] == [["on_error"]] * 3
        assert (await room.do("chat", "words 4")).ok
        assert await room.roles() == "ua"

    visit(Latest, story, pace=UNHURRIED)
    assert len(Outside.provider.log()) == 2
