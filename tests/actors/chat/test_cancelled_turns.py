"""A cancel ends a turn wherever it is: at once, for ever, with its tools, and for each of its callers once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.actors import Agent, Client, agent_tool, tool
from perdure.actors.chat.play import Play
from perdure.actors.chat.turn_recovery import TurnOutcome
from perdure.ledger import StaleIncarnation
from perdure.policies import TurnEvent
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace, Rule
from perdure.scenarios.provider.script import ScriptedCall
from tests.actors.chat.desk import Adder, Listener, Outside
from tests.actors.chat.room import Room, outcomes, visit
from tests.actors.chat.talk import Worker, asks_for, bodies, call, status_of, streams, tell, until, until_parked, values
from tests.kit import played


async def _hangs() -> None:
    await asyncio.sleep(3_600)


async def _fails() -> None:
    raise RuntimeError("in vain")


async def _gives(outcome: TurnOutcome | None) -> TurnOutcome | None:
    return outcome


DONE, PARKED = TurnOutcome(TurnEvent.COMPLETED), TurnOutcome(TurnEvent.PARKED)


@pytest.mark.parametrize("is_cancelled", [True, False])
@pytest.mark.parametrize(
    ("work", "cancelled"),
    [
        (_hangs, TurnEvent.ABORTED),
        (_fails, TurnEvent.ABORTED),
        (partial(_gives, None), TurnEvent.ABORTED),
        (partial(_gives, PARKED), TurnEvent.ABORTED),
        (partial(_gives, DONE), TurnEvent.COMPLETED),
    ],
    ids=["at work", "failed", "handed over", "parked", "at its end"],
)
def test_a_cancelled_turn_is_aborted_unless_it_has_come_to_its_end_before(
    work: Callable[[], Any], cancelled: TurnEvent, is_cancelled: bool
) -> None:
    stopped: list[str] = []

    async def stop_calls(why: str) -> None:
        stopped.append(why)

    async def story() -> TurnOutcome | None:
        turn = SimpleNamespace(cancelled="no more" if is_cancelled else None)
        live: Any = SimpleNamespace(turn=turn, stop_calls=stop_calls, stream=SimpleNamespace(mend=lambda: None))
        tenant = SimpleNamespace(spawn_awaited=asyncio.ensure_future, give_up=asyncio.Task.cancel)
        state: Any = SimpleNamespace(agent=None, tenant=tenant, spans=None)
        nobody: Any = None
        play = Play(state, live, nobody, nobody, nobody)
        if work is _hangs:
            asyncio.get_running_loop().call_later(0.01, play.cancel)
        return await play.within(work())

    if not is_cancelled and work in (_hangs, _fails):  # a task that is cancelled is no cancelled turn
        with pytest.raises((asyncio.CancelledError, RuntimeError)):
            asyncio.run(story())
        return
    outcome = asyncio.run(story())
    if is_cancelled:
        assert outcome is not None
        assert outcome.event is cancelled
        assert stopped == ["no more"] * (cancelled is TurnEvent.ABORTED)
    else:
        assert (outcome, stopped) == (work.args[0], [])  # type: ignore[attr-defined]


A, B = ScriptedCall(name="work", arguments={"what": "a"}), ScriptedCall(name="work", arguments={"what": "b"})
BROODS = ScriptedCall(name="brood", arguments={"what": "a"})
STALL = Fault(kind=FaultKind.STALL)
BUSY = Fault(kind=FaultKind.STATUS, status=429, retry_after="100")


def _began() -> bool:
    return bool(Outside.effects["began", "a"])


def _asked(times: int) -> Callable[[], bool]:
    return lambda: len(Outside.provider.log()) >= times


def _at(kind: FaultKind, event: int, **more: Any) -> FaultPlan:
    return FaultPlan.at({1: Fault(kind=kind, event=event, **more)})


PLACES = {
    "backoff": (asks_for(A), FaultPlan.at({1: BUSY}), _asked(1), 5.0),
    "connect": (asks_for(A), FaultPlan.at({1: STALL}), _asked(1), 1.0),
    "stream": (streams(A, B), _at(FaultKind.STALL, 6), _began, 1.0),
    "drain": (streams(A, B), _at(FaultKind.RESET, 6), _began, 5.0),
    "drain of an inline tool": (streams(BROODS, B), _at(FaultKind.RESET, 6), _began, 5.0),
    "drain after a stall": (streams(A, B), _at(FaultKind.STALL, 6), _began, 10.0),
    "pause after a stall": (asks_for(A), FaultPlan(rules=(Rule(fault=STALL, times=None),)), _asked(2), 5.1),
    "tool": (asks_for(A), FaultPlan(), _began, 1.0),
}


@pytest.mark.shows(
    chat_recovery="C-0006 C-0012 C-1140 C-1149 C-1199 C-1200", transport_recovery="10 13 14 34 40 A12 B7"
)
@pytest.mark.parametrize("place", PLACES)
def test_a_cancel_ends_a_turn_at_once_in_every_place(place: str) -> None:
    """Cases 10, 13, 14, 34, 40, 62 and A12: no wait of a turn, or of its recovery, is deaf to a cancel."""
    script, plan, is_there, later_s = PLACES[place]

    async def story(client: Client) -> None:
        listener = Listener()
        asking = asyncio.ensure_future(call(client, Worker, "chat", "go", listener, request_id="asked"))
        await until(is_there)
        await asyncio.sleep(later_s)
        asked_at, requests = asyncio.get_running_loop().time(), len(Outside.provider.log())
        assert await call(client, Worker, "cancel_chat", "asked", "enough") is True
        result = await call(client, Worker, "attach", "asked")
        assert asyncio.get_running_loop().time() - asked_at < 1.0, "it ended at once"
        assert (result.status, result.reason) == ("aborted", "cancelled"), result
        assert "enough" in result.error
        assert (await asking).status in ("aborted", "interrupted")
        assert len(listener.ends) == 1
        assert len(Outside.provider.log()) == requests, "nothing more was asked of the provider"
        words = values(result.message, "errorText")
        assert all("OUTCOME UNKNOWN: the user stopped" in each for each in words)
        assert len(words) == int(_began())
        assert await call(client, Worker, "is_stable", 1_000) is True
        Outside.provider.set_plan(FaultPlan())
        assert (await call(client, Worker, "chat", "words")).ok, "and the agent goes on"
        assert not Outside.effects["done", "a"]

    tell(story, script, plan)
    assert Outside.effects["began", "a"] == Outside.effects["stopped", "a"] or place == "drain of an inline tool"


class Tidy(Worker):
    """Puts its things away when it is stopped, which takes a while."""

    @tool
    async def spread(self) -> str:
        """Spread things out, and put them away."""
        Outside.effects["began", "a"] += 1
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(3)
            Outside.effects["tidied", "a"] += 1
        return "never"


@played(lambda story: tell(story, asks_for(ScriptedCall(name="spread", arguments={}))))
async def test_a_cancelled_turn_ends_after_its_tools_have_put_their_things_away(client: Client, /) -> None:
    await call(client, Tidy, "submit_messages", "go", request_id="asked")
    await until(_began)
    await call(client, Tidy, "cancel_chat", "asked")
    assert (await call(client, Tidy, "attach", "asked")).status == "aborted"
    assert Outside.effects["tidied", "a"] == 1


class Deaf(Worker):
    """Has a tool that goes on when it is stopped, and keeps notes."""

    @tool
    async def note(self) -> str:
        """Keep a note."""
        Outside.effects["began", "a"] += 1
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(7)
        with pytest.raises(StaleIncarnation):
            self.state["note"] = 1
        Outside.effects["refused", "a"] += 1
        return "done"


@played(lambda story: tell(story, asks_for(ScriptedCall(name="note", arguments={}))))
async def test_a_tool_that_goes_on_after_the_cancel_of_its_turn_has_no_powers_and_its_agent_goes_on(
    client: Client, /
) -> None:
    await call(client, Deaf, "submit_messages", "go", request_id="asked")
    await until(_began)
    await call(client, Deaf, "cancel_chat", "asked")
    assert (await call(client, Deaf, "attach", "asked")).status == "aborted"
    await until(lambda: Outside.effects["refused", "a"] == 1)
    assert (await call(client, Deaf, "chat", "words")).ok


@pytest.mark.shows(chat_recovery="C-1201 C-1202")
@played(lambda story: tell(story, pace=Pace(between_ms=400)))
async def test_a_cancel_closes_the_connection(client: Client, /) -> None:
    """Case 60: the provider sees its client go, and pays for no more words."""
    await call(client, Adder, "submit_messages", "sum", request_id="asked")
    await until(_asked(1))
    await asyncio.sleep(1.0)
    await call(client, Adder, "cancel_chat", "asked")
    await call(client, Adder, "attach", "asked")
    (record,) = Outside.provider.log()
    assert record.ended == "gone"


@pytest.mark.shows(transport_recovery="15")
@played(lambda story: tell(story, streams(A, B), _at(FaultKind.STALL, 6)))
async def test_a_cancel_leaves_no_half_written_call(client: Client, /) -> None:
    """Case 15: arguments that broke off are withdrawn, and the whole call before them is told apart from them."""
    await call(client, Worker, "submit_messages", "go", request_id="asked")
    await until(_began)
    await asyncio.sleep(1.0)
    await call(client, Worker, "cancel_chat", "asked")
    result = await call(client, Worker, "attach", "asked")
    assert values(result.message, "toolCallId") == ["call-a"]
    assert await call(client, Worker, "resolve_tool_call", "call-b", "late") is False
    assert (await call(client, Worker, "chat", "words")).ok
    assert "call-b" not in bodies()[-1]


@pytest.mark.shows(transport_recovery="16 17")
@pytest.mark.parametrize(
    ("tool", "words"),
    [
        ("ask_user", "NOT ANSWERED: the user stopped the turn while ask_user waited for their answer"),
        ("risky", "NOT RUN: the user stopped the turn before this call of risky began"),
    ],
)
@pytest.mark.parametrize("sleeps", [False, True])
def test_a_cancelled_question_says_that_it_was_not_answered(tool: str, words: str, sleeps: bool) -> None:
    """Cases 16 and 17: a call that waited for a person has done nothing, and the model reads that in words."""
    arguments = {"what": "it"} if tool == "risky" else {}

    async def story(client: Client) -> None:
        await call(client, Worker, "submit_messages", "go", request_id="asked")
        (call_id,) = await until_parked(client, Worker)
        await asyncio.sleep(10 if sleeps else 0)  # long enough for the agent to sleep
        assert await call(client, Worker, "cancel_chat", "asked") is True
        result = await call(client, Worker, "attach", "asked")
        assert result.status == "aborted"
        (told,) = values(result.message, "errorText")
        assert told.startswith(words)
        assert await call(client, Worker, "resolve_tool_call", call_id, "late") is False
        assert await call(client, Worker, "respond_to_approval", call_id, True) is False
        assert (await call(client, Worker, "chat", "words")).ok
        assert words in bodies()[-1]

    tell(story, asks_for(ScriptedCall(name=tool, arguments=arguments)))
    assert not Outside.effects["risky", "it"]


@pytest.mark.shows(chat_recovery="W-40", transport_recovery="B7")
@pytest.mark.parametrize("first", ["work", "brood"])
def test_a_cancel_that_a_death_cut_short_still_stops_the_tools(first: str) -> None:
    """B7, B9: the next life knows from what is durable that a call had begun. It says so, and stops its run."""
    struck: list[str] = []

    async def story(client: Client) -> None:
        await call(client, Worker, "submit_messages", "go", request_id="asked")
        await until(_began)
        await asyncio.sleep(1.0)
        Outside.effects["deadly"] = 1
        await call(client, Worker, "cancel_chat", "asked", "enough")
        result = await call(client, Worker, "attach", "asked")
        assert result.status == "aborted"
        (words,) = values(result.message, "errorText")
        assert words.startswith("OUTCOME UNKNOWN: the user stopped this call")

    def rule(process: str, point: Any, detail: str) -> bool:
        hit = not struck and bool(Outside.effects["deadly"]) and (str(point), detail) == ("mid_storage", "after")
        if hit:
            struck.append(process)
        return hit

    tell(story, asks_for(ScriptedCall(name=first, arguments={"what": "a"})), kill_when=rule)
    assert struck
    assert Outside.effects["began", "a"] == 1
    assert not Outside.effects["done", "a"]


class Musing(Worker):
    """Its hook takes ten seconds, in which its tools go on."""

    async def on_chat_recovery(self, context: Any) -> None:
        """Think about it."""
        Outside.effects["asked"] += 1
        await asyncio.sleep(10)

    def tools(self) -> list[Any]:
        """One more: a child."""
        return [*super().tools(), agent_tool(Walker, name="walker", description="Walk.")]


class Walker(Agent):
    """Walks for a while."""

    async def run(self, input: str) -> str:
        """Walk."""
        Outside.effects["began", input] += 1
        await asyncio.sleep(5)
        Outside.effects["done", input] += 1
        return f"worked on {input}"


WALKS = ScriptedCall(name="walker", arguments={"input": "a"})
WORKS = ScriptedCall(name="work", arguments={"what": "a", "seconds": 5})


@pytest.mark.parametrize("tool_call", [WORKS, WALKS], ids=["function", "child"])
@pytest.mark.parametrize("ends", [True, False])
@pytest.mark.parametrize("dies_again", [False, True])
def test_of_a_tool_that_has_ended_during_the_recovery_a_cancelled_turn_keeps_the_result(
    tool_call: ScriptedCall, ends: bool, dies_again: bool
) -> None:
    """B7, B9: in this life it was never waited for, and its result counts nevertheless; in a later life, too. One at work is stopped."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        await room.until(_began)
        await asyncio.sleep(0.5)
        room.kill()
        await room.until(lambda: Outside.effects["asked"])
        if ends:
            await room.until(lambda: Outside.effects["done", "a"])
            await asyncio.sleep(0.5)
        assert Outside.effects["done", "a"] == int(ends)
        Outside.effects["deadly"] = int(dies_again)
        assert await room.do("cancel_chat", "asked", "enough") is True or dies_again
        result = await room.do("attach", "asked")
        assert (result.status, result.reason) == ("aborted", "cancelled")
        (outcome,) = outcomes(result.message)
        if ends:
            assert outcome == ("output-available", "worked on a")
        else:
            assert outcome[1].startswith("OUTCOME UNKNOWN: the user stopped this call")
        await asyncio.sleep(10)
        assert (Outside.effects["began", "a"], Outside.effects["done", "a"]) == (1, int(ends))
        assert Outside.effects["deadly"] == 0

    def rule(_process: str, point: Any, detail: str) -> bool:
        hit = bool(Outside.effects["deadly"]) and (str(point), detail) == ("mid_storage", "after")
        Outside.effects["deadly"] -= int(hit)
        return hit

    visit(Musing, story, asks_for(tool_call), kill_when=rule)


