"""Recovery as the author sees it: what the hooks are told, what they may decide, and where patience ends."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from perdure.actors import ChatRecovery, ChatRecoveryContext, Client, FiberContext, KillPoint, exposed, tool
from perdure.ledger import BadRequest
from perdure.policies import default_repair
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Listener, Outside, ask
from tests.actors.chat.room import Room, visit
from tests.kit import Death

STALL = Fault(kind=FaultKind.STALL, event=3)
ALWAYS_STALLS = FaultPlan(rules=(Rule(fault=Fault(kind=FaultKind.STALL, event=2), times=None),))
HEARD: list[Any] = []


class Told(Adder):
    """Writes down what its hooks are told."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Remember, and leave it to the runtime."""
        HEARD.append(context)
        return None

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Remember how turns end."""
        HEARD.append(response["status"])


def played(agent: type[Adder], plan: FaultPlan | None = None, question: str = "sum", **simulation: Any) -> Any:
    """Ask one question, follow it to its true end, and let the world come to rest."""
    HEARD.clear()
    Outside.begin(SCRIPT, plan)
    with Laboratory(5, **simulation) as laboratory:
        result, listeners = laboratory.play(lambda client: ask(client, agent, question))
        laboratory.heal()
        laboratory.settle()
        laboratory.simulation.raise_errors()
    assert Outside.provider.counters().illegal == 0
    return result, [each.ends for each in listeners]


@pytest.mark.shows(chat_recovery="C-0563 C-0616 C-1060 C-1062 C-1099 C-1137 W-46")
def test_the_hook_is_told_what_the_seed_lists() -> None:
    """All thirteen fields (seed 000, C-0563, C-0616): the same incident, the attempt, what was said, and when it began."""
    result, ends = played(Told, FaultPlan.at({2: STALL}))
    assert result.text == WHOLE
    assert ends == [["on_interrupted"], ["on_done"]]
    context, last = HEARD
    assert last == "completed"
    assert (context.attempt, context.max_attempts, context.recovery_kind) == (1, 10, "continue")
    assert (context.request_id, context.recovery_root_request_id, context.stream_id) == ("asked",) * 3
    assert context.incident_id.startswith("asked:")
    assert context.partial_text.startswith("Let me add first.")
    assert [part["output"] for part in context.partial_parts if "output" in part] == ["2", "3", "4"]
    assert [message["role"] for message in context.messages] == ["user"]
    assert context.recovery_data is None
    assert context.last_body is None
    assert context.last_client_tools is None
    assert context.created_at > 0
    assert context.cause == "stall"


@pytest.mark.shows(chat_recovery="C-0590 C-0591 C-1095 C-1100 C-1103 W-01")
def test_a_death_before_the_first_word_is_a_retry() -> None:
    """It is never dropped (W-01, C-0590, C-0591)."""
    rule = Death(KillPoint.MID_STREAM, of="request")
    result, _ = played(Told, kill_when=rule)
    assert result.text == WHOLE
    context = HEARD[0]
    assert (context.recovery_kind, context.partial_text, context.stream_id) == ("retry", "", "")
    assert context.cause == "process_lost"


@pytest.mark.shows(chat_recovery="W-02 W-05")
def test_a_stall_before_the_first_word_is_a_retry_too() -> None:
    """The same rule for a stall (W-02, W-05)."""
    stall = Fault(kind=FaultKind.STALL)
    result, ends = played(Told, FaultPlan.at({1: stall, 2: stall}))
    assert result.text == WHOLE
    assert ends == [["on_interrupted"], ["on_interrupted"], ["on_done"]]
    assert [context.recovery_kind for context in HEARD[:2]] == ["retry", "retry"]


def _is_pre_stream(context: ChatRecoveryContext) -> bool:
    """As seed 000 asks."""
    return not context.stream_id and not context.partial_text


def test_before_the_first_event_of_an_answer_nothing_was_streamed_whether_it_stalls_or_dies() -> None:
    """However long the request was under way, and whoever saw that it was: seed 000's condition is true then, and false later on."""
    silent = FaultPlan.at({number: Fault(kind=FaultKind.STALL) for number in (1, 2, 3)})

    async def story(room: Room) -> None:
        listener = Listener()
        asking = room.soon("chat", "sum", listener, request_id="asked", follow=True)
        await room.until(lambda: "start-step" in listener.types)
        await asyncio.sleep(5)
        room.kill()
        assert (await asking).reason == "max_attempts_exceeded"

    HEARD.clear()
    Exhausted.exhausted.clear()
    visit(Exhausted, story, SCRIPT, silent)
    contexts = [each for each in HEARD if isinstance(each, ChatRecoveryContext)]
    assert [context.cause for context in contexts] == ["process_lost", "stall"]
    assert all(_is_pre_stream(context) and context.partial_parts == [] for context in contexts)
    assert [context.recovery_kind for context in contexts] == ["retry"] * 2
    (last,) = Exhausted.exhausted
    assert (last.stream_id, last.partial_text, last.partial_parts) == ("", "", [])
    played(Told, FaultPlan.at({2: STALL}))
    assert not _is_pre_stream(HEARD[0])


