"""Turns that are asked for and not waited for: accepted once, played in order, and not lost with whoever asked or plays them."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, Detached, KillPoint, RunContext, exposed, tool
from perdure.ledger import BadRequest, ConflictingRequest
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.provider.script import Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside
from tests.actors.chat.room import SLOW, Room, calls, outcomes, visit, visiting
from tests.kit import Death

NEVER = Pace(first_ms=3_600_000)


def requests_to_the_model() -> int:
    """How many there were."""
    return len(Outside.provider.log())


@pytest.mark.shows(chat_recovery="C-0640 C-0646 C-0647 C-0649 C-0705")
@visiting(Adder, pace=SLOW)
async def test_a_submission_comes_back_at_once_and_is_the_same_however_often_it_is_made(room: Room, /) -> None:
    """By its id or its key, one after the other or at the same time: one turn, and its messages once (C-0640, C-0646, C-0647, C-0649)."""
    twice = await asyncio.gather(*(room.do("submit_messages", "words", idempotency_key="k") for _ in range(2)))
    assert sorted(each["accepted"] for each in twice) == [False, True]
    assert {each["status"] for each in twice} <= {"accepted", "running"}
    by_id = await room.do("submit_messages", "words too", request_id="named")
    again = await room.do("submit_messages", "words too", request_id="named")
    assert (by_id["accepted"], again["accepted"], again["request_id"]) == (True, False, "named")
    for request_id in (twice[0]["request_id"], "named"):
        assert (await room.do("attach", request_id)).ok
    assert (await room.do("submit_messages", "words too", request_id="named"))["status"] == "completed"
    assert await room.roles() == "uaua"
    assert requests_to_the_model() == 2


@pytest.mark.shows(chat_recovery="C-0650 C-0651")
@visiting(Adder)
async def test_a_submission_that_contradicts_another_is_refused(room: Room, /) -> None:
    """Other content under the same key, or a key and an id of different turns; an empty one leaves nothing (C-0650, C-0651)."""
    await room.do("submit_messages", "words", idempotency_key="k")
    await room.do("submit_messages", "words", request_id="other", idempotency_key="o")
    with pytest.raises(ConflictingRequest):
        await room.do("submit_messages", "different", idempotency_key="k")
    with pytest.raises(BadRequest) as both:
        await room.do("submit_messages", "words", request_id="other", idempotency_key="k")
    assert both.value.field == "idempotency_key"
    for nothing in ([], "  "):
        with pytest.raises(BadRequest) as empty:
            await room.do("submit_messages", nothing)
        assert empty.value.field == "messages"
    assert len(await room.do("list_turns")) == 2


class Delegating(Adder):
    """Asks itself for more work in the middle of a turn."""

    @tool
    async def later(self) -> str:
        """Ask for another turn."""
        told = await self.submit_messages("words later", request_id="later")
        return str(told["status"])


def test_what_is_submitted_within_a_turn_is_played_after_it() -> None:
    """Behind whatever is active, never beside it (C-0644, C-0645)."""

    async def story(room: Room) -> None:
        result = await room.do("chat", "more work")
        assert outcomes(result.message) == [("output-available", "accepted")]
        assert (await room.do("attach", "later")).ok
        assert await room.roles() == "uaua"
        assert Outside.provider.counters().open_most == 1

    visit(Delegating, story, Script(questions=(calls("more work", ScriptedCall(name="later")), *SCRIPT.questions)))


@pytest.mark.shows(chat_recovery="C-0543 C-0654 C-0655 C-0656 C-0658")
@visiting(Adder, pace=Pace(first_ms=60000))
async def test_a_cancelled_submission_leaves_no_message_and_no_late_answer(room: Room, /) -> None:
    """One that waits appends none of its messages; one that is under way stays aborted, whatever comes after (C-0654 – C-0656, C-0658)."""
    await room.do("submit_messages", "words first", request_id="first")
    await room.do("submit_messages", ["words", "and", "words"], request_id="second")
    await room.until(lambda: room.is_("running", "first"))
    assert await room.do("cancel_chat", "second") is True
    assert await room.do("cancel_chat", "first", "enough") is True
    assert await room.do("cancel_chat", "first") is False
    await asyncio.sleep(120)  # by now the answer would have come
    first, second = [await room.do("inspect_turn", each) for each in ("first", "second")]
    assert [first["status"], second["status"]] == ["aborted", "aborted"]
    assert first["cancelled"] == "enough"
    assert await room.roles() == "u"
    assert requests_to_the_model() == 1


@pytest.mark.shows(chat_recovery="C-0546 C-0547 C-0548 C-0668 C-0670 C-1212 C-1213")
@visiting(Adder, pace=NEVER)
async def test_all_turns_can_be_cancelled_and_new_ones_are_played(room: Room, /) -> None:
    """Active and waiting alike, and nothing is left of them that would stand in the way (C-0546 – C-0548, C-0668, C-0670)."""
    asked = [f"turn-{number}" for number in range(3)]
    for request_id in asked:
        await room.do("submit_messages", "words", request_id=request_id)
    await room.until(lambda: room.is_("running", "turn-0"))
    assert await room.do("cancel_all_chats", "all of it") == 3
    assert await room.do("cancel_all_chats") == 0
    ends = [await room.do("attach", each) for each in asked]
    assert [(end.status, end.reason) for end in ends] == [("aborted", "cancelled")] * 3
    Outside.provider.pace = Pace()
    assert (await room.do("chat", "words")).ok
    assert await room.roles() == "uua"


@pytest.mark.shows(chat_recovery="C-0665 C-0666 C-0667 C-0669 C-0673 C-0674 C-1045 C-1047 W-06")
@visiting(Adder, pace=Pace(first_ms=1000))
async def test_submissions_outlive_the_process_and_keep_their_order(room: Room, /) -> None:
    """The active and the waiting ones go on in the next life, by themselves, each once; to ask again wakes and does no harm
    (C-0665 – C-0667, C-0669, C-0673, C-0674)."""
    asked = [f"turn-{number}" for number in range(3)]
    for request_id in asked:
        await room.do("submit_messages", "words", idempotency_key=request_id, request_id=request_id)
    await room.until(lambda: room.is_("running", "turn-0"))
    room.kill()
    again = await room.do("submit_messages", "words", idempotency_key="turn-2", request_id="turn-2")
    assert again["accepted"] is False
    await asyncio.sleep(60)
    turns = await room.do("list_turns")
    assert [(turn["request_id"], turn["status"]) for turn in turns] == [(each, "completed") for each in asked]
    assert [turn["attempt"] for turn in turns] == [2, 1, 1]
    ends = [turn["ended_at_ms"] for turn in turns]
    assert ends == sorted(ends)
    assert await room.roles() == "uauaua"


@pytest.mark.shows(chat_recovery="C-0675 C-0679")
@visiting(Adder, pace=Pace(first_ms=60000))
async def test_a_cancel_outlives_the_process_and_reaches_a_recovered_turn(room: Room, /) -> None:
    """Neither a life that finds the turn nor one that recovers it can complete it any more (W-40, C-0675, C-0679)."""
    await room.do("submit_messages", "words", request_id="early")
    await room.until(lambda: room.is_("running", "early"))
    assert await room.do("cancel_chat", "early") is True
    room.kill()
    assert (await room.do("attach", "early")).status == "aborted"

    await room.do("submit_messages", "words", request_id="late")
    await room.until(lambda: room.is_("running", "late"))
    room.kill()
    await room.until(lambda: requests_to_the_model() == 3)  # the recovered turn has asked the model again
    assert await room.do("cancel_chat", "late") is True
    await asyncio.sleep(300)
    assert [turn["status"] for turn in await room.do("list_turns")] == ["aborted", "aborted"]


@pytest.mark.shows(chat_recovery="C-0678 C-0683 C-0685")
def test_the_errors_of_a_submission_are_kept_with_it() -> None:
    """The provider's words, for whoever asks; a cancel that comes first is what counts (C-0678, C-0683, C-0685)."""
    busy = Fault(kind=FaultKind.STATUS, status=429, retry_after="60")
    refused = Fault(kind=FaultKind.ERROR, event=2, type="invalid_request_error", message="No such thing")

    async def story(room: Room) -> None:
        await room.do("submit_messages", "words", request_id="refused")
        await room.until(lambda: room.is_("error", "refused"))
        told = await room.do("inspect_turn", "refused")
        assert "No such thing" in told["error"]
        await room.do("submit_messages", "words", request_id="waits")
        await room.until(lambda: requests_to_the_model() == 2)
        assert await room.do("cancel_chat", "waits") is True
        ended = await room.do("attach", "waits")
        assert (ended.status, ended.reason) == ("aborted", "cancelled")

    visit(Adder, story, plan=FaultPlan.at({1: refused, 2: busy}))