BROODS_BRIEFLY = ScriptedCall(name="brood", arguments={"what": "a", "seconds": 5})


@pytest.mark.parametrize("tool_call", [WORKS, WALKS, BROODS_BRIEFLY], ids=["function", "child", "inline"])
def test_of_a_tool_that_the_death_came_before_a_cancelled_turn_says_that_it_never_ran(tool_call: ScriptedCall) -> None:
    """The model may ask for it again without a second thought."""

    async def story(room: Room) -> None:
        await room.do("submit_messages", "go", request_id="asked")
        await room.until(lambda: Outside.effects["asked"])
        assert await room.do("cancel_chat", "asked", "enough") is True
        (outcome,) = outcomes((await room.do("attach", "asked")).message)
        assert outcome[1].startswith(f"NOT RUN: the user stopped the turn before this call of {tool_call.name} began")
        await asyncio.sleep(10)
        assert Outside.effects["began", "a"] == 0

    def rule(_process: str, point: Any, detail: str) -> bool:
        Outside.effects["struck"] += (
            hit := (str(point), detail) == ("mid_tool", "before") and not Outside.effects["struck"]
        )
        return bool(hit)

    visit(Musing, story, asks_for(tool_call), kill_when=rule)


@played(lambda story: tell(story, pace=Pace(first_ms=1000)))
async def test_who_is_cleared_in_the_moment_of_asking_is_told_an_end_too(client: Client, /) -> None:
    """Case 62: whether the turn is forgotten before, between or after the first answers about it."""
    for wait_s in (0.0, 0.005, 0.01, 0.015, 0.02, 0.05):
        listener = Listener()
        asking = asyncio.ensure_future(call(client, Worker, "chat", "words", listener))
        await asyncio.sleep(wait_s)
        await call(client, Worker, "clear")
        assert (await asking).status in ("aborted", "completed")
        assert len(listener.ends) == 1