class Hasty(Told):
    """Has patience for two attempts, and says so when it is gone."""

    exhausted: ClassVar[list[Any]] = []
    chat_recovery = ChatRecovery(
        max_attempts=2,
        terminal_message="It could not be done.",
        on_exhausted=exhausted.append,
    )
    chat_stream_stall_timeout_ms = 40_000


@pytest.mark.shows(chat_recovery="C-0608 C-0617 C-0618 C-1063 W-33")
def test_a_provider_that_always_stalls_exhausts_the_turn_once() -> None:
    """The configured words, the hook once, the end once (seed 000, C-0608, C-0617, C-0618, W-25, W-27)."""
    Hasty.exhausted.clear()
    result, ends = played(Hasty, ALWAYS_STALLS, "words")
    assert (result.status, result.error) == ("error", "It could not be done.")
    assert [each[-1] for each in ends] == ["on_interrupted"] * (len(ends) - 1) + ["on_error"]
    (context,) = Hasty.exhausted
    assert (context.reason, context.attempt, context.max_attempts) == ("max_attempts_exceeded", 3, 2)
    assert len(ends) == len(Outside.provider.log()) + 1 == 4, "two recoveries, and no more"
    assert context.terminal_message == "It could not be done."
    assert HEARD[-1] == "error"


class Exhausted(Hasty):
    """The same, with a list of its own."""

    exhausted: ClassVar[list[Any]] = []
    chat_recovery = ChatRecovery(max_attempts=2, on_exhausted=exhausted.append)


class Declining(Told):
    """Does not want to go on after an interruption."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Keep what was said, and stop."""
        return {"continue": False}


@pytest.mark.shows(chat_recovery="C-0594 C-0595 C-0597 C-1311")
def test_going_on_can_be_declined() -> None:
    """What was said stays, and the turn ends with words (C-0594, C-0595, C-0597)."""
    result, ends = played(Declining, FaultPlan.at({2: STALL}))
    assert (result.status, result.reason) == ("error", "continue_disabled")
    assert "declined" in result.error
    assert ends == [["on_interrupted"], ["on_error"]]
    outputs = [part["output"] for part in result.message["parts"] if "output" in part]
    assert outputs == ["2", "3", "4"]


class Forgetful(Told):
    """Does not want to keep a partial answer."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Begin anew."""
        HEARD.append(context)
        return {"persist": False}


@pytest.mark.shows(chat_recovery="C-0614 C-0615 C-1049 C-1096 C-1097 C-1135 C-1136")
def test_a_partial_answer_can_be_dropped_but_not_the_work_of_tools() -> None:
    """Text alone goes (C-0615); settled results stay whatever the hook says (C-0614)."""
    result, _ = played(Forgetful, FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=5)}))
    assert result.text == WHOLE
    result, _ = played(Forgetful, FaultPlan.at({2: STALL}))
    assert result.text == WHOLE
    assert set(Outside.effects.values()) == {1}


class Raising(Told):
    """Its hooks raise, all of them."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Fail."""
        raise RuntimeError("the hook is broken")

    async def on_chat_response(self, response: dict[str, Any]) -> None:
        """Fail."""
        raise RuntimeError("this one too")

    def repair_interrupted_tool_part(self, part: dict[str, Any]) -> dict[str, Any]:
        """Fail."""
        raise RuntimeError("and this one")