@pytest.mark.shows(chat_recovery="C-0686 C-0687 C-0688 C-0689 C-0690 C-0691")
@visiting(Adder)
async def test_turns_are_listed_and_deleted_by_status_newest_and_oldest_first(room: Room, /) -> None:
    """Filters come before limits; what goes on or waits is never deleted (C-0686 – C-0691)."""
    for number in range(3):
        assert (await room.do("chat", "words", request_id=f"done-{number}")).ok
    half_way = (await room.do("inspect_turn", "done-1"))["ended_at_ms"]
    Outside.provider.pace = NEVER
    for name in ("stopped", "active", "waiting"):
        await room.do("submit_messages", "words", request_id=name)
    await room.until(lambda: room.is_("running", "stopped"))
    await room.do("cancel_chat", "stopped")
    await room.until(lambda: room.is_("running", "active"))

    async def listed(*args: Any) -> list[str]:
        return [turn["request_id"] for turn in await room.do("list_turns", *args)]

    assert await listed() == ["done-0", "done-1", "done-2", "stopped", "active", "waiting"]
    assert await listed("completed", 2) == ["done-1", "done-2"]
    assert await listed(["aborted", "completed"], 2) == ["done-2", "stopped"]
    assert await listed([]) == []
    assert await room.do("delete_turns", ["running", "accepted"]) == 0
    assert await room.do("delete_turns", []) == 0
    assert await room.do("delete_turns", "completed", half_way) == 1
    assert await room.do("delete_turns", "aborted") == 1
    assert await room.do("delete_turns", None, None, 1) == 1
    assert await listed() == ["done-2", "active", "waiting"]
    assert await room.roles() == "uauauauu", "messages stay"
    for wrong, field in ((("finished",), "status"), ((None, 0), "limit")):
        with pytest.raises(BadRequest) as refused:
            await room.do("list_turns", *wrong)
        assert refused.value.field == field
    await room.do("cancel_all_chats")


