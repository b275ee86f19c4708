"""How long a turn is recovered, what counts as progress meanwhile, and what it looks like while it goes on and when it is given up."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, ChatRecovery, ChatRecoveryContext, KillPoint, RunContext, agent_tool
from perdure.ledger import derived_run_id
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from perdure.scenarios.provider.script import Script, ScriptedCall
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Outside
from tests.actors.chat.room import Room, calls, outcomes, texts, visit, visiting
from tests.kit import Death

STALL = Fault(kind=FaultKind.STALL, event=3)
MINUTE_S = 60
HEARD: list[Any] = []


def always(stall: Fault, **more: Any) -> FaultPlan:
    """A provider that stalls for ever."""
    return FaultPlan(rules=(Rule(fault=stall, times=None, **more),))


class Told(Adder):
    """Writes down what its hook is told."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Remember, and leave it to the runtime."""
        HEARD.append(context)
        return None


async def followed(room: Room, *args: Any, **options: Any) -> tuple[Any, list[str]]:
    """Ask, or only look, and follow to the true end, through every interruption."""
    asking = room.follow("chat", *args, request_id="asked", **options) if args else room.follow("attach", "asked")
    result, listener = await asking
    ends = listener.ends
    while result.status == "interrupted":
        result, listener = await room.follow("attach", "asked", first=result.next_event)
        ends += listener.ends
    return result, ends


class Once(Told):
    """Has patience for one attempt; its last hook raises."""

    exhausted: ClassVar[list[Any]] = []
    chat_stream_stall_timeout_ms = 40_000

    @staticmethod
    def give_up(context: Any) -> None:
        """Remember, and fail."""
        Once.exhausted.append(context)
        raise RuntimeError("not my day")

    chat_recovery = ChatRecovery(max_attempts=1, on_exhausted=give_up, terminal_message="No more.")


@pytest.mark.shows(chat_recovery="C-0564 C-0588 C-0613 C-1134")
@visiting(Once, plan=always(Fault(kind=FaultKind.STALL), results=3))
async def test_patience_for_one_attempt_is_gone_at_the_second_interruption(room: Room, /) -> None:
    """The hook of recovery is not asked again, the one of the end once, whatever it raises; the work of tools stays
    (C-0564, C-0588, C-0613)."""
    HEARD.clear()
    Once.exhausted.clear()
    result, ends = await followed(room, "sum")
    assert (result.status, result.error, result.reason) == ("error", "No more.", "max_attempts_exceeded")
    assert ends == ["on_interrupted", "on_interrupted", "on_error"]
    assert [context.attempt for context in HEARD] == [1]
    assert [context.attempt for context in Once.exhausted] == [2]
    answer = (await room.do("get_messages"))[-1]
    assert outcomes(answer) == [("output-available", "2"), ("output-available", "3"), ("output-available", "4")]
    assert (await room.do("inspect_turn", "asked"))["incident"]["status"] == "exhausted"


class Doubtful(Told):
    """Asks its author whether to go on; he raises first, and then says no."""

    asked: ClassVar[list[Any]] = []

    @staticmethod
    async def decide(context: Any) -> bool:
        """Fail once, then refuse."""
        Doubtful.asked.append(context)
        if len(Doubtful.asked) == 1:
            raise RuntimeError("I cannot say")
        return False

    chat_recovery = ChatRecovery(should_keep_recovering=decide)


@pytest.mark.shows(chat_recovery="C-0576")
@visiting(Doubtful, plan=always(Fault(kind=FaultKind.STALL)))
async def test_the_author_may_end_a_recovery_and_only_by_saying_no(room: Room, /) -> None:
    """He is asked from the second interruption on; what he raises is no answer (C-0576)."""
    Doubtful.asked.clear()
    result, _ = await followed(room, "words")
    assert (result.status, result.reason) == ("error", "recovery_aborted")
    assert len(Doubtful.asked) == 2
    assert Doubtful.asked[0].request_id == "asked"