class Debounced(Adder):
    """Waits until people have said all that they want to say."""

    message_concurrency = {"strategy": "debounce", "debounce_ms": 60_000}  # noqa: RUF012 - as an author writes it


@pytest.mark.shows(chat_recovery="C-0413 W-21", transport_recovery="62")
@played(lambda story: tell(story, pace=Pace(first_ms=4000)))
async def test_every_caller_of_a_cancelled_queue_is_told_once(client: Client, /) -> None:
    """Case 62, C-0413: the one that plays, those that wait for their place, and the last one in its quiet time."""
    listeners = [Listener() for _ in range(4)]
    jobs = []
    for number, listener in enumerate(listeners):
        jobs.append(asyncio.ensure_future(call(client, Debounced, "chat", f"words {number}", listener)))
        await asyncio.sleep(0.2)
    assert await call(client, Debounced, "cancel_all_chats", "enough") == len(jobs)
    assert [(await job).status for job in jobs] == ["aborted"] * len(jobs)
    assert [each.ends for each in listeners] == [["on_error"]] * len(jobs)
    assert [each["status"] for each in await call(client, Debounced, "list_turns", "accepted")] == []
    last = Listener()
    first, second = (
        asyncio.ensure_future(call(client, Debounced, "chat", words, each, request_id=words))
        for words, each in (("words again", Listener()), ("words at last", last))
    )
    assert (await first).ok
    await asyncio.sleep(5)  # the second one has its place, and waits for quiet
    assert await status_of(client, Debounced, "words at last") == "accepted"
    assert await call(client, Debounced, "cancel_chat", "words at last") is True
    assert (await second).status == "aborted"
    assert last.ends == ["on_error"]