class Losing(Adder):
    """Its storage fails once, after the first step of its turn."""

    requests: ClassVar[list[int]] = []

    def get_instructions(self) -> str | None:
        """At the second request the handle on the storage is lost, as after an error of the disk."""
        self.requests.append(1)
        if len(self.requests) == 2:
            self._perdure.storage.close()
        return None


@pytest.mark.shows(chat_recovery="C-0623 C-0624 C-0627 C-0676 C-0677 C-1078")
@visiting(Losing)
async def test_a_storage_that_fails_in_a_turn_ends_nothing(room: Room, /) -> None:
    """The turn stays as it is, half sealed never, and goes on when the storage is there again; no tool runs twice
    (C-0623, C-0624, C-0627, C-0676, C-0677)."""
    Losing.requests.clear()
    await room.do("submit_messages", "sum", request_id="asked")
    await room.until(lambda: len(Losing.requests) == 2)
    await asyncio.sleep(1)
    await room.until(lambda: room.is_("completed"))
    told = await room.do("inspect_turn", "asked")
    assert told["attempt"] == 2
    assert (await room.do("attach", "asked")).text == WHOLE
    assert set(Outside.effects.values()) == {1}


@tool
async def dig() -> str:
    """Dig for longer than the storage is broken; a run of its own."""
    Outside.effects["dig",] += 1
    await asyncio.sleep(20)
    return "dug"