@pytest.mark.shows(chat_recovery="C-0587 C-1085 W-39")
def test_hooks_that_raise_stop_nothing() -> None:
    """The turn goes on as if they had said nothing (C-0587, C-0588)."""
    result, _ = played(Raising, FaultPlan.at({2: STALL}))
    assert result.text == WHOLE


def test_a_repair_that_raises_leaves_the_call_to_the_repair_of_every_agent(caplog: pytest.LogCaptureFixture) -> None:
    lost: list[Any] = [
        {"type": "tool-find", "toolName": "find", "toolCallId": "c", "state": "input-available", "input": {}},
        {"type": "text", "text": "So I said."},
    ]

    async def story(room: Room) -> list[Any]:
        await room.do("add_messages", [{"id": "q", "role": "user", "parts": [{"type": "text", "text": "words"}]}])
        await room.do("add_messages", [{"id": "a", "role": "assistant", "parts": lost}])
        assert (await room.do("chat", "words")).ok
        return list((await room.do("get_messages"))[1]["parts"])

    assert visit(Raising, story) == [default_repair(lost[0]), lost[1]]
    assert "repair_interrupted_tool_part" in caplog.text
    assert "and this one" in caplog.text


def test_the_third_attempt_waits_a_second_and_each_further_one_twice_as_long() -> None:
    silent = Fault(kind=FaultKind.STALL, event=0)
    result, _ = played(Told, FaultPlan.at(dict.fromkeys(range(1, 5), silent)), "words")
    assert result.ok
    first, *further = pauses_of(5_000)
    assert first < 100
    for number, pause in enumerate(further):
        assert 500 * 2**number <= pause <= 1_500 * 2**number, further


def pauses_of(stall_ms: float) -> list[float]:
    """How long after each stall the next request was sent."""
    at_ms = [record.at_ms for record in Outside.provider.log()]
    return [later - earlier - stall_ms for earlier, later in itertools.pairwise(at_ms)]


def _dies_after_double() -> Callable[[str, KillPoint, str], bool]:
    rule = Death(KillPoint.MID_TOOL, of="after")

    def after_double(process: str, point: KillPoint, detail: str) -> bool:
        return bool(Outside.effects["add", 2]) and len(Outside.provider.log()) > 1 and rule(process, point, detail)

    return after_double


class Stashing(Told):
    """Remembers something in the middle of a turn."""

    @tool
    async def double(self, a: int) -> str:
        """Double, and remember that."""
        self.stash({"doubled": a})
        return str(2 * a)


@pytest.mark.shows(chat_recovery="C-0558 C-0559 C-0589 C-1104 C-1132 C-1133")
def test_what_was_stashed_is_there_after_a_death() -> None:
    """The next life's hook is given it (C-0558, C-0559, C-0589)."""
    result, _ = played(Stashing, kill_when=_dies_after_double())
    assert result.status == "completed"
    contexts = [each for each in HEARD if isinstance(each, ChatRecoveryContext)]
    assert [context.recovery_data for context in contexts] == [{"doubled": 7}]


class StashingInFibers(Stashing):
    """Remembers one thing for the turn, and another one for a fiber in the midst of it."""

    @tool
    async def double(self, a: int) -> str:
        """Double, and remember that."""
        self.stash({"doubled": a})

        def keep(fiber: FiberContext) -> list[object]:
            self.stash("the fiber's")
            return [fiber.snapshot]

        FOUND.append(await self.run_fiber("keep", keep))
        return str(2 * a)

    @exposed
    async def stash_nowhere(self) -> None:
        """Remember something in the midst of nothing."""
        self.stash("nothing's")


FOUND: list[object] = []


def test_what_a_fiber_stashes_in_the_midst_of_a_turn_is_its_own_and_with_neither_there_is_no_place_for_it() -> None:
    FOUND.clear()
    result, _ = played(StashingInFibers, kill_when=_dies_after_double())
    assert result.status == "completed"
    contexts = [each for each in HEARD if isinstance(each, ChatRecoveryContext)]
    assert [context.recovery_data for context in contexts] == [{"doubled": 7}]
    assert FOUND == [["the fiber's"]]

    async def story(room: Room) -> None:
        with pytest.raises(BadRequest, match="outside of a fiber"):
            await room.do("stash_nowhere")

    visit(StashingInFibers, story)