@pytest.mark.shows(chat_recovery="W-35", transport_recovery="32")
@pytest.mark.parametrize("place", ["backoff", "tool"])
def test_a_conversation_that_is_cleared_stops_its_turn_wherever_it_is(place: str) -> None:
    """Case 32: one request, the reason in words, tools aborted; a turn that comes meanwhile is cleared with the others."""
    script, plan, is_there, later_s = PLACES[place]

    async def story(client: Client) -> None:
        listener = Listener()
        asking = asyncio.ensure_future(call(client, Worker, "chat", "go", listener, request_id="asked"))
        await until(is_there)
        await asyncio.sleep(later_s)
        await asyncio.gather(
            call(client, Worker, "clear"), call(client, Worker, "submit_messages", "words", request_id="meanwhile")
        )
        result = await asking
        assert result.status in ("aborted", "error")
        assert len(listener.ends) == 1
        further = Listener()
        assert (await call(client, Worker, "attach", "asked", further, first=1)).reason == "forgotten"
        assert further.ends == ["on_error"]
        left = [each["request_id"] for each in await call(client, Worker, "list_turns")]
        assert left in ([], ["meanwhile"])

    tell(story, script, plan)
    asked_for_it = [body for body in bodies() if "'content': 'go'" in body]
    assert len(asked_for_it) == 1
    assert Outside.effects["began", "a"] == Outside.effects["stopped", "a"]