class Spoiling(Adder):
    """Its storage fails while its tools are at work."""

    def tools(self) -> list[Any]:
        """A function that takes long."""
        return [dig]

    @tool
    async def write(self, text: str) -> str:
        """Write something."""
        return f"{len(text)} characters"

    @tool
    async def spoil(self) -> str:
        """Lose the storage, as by an error of the disk."""
        Outside.effects["spoil",] += 1
        self._perdure.storage.file.broken(OSError("the disk is full"))
        return "spoilt"


def test_tools_that_outlive_a_failure_of_the_storage_are_heard_once() -> None:
    """Whoever waited for them before it writes nothing any more; the turn that goes on takes their results."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "work", request_id="asked")
        await asyncio.sleep(40)
        told = await room.do("inspect_turn", "asked")
        assert (told["status"], told["attempt"]) == ("completed", 2)
        result, listener = await room.follow("attach", "asked", first=0)
        assert listener.types.count("tool-output-available") == 2
        dug, (state, words), *_ = outcomes(result.message)
        assert dug == ("output-available", "dug")
        assert state == "output-error"
        assert "OUTCOME UNKNOWN" in words
        assert set(Outside.effects.values()) == {1}
        assert len(listener.heard) == told["events"] + 1, "every event is there, and none twice"

    long = ScriptedCall(
        name="write", arguments={"text": "and so on " * 30}
    )  # the model still speaks when the storage fails
    work = calls("work", ScriptedCall(name="dig"), ScriptedCall(name="spoil"), long)
    visit(Spoiling, story, Script(questions=(work,)), pace=Pace(between_ms=300))


class Fragile(Adder):
    """Its storage can be broken from outside."""

    @exposed
    async def break_storage(self) -> None:
        """As an error of the disk does."""
        self._perdure.storage.file.broken(OSError("the disk is full"))


def test_an_agent_whose_storage_failed_between_turns_can_be_used_again() -> None:
    """By the first one that asks for it: whether the disk is well again is found out by opening it."""

    async def story(room: Room) -> None:
        assert (await room.do("chat", "words")).ok
        await room.do("break_storage")
        assert (await room.do("submit_messages", "words", request_id="asked"))["accepted"]
        assert (await room.do("attach", "asked")).ok
        assert await room.roles() == "uaua"

    visit(Fragile, story)


class Unlucky(Adder):
    """Its storage fails once, when a turn is about to end."""

    errors: ClassVar[list[str]] = []

    async def on_chat_error(self, error: str, info: dict[str, Any]) -> str | None:
        """The handle on the storage is lost."""
        self.errors.append(error)
        if len(self.errors) == 1:
            self._perdure.storage.close()
        return None


@pytest.mark.shows(chat_recovery="C-0629 C-1079 C-1081")
def test_an_end_that_is_not_durable_is_seen_by_nobody() -> None:
    """Whoever looks sees the turn go on, until the end is written in a second try (C-0629)."""
    refused = Fault(kind=FaultKind.ERROR, event=2, type="invalid_request_error", message="No such thing")

    async def story(room: Room) -> None:
        Unlucky.errors.clear()
        await room.do("submit_messages", "words", request_id="asked")
        await room.until(lambda: Unlucky.errors)
        assert await room.is_("running")
        await room.until(lambda: len(Unlucky.errors) == 2)
        assert await room.is_("error")
        assert await room.roles() == "ua"

    visit(Unlucky, story, plan=FaultPlan(rules=(Rule(fault=refused, times=None),)))


class Milestones(Agent):
    """Reaches one, and ends."""

    async def run(self, input: str, run: RunContext) -> str:
        """Do as told."""
        await run.report_progress(milestone=input)
        return "over"


class Watching(Adder):
    """Has its detached runs tell it of their milestones."""

    @exposed
    async def begin(self, mode: str) -> None:
        """Begin a run."""
        told = (
            Detached(notify={"source": "research"})
            if mode == "notify"
            else Detached(on_milestones={"names": ["halfway"], "mode": mode})
        )
        await self.run_agent_tool(Milestones, "halfway", run_id=f"run-{mode}", detached=told)


@pytest.mark.shows(agent_tools="10 125 126 165 166 167", chat_recovery="C-0642 C-0643 C-0955")
@pytest.mark.parametrize(
    ("mode", "words", "roles", "requests"),
    [("react", "halfway", "ua", 1), ("narrate", "halfway", "a", 0), ("notify", "over", "ua", 1)],
)
def test_a_milestone_is_told_once_however_often_it_is_delivered(
    mode: str, words: str, roles: str, requests: int
) -> None:
    """To the model as a turn, or to people only, as a line of the assistant; also by a second delivery. So is an end (C-0642, C-0643,
    C-0955)."""
    before_the_acknowledgement = Death(KillPoint.AFTER_HANDLER_COMMIT)

    async def story(room: Room) -> None:
        await room.do("begin", mode)
        await room.until(lambda: before_the_acknowledgement.victims)
        await asyncio.sleep(60)
        assert await room.roles() == roles
        assert requests_to_the_model() == requests
        first, *_ = await room.do("get_messages")
        assert words in first["parts"][0]["text"]
        assert mode != "notify" or first["metadata"]["source"] == "research"
        assert first["metadata"]["runId"] == f"run-{mode}"

    visit(Watching, story, kill_when=before_the_acknowledgement)


class Stages(Agent):
    """Reaches two, and ends."""

    async def run(self, input: str, run: RunContext) -> str:
        """Do as told."""
        for each in ("first", "second"):
            await run.report_progress(milestone=each)
            await asyncio.sleep(1)
        return "over"


class Staged(Adder):
    """Is told of each, and of the end."""

    @exposed
    async def begin(self, mode: Any) -> None:
        """Begin a run."""
        told = Detached(on_milestones={"names": ["first", "second"], "mode": mode}, notify=True)
        await self.run_agent_tool(Stages, "go", run_id="staged", detached=told)


@pytest.mark.parametrize(("mode", "roles", "requests"), [("react", "uauaua", 3), ("narrate", "aaua", 1)])
@visiting(Staged)
async def test_two_milestones_and_the_end_of_a_run_are_three_messages(
    room: Room, /, mode: str, roles: str, requests: int
) -> None:
    """Each has its own, and of those that are told to the model each its own answer (C-0642, C-0955)."""
    await room.do("begin", mode)
    await asyncio.sleep(60)
    assert await room.roles() == roles
    messages = await room.do("get_messages")
    told = [each["parts"][0]["text"] for each in messages if (each.get("metadata") or {}).get("runId") == "staged"]
    words = [word for text in told for word in ("first", "second", "has completed") if word in text]
    assert words == ["first", "second", "has completed"]
    assert requests_to_the_model() == requests
    assert len({each["id"] for each in messages}) == len(messages)


@pytest.mark.shows(agent_tools="127 128", chat_recovery="C-0644 C-0645")
def test_an_end_that_comes_in_the_middle_of_a_turn_is_told_after_it() -> None:
    """And begins a turn of its own, behind those that were asked for before (C-0644, C-0645)."""

    async def story(room: Room) -> None:
        for name in ("first", "second"):
            await room.do("submit_messages", "words", request_id=name)
        await room.until(lambda: room.is_("running", "first"))
        await room.do("begin", "notify")
        await room.until(lambda: "run-notify" in room.view.runs and room.view.runs["run-notify"].is_hard)
        assert await room.is_("running", "first"), "it ended in the middle"
        await room.until(lambda: _has_told(room))
        assert await room.do("wait_until_stable") is True
        assert await room.roles() == "uauaua"
        assert "over" in (await room.do("get_messages"))[4]["parts"][0]["text"]
        turns = await room.do("list_turns")
        assert [turn["status"] for turn in turns] == ["completed"] * 3
        assert all(earlier["ended_at_ms"] <= later["started_at_ms"] for earlier, later in itertools.pairwise(turns))
        assert Outside.provider.counters().open_most == 1

    script = Script(questions=(ScriptedQuestion(asks="over", concludes="I see"), *SCRIPT.questions))
    visit(Watching, story, script, pace=Pace(first_ms=3_000))


async def _has_told(room: Room) -> bool:
    """Whether the end of the run has its turn."""
    return len(await room.do("list_turns")) == 3