@pytest.mark.shows(chat_recovery="C-0567 C-0583 C-0585 C-1313")
def test_while_a_turn_is_recovered_everybody_can_see_it_and_afterwards_nothing_is_left() -> None:
    """Its row tells of the incident, and each watcher of the attempts; looking is no progress (C-0567, C-0583, C-0585)."""

    async def story(room: Room) -> None:
        HEARD.clear()
        request = room.soon("chat", "words", request_id="asked", follow=False)
        assert (await request).status == "interrupted"
        await room.until(lambda: len(Outside.provider.log()) == 2)
        recovering = await room.do("inspect_turn", "asked")
        assert recovering["status"] == "running"
        assert recovering["incident"]["root_id"] == "asked"
        assert recovering["incident"]["status"] in ("attempting", "scheduled")
        for _ in range(3):
            watching = room.soon("attach", "asked")
            await asyncio.sleep(0.2)
            watching.cancel()
        again = await room.do("inspect_turn", "asked")
        assert (again["work"], again["progress_at_ms"]) == (recovering["work"], recovering["progress_at_ms"])
        result, listener = await room.follow("attach", "asked")
        assert result.ok
        assert [kind for kind in listener.types if kind in ("data-interrupted", "data-attempt")] == [
            "data-interrupted",
            "data-attempt",
        ]
        ended = await room.do("inspect_turn", "asked")
        assert (ended["status"], ended["incident"], ended["attempt"]) == ("completed", None, 2)

    slow = Fault(kind=FaultKind.STALL, event=3, duration_ms=3_000)
    visit(Told, story, plan=FaultPlan.at({1: STALL, 2: slow}))


@pytest.mark.shows(chat_recovery="C-0592")
@visiting(Told, plan=FaultPlan.at({1: STALL}))
async def test_the_context_of_a_recovery_is_that_of_its_own_turn(room: Room, /) -> None:
    """Not of one that was asked for later (C-0592)."""
    tools = [{"name": "ask_user", "description": "Ask.", "parameters": {"type": "object", "properties": {}}}]
    HEARD.clear()
    asking = asyncio.ensure_future(followed(room, "words", metadata={"page": 1}, client_tools=tools))
    await room.until(lambda: room.is_("running"))
    await room.do("submit_messages", "words", request_id="later", metadata={"page": 2})
    result, _ = await asking
    assert result.ok
    (context,) = HEARD
    assert (context.last_body, context.last_client_tools) == ({"page": 1}, tools)
    assert (await room.do("attach", "later")).ok


class Careful(Told):
    """Neither keeps what was said nor goes on."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Drop it, and stop."""
        return {"persist": False, "continue": False}


@pytest.mark.shows(chat_recovery="C-0612 C-1312")
@visiting(Careful, plan=FaultPlan.at({1: STALL}))
async def test_a_turn_can_be_dropped_altogether(room: Room, /) -> None:
    """No text stays, and no further request is made (C-0612)."""
    result, ends = await followed(room, "words")
    assert (result.status, result.reason, result.message) == ("error", "continue_disabled", None)
    assert ends == ["on_interrupted", "on_error"]
    await asyncio.sleep(MINUTE_S)
    assert await room.roles() == "u"
    assert len(Outside.provider.log()) == 1


@pytest.mark.shows(chat_recovery="C-0599 W-08")
@visiting(Told, plan=FaultPlan.at({1: STALL}))
async def test_a_turn_that_people_have_gone_on_without_is_not_recovered(room: Room, /) -> None:
    """A message of the user that came meanwhile supersedes it; what was said stays (W-08, C-0599)."""
    submitted = await room.do("submit_messages", "words", request_id="asked")
    assert submitted["accepted"]
    await room.until(lambda: room.is_("running"))
    await room.do("add_messages", "never mind")
    ended = await room.do("attach", "asked")
    assert (ended.status, ended.reason) == ("skipped", "conversation_changed")
    assert await room.roles() == "uua"
    assert len(Outside.provider.log()) == 1