class Once(Adder):
    """Has one tool with an effect, in its own process."""

    @tool
    async def launch(self, what: str) -> str:
        """Launch something: at most once."""
        Outside.effects["launch", what] += 1
        await asyncio.sleep(1)
        return "launched"


LAUNCH = ScriptedCall(name="launch", arguments={"what": "it"})


@pytest.mark.shows(chat_recovery="C-0799 C-1108", transport_recovery="A6 B8")
def test_a_call_that_died_is_not_made_again_and_the_model_is_told_why() -> None:
    """The caution reaches the next request, and the guard stops a model that tries again all the same (A6, B8, seed 004)."""
    stubborn = Script(
        questions=(ScriptedQuestion(asks="go", rounds=(Round(calls=(LAUNCH,)),)),),
        again=("OUTCOME UNKNOWN",),
        again_max=1,
    )
    Outside.begin(stubborn)
    dies = Death(KillPoint.MID_STORAGE, of="before")

    def in_the_call(process: str, point: KillPoint, detail: str) -> bool:
        return bool(Outside.effects["launch", "it"]) and dies(process, point, detail)

    with Laboratory(5, kill_when=in_the_call) as laboratory:
        result, _ = laboratory.play(lambda client: ask(client, Once, "go"))
        laboratory.heal()
        laboratory.settle()
        laboratory.simulation.raise_errors()
    assert result.ok
    assert Outside.effects["launch", "it"] == 1
    errors = [part["errorText"] for part in result.message["parts"] if "errorText" in part]
    assert "OUTCOME UNKNOWN" in errors[0]
    assert "NOT RUN: this is the same call" in errors[1]
    bodies = [str(record.body) for record in Outside.provider.log()]
    assert any("OUTCOME UNKNOWN" in body for body in bodies)


class Probed(Adder):
    """Can look whether its tool took effect."""

    found: ClassVar[Any] = None

    async def look(self) -> Any:
        """What a look shows."""
        return self.found

    @tool(probe=lambda agent: agent.look())
    async def launch(self, what: str) -> str:
        """Launch something: at most once."""
        Outside.effects["launch", what] += 1
        await asyncio.sleep(1)
        return "launched"


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (True, "a check of what it touches shows that it took effect. Its result is lost; do not issue it again."),
        (False, "a check of what it touches shows that it took no effect. Issue it again if it is still needed."),
        (None, "OUTCOME UNKNOWN"),
        ("perhaps", "OUTCOME UNKNOWN"),
    ],
)
def test_of_a_call_that_died_the_model_is_told_what_a_probe_has_found(
    found: object, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probed, "found", found)

    async def story(room: Room) -> list[str]:
        asking = room.soon("chat", "go", request_id="asked", follow=True)
        await room.until(lambda: Outside.effects["launch", "it"])
        room.kill()
        return [part["errorText"] for part in (await asking).message["parts"] if "errorText" in part]

    (told,) = visit(Probed, story, Script(questions=(ScriptedQuestion(asks="go", rounds=(Round(calls=(LAUNCH,)),)),)))
    assert words in told
    assert Outside.effects["launch", "it"] == 1


@pytest.mark.shows(chat_recovery="C-1101")
def test_a_submitted_turn_outlives_its_agent() -> None:
    """Nobody needs to watch: the row alone brings it to its end (W-03, W-06, W-07, W-37)."""
    Outside.begin(SCRIPT)

    async def submit(client: Client) -> None:
        await client.call(Adder, "somebody", "submit_messages", ("sum",), {"request_id": "asked"})

    async def look(client: Client) -> Any:
        return await client.call(Adder, "somebody", "attach", ("asked", Listener()), {})

    with Laboratory(5, kill_when=Death(KillPoint.MID_STREAM, of="text-delta")) as laboratory:
        laboratory.play(submit)
        laboratory.heal()
        result = laboratory.play(look)
        laboratory.settle()
    assert result.text == WHOLE