@pytest.mark.shows(chat_recovery="C-0565")
@visiting(Told, SCRIPT.model_copy(update={"prefill": "refuse"}), FaultPlan.at({1: STALL}))
async def test_a_continuation_after_an_interruption_is_no_prefill(room: Room, /) -> None:
    """Many providers refuse a request that ends with the assistant's own words; the text is gone on with all the same (C-0565)."""
    result, _ = await followed(room, "words")
    assert result.text.startswith("Only words")
    assert result.text.endswith("∎")
    assert len(texts(result.message)) == 1
    more = await room.do("continue_last_turn")
    assert more.ok
    for record in Outside.provider.log():
        assert record.body["messages"][-1]["role"] == "user"


@pytest.mark.shows(chat_recovery="C-0593 C-1092 C-1142")
def test_a_death_while_arguments_are_written_costs_the_half_call_only() -> None:
    """It is withdrawn and written again; nothing is left open, and no patience is lost (#1781, C-0593)."""
    in_the_arguments = Death(KillPoint.MID_STREAM, of="tool-input-start")

    async def story(room: Room) -> None:
        await room.do("submit_messages", "sum", request_id="asked")
        ended, _ = await followed(room)
        assert in_the_arguments.victims
        assert ended.text == WHOLE
        assert [state for state, _ in outcomes(ended.message)] == ["output-available"] * 4
        assert set(Outside.effects.values()) == {1}

    visit(Told, story, kill_when=in_the_arguments)


class Digger(Agent):
    """Digs for five minutes."""

    async def run(self, input: str, run: RunContext) -> str:
        """Tell of every step, or of none."""
        for step in range(15):
            await asyncio.sleep(20)
            if input == "loudly":
                await run.report_progress(fraction=step / 15)
        return "dug"


class Foreman(Told):
    """Has a child that works for long."""

    chat_recovery = ChatRecovery(no_progress_timeout_ms=MINUTE_S * 1_000, max_attempts=3)

    def tools(self) -> list[Any]:
        """The child."""
        return [agent_tool(Digger, name="dig", description="Dig.", input=str)]


@pytest.mark.shows(
    agent_tools="122 123 168 169 172", chat_recovery="C-0571 C-0572 C-1052 C-1053 C-1054 C-1065 C-1066 C-1410"
)
@pytest.mark.parametrize("how", ["loudly", "silently"])
def test_the_progress_of_a_child_is_progress_of_the_turn_that_waits_for_it(how: str) -> None:
    """A parent that is killed again and again lives on what its child shows, and on nothing else; the child runs once, under an id that
    follows from the call (C-0571, C-0572, C-1053, C-1054, C-1410)."""
    script = Script(questions=(calls("dig", ScriptedCall(name="dig", arguments={"input": how})),))

    async def story(room: Room) -> None:
        HEARD.clear()
        await room.do("submit_messages", "dig", request_id="asked")
        await asyncio.sleep(30)
        for _ in range(3):
            told = await room.do("inspect_turn", "asked")
            if told["status"] != "running":
                break
            room.kill()
            await asyncio.sleep(1.5 * MINUTE_S)
        ended, _ = await followed(room)
        if how == "loudly":
            assert ended.ok, ended
            assert outcomes(ended.message) == [("output-available", "dug")]
            (call_id,) = [part["toolCallId"] for part in ended.message["parts"] if "toolCallId" in part]
            (child,) = [run for run in room.view.runs.values() if run.agent_type.endswith("Digger")]
            turn = await room.do("_perdure_follow_turn", "asked", 0)
            assert (child.run_id, child.attempt) == (derived_run_id(turn["origin"], "tool", call_id, 0), 1)
            assert [context.attempt for context in HEARD] == [1, 1, 1]
        else:
            assert (ended.status, ended.reason) == ("error", "no_progress_timeout")

    visit(Foreman, story, script)
