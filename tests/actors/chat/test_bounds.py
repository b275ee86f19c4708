"""How often a turn is interrupted before it ends, and who is told: attempts, stalls, stability, and recovery that is switched off."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

import pytest

from perdure import BadRequest, TurnOptions
from perdure.actors import ChatRecovery, ChatRecoveryContext, KillPoint, RemoteError
from perdure.scenarios.provider.events import Role, Text
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Rule
from perdure.scenarios.provider.script import Script, ScriptedCall, ScriptedQuestion
from tests.actors.chat.desk import Adder, Listener, Outside
from tests.actors.chat.room import Room, visit, visiting
from tests.actors.chat.talk import Worker, streams
from tests.kit import Death

ONE_WORD = Script(
    questions=(ScriptedQuestion(asks="words", rounds=(), verbatim=((Role(), Text(text="Well ")),) * 100),)
)

SILENCE = FaultPlan(rules=(Rule(fault=Fault(kind=FaultKind.STALL, event=2), times=None),))


class Told(Adder):
    """Remembers what its hooks are told."""

    told: ClassVar[list[Any]] = []
    chat_stream_stall_timeout_ms = 6_000

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Remember."""
        self.told.append(context)
        return None


class Twice(Told):
    """Two recoveries in a row and no more."""

    chat_recovery = ChatRecovery(max_attempts=2, terminal_message="No more.")


class Patient(Told):
    """Any number in a row."""

    chat_recovery = ChatRecovery(max_attempts=1_000, no_progress_timeout_ms=10_000_000)


@pytest.mark.parametrize(
    ("agent", "requests", "reason"), [(Twice, 3, "max_attempts_exceeded"), (Patient, 21, "too_many_stalls")]
)
def test_one_word_and_then_silence_ends(agent: type[Told], requests: int, reason: str) -> None:
    """`max_attempts` means what it says, however little each attempt says; and stalls have a total. Hooks and callbacks count alike."""
    agent.told.clear()

    async def story(room: Room) -> None:
        result, listener = await room.follow("chat", "words", request_id="asked", follow=True)
        assert (result.status, result.reason) == ("error", reason)
        assert listener.ends == ["on_interrupted"] * requests + ["on_error"]
        told = [each[1] for each in listener.heard if each[0] == "on_interrupted"]
        assert [each.outcome for each in told] == ["scheduled"] * (requests - 1) + ["exhausted"]
        counted = [(each.attempt, each.max_attempts) for each in told]
        assert counted[:-1] == [(each.attempt, each.max_attempts) for each in agent.told]
        assert [each.attempt for each in told] == list(range(1, requests + 1))

    visit(agent, story, ONE_WORD, SILENCE)
    assert len(Outside.provider.log()) == requests


class Thrice(Adder):
    """Three recoveries in a row and no more, in the words that everybody has."""

    chat_recovery = ChatRecovery(max_attempts=3)


@pytest.mark.parametrize(("agent", "entries", "minutes"), [(Thrice, 4, 0.5), (Adder, 11, 4)])
def test_a_turn_that_ends_its_process_is_begun_once_and_then_max_attempts_times(
    agent: type[Adder], entries: int, minutes: float
) -> None:
    """Each entry counts, however soon its process ends. The pause before the agent is woken is part of the one before its turn goes on."""
    deaths: list[str] = []

    def at_its_request(process: str, point: KillPoint, detail: str) -> bool:
        if (point, detail) == (KillPoint.MID_STREAM, "request"):
            deaths.append(process)
            return True
        return False

    async def story(room: Room) -> None:
        began_s = asyncio.get_running_loop().time()
        result, _ = await room.follow("chat", "words", request_id="asked", follow=True)
        assert (result.status, result.reason) == ("error", "max_attempts_exceeded")
        assert (
            f"({entries} attempts in a row broke off, the last one because its process ended;"
            f" chat_recovery.max_attempts is {entries - 1}.)" in result.error
        )
        assert asyncio.get_running_loop().time() - began_s < minutes * 60
        assert (await room.do("inspect_turn", "asked"))["attempt"] == entries

    visit(agent, story, ONE_WORD, kill_when=at_its_request)
    assert len(deaths) == entries


class Refused(Thrice):
    """Its author does not want to go on."""

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Say so."""
        return {"continue": False}


class Unrecovered(Adder):
    """Goes on after nothing."""

    chat_recovery = False


NOTHING_MORE = "because nothing more came from the provider for 5 s, the limit of chat_stream_stall_timeout_ms"
NOTHING = "because nothing came from the provider for 5 s, the limit of chat_first_token_timeout_ms"
GIVEN_UP = "(4 attempts in a row broke off, the last one {}; chat_recovery.max_attempts is 3.)"


@pytest.mark.parametrize(
    ("agent", "event", "words"),
    [
        (Thrice, 2, GIVEN_UP.format(NOTHING_MORE)),
        (Thrice, None, GIVEN_UP.format(NOTHING)),
        (Refused, None, f"interrupted, {NOTHING}, and going on with it was declined."),
        (Unrecovered, 2, f"interrupted, {NOTHING_MORE}, and this agent recovers none (chat_recovery = False)."),
    ],
)
def test_a_turn_that_gives_up_because_the_provider_was_silent_says_so_with_the_limit(
    agent: type[Adder], event: int | None, words: str
) -> None:
    """However it gives up; else nobody knows which option to change."""

    async def story(room: Room) -> None:
        result, _ = await room.follow("chat", "words", request_id="asked", follow=True)
        assert result.status == "error"
        assert words in result.error

    silence = Rule(fault=Fault(kind=FaultKind.STALL, event=event), times=None)
    visit(agent, story, ONE_WORD, FaultPlan(rules=(silence,)))


@pytest.mark.parametrize("asked_by", ["attach", "chat"])
@visiting(Twice, ONE_WORD, SILENCE)
async def test_an_exhausted_turn_has_ended_for_everybody(room: Room, /, asked_by: str) -> None:
    """Who comes later hears of the end, as its row tells it, and not for ever of an interruption."""
    first, listener = await room.follow("chat", "words", request_id="asked")
    while first.status == "interrupted":
        first, listener = await room.follow("attach", "asked", first=first.next_event)
    assert (first.status, listener.ends) == ("error", ["on_error"])
    for _ in range(2):
        late = Listener()
        again = (
            await room.do("attach", "asked", late)
            if asked_by == "attach"
            else await room.do("chat", "words", late, request_id="asked")
        )
        assert again == first
        assert late.ends == ["on_error"]
    assert (await room.do("inspect_turn", "asked"))["status"] == "error"


@pytest.mark.parametrize("options", [{}, {"follow": True}])
def test_a_caller_without_a_callback_waits_for_the_end_of_the_turn(options: dict[str, bool]) -> None:
    """Through stalls and a death. With `follow=False` it is told of the end of the attempt, as a callback is."""
    fault = Fault(kind=FaultKind.STALL, event=2)
    death = Death(KillPoint.MID_STREAM, of="text-delta", when=lambda: len(Outside.provider.log()) > 1)

    async def story(room: Room) -> None:
        result = await room.do("chat", "words", request_id="asked", **options)
        assert result.ok
        assert result.text.endswith("∎")
        assert death.victims
        assert (await room.do("inspect_turn", "asked"))["attempt"] == 3

    visit(Adder, story, plan=FaultPlan.at({1: fault}), kill_when=death)

    async def once(room: Room) -> None:
        assert (await room.do("chat", "words", request_id="asked", follow=False)).status == "interrupted"
        assert (await room.do("attach", "asked")).ok

    visit(Adder, once, plan=FaultPlan.at({1: fault}))


class Switched(Told):
    """Recovers nothing."""

    chat_recovery = False


@pytest.mark.shows(chat_recovery="C-1046")
@pytest.mark.parametrize("how", ["stall", "death"])
def test_recovery_can_be_switched_off(how: str) -> None:
    """An interrupted turn ends with words that say why, keeps what was said, and asks the model no more."""
    Switched.told.clear()

    async def story(room: Room) -> None:
        asking = asyncio.ensure_future(room.follow("chat", "words", request_id="asked", follow=True))
        if how == "death":
            await room.until(lambda: Outside.provider.open)
            room.kill()
        result, listener = await asking
        assert (result.status, result.reason) == ("error", "recovery_off")
        assert "chat_recovery = False" in result.error
        assert listener.ends == ["on_interrupted", "on_error"]
        assert not Switched.told
        assert (await room.do("chat", "words", request_id="again")).ok, "the chat itself goes on"

    visit(Switched, story, plan=FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=2)}))
    assert len(Outside.provider.log()) == 2


class Blunt(Worker):
    """Recovers nothing."""

    chat_recovery = False


@pytest.mark.parametrize(
    ("agent", "said_meanwhile", "end"),
    [(Blunt, [], ("error", "recovery_off")), (Worker, ["never mind"], ("skipped", "conversation_changed"))],
)
def test_an_answer_that_stalls_in_a_call_and_is_not_recovered_ends_without_half_a_call(
    agent: type[Worker], said_meanwhile: list[str], end: tuple[str, str]
) -> None:
    first, second = (ScriptedCall(name="work", arguments={"what": what, "seconds": 1}) for what in "ab")

    async def story(room: Room) -> None:
        asked = room.soon("chat", "go", request_id="asked", follow=True)
        await room.until(lambda: Outside.effects["began", "a"])
        for words in said_meanwhile:
            await room.do("add_messages", words)
        result = await asked
        assert (result.status, result.reason) == end
        assert [part["toolCallId"] for part in result.message["parts"] if "toolCallId" in part] == ["call-a"]

    visit(agent, story, streams(first, second), FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=6)}))


class Hurried(Worker):
    """Waits two seconds for calm."""

    told: ClassVar[list[float]] = []
    chat_recovery = ChatRecovery(stable_timeout_ms=2_000)

    async def on_chat_recovery(self, context: ChatRecoveryContext) -> dict[str, bool] | None:
        """Remember when."""
        self.told.append(asyncio.get_running_loop().time())
        return None


@pytest.mark.shows(transport_recovery="1")
def test_a_recovery_waits_so_long_for_calls_that_are_under_way() -> None:
    """Then it tells of the interruption. The call goes on, and its result is in the next request (seed 000, `stableTimeoutMs`)."""
    slow, quick = (ScriptedCall(name="work", arguments={"what": what, "seconds": 60}) for what in "ab")
    Hurried.told.clear()

    async def story(room: Room) -> None:
        begun_s = asyncio.get_running_loop().time()
        result, listener = await room.follow("chat", "go", request_id="asked", follow=True)
        assert result.ok, result
        assert listener.ends == ["on_interrupted", "on_done"]
        (at_s,) = Hurried.told
        assert 7 <= at_s - begun_s < 10
        assert "worked on a" in str(Outside.provider.log()[1].body)

    visit(Hurried, story, streams(slow, quick), FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=6)}))
    assert Outside.effects["began", "a"] == Outside.effects["done", "a"] == 1


@pytest.mark.parametrize(
    ("attribute", "value", "words"),
    [
        ("chat_recovery", {"maxAttempts": 3}, "chat_recovery: 'maxAttempts' is none of its fields"),
        ("context_overflow", {"keep_tokens": -1}, "keep_tokens: -1 is not a whole number"),
        ("max_steps", 0, "max_steps: 0 is not a whole number"),
        ("message_concurrency", "newest", "message_concurrency: 'newest' is none of"),
        ("chat_stream_stall_timeout_ms", -1, "chat_stream_stall_timeout_ms: -1 is not a number"),
        ("chat_first_token_timeout_ms", "1", "chat_first_token_timeout_ms: '1' is not a number"),
        ("tool_timeout_ms", 0, "tool_timeout_ms: 0 is not a number"),
        ("model_key", "sk-secret", "model_key: .* is no Secret"),
        ("instructions", ["Be brief."], "instructions: .* is no str"),
    ],
)
def test_a_bound_that_is_none_is_refused_when_the_class_is_made(attribute: str, value: object, words: str) -> None:
    """And not when it is needed, in the midst of a recovery."""
    with pytest.raises(BadRequest, match=words):
        type("Misspelt", (Adder,), {attribute: value})


class Misspelt(Adder):
    """Has a bound that is none, as its objects say."""

    @property
    def chat_recovery(self) -> Any:  # type: ignore[override]
        return {"maxAttempts": 3}


def test_a_bound_that_is_none_is_refused_before_a_turn_is_accepted() -> None:
    async def story(room: Room) -> None:
        for method in ("chat", "submit_messages"):
            with pytest.raises(RemoteError, match="chat_recovery: 'maxAttempts' is none of its fields"):
                await room.do(method, "words")
        assert await room.do("list_turns") == []

    visit(Misspelt, story)
    assert not Outside.provider.log()


@visiting(Adder)
async def test_an_option_that_is_none_is_refused_with_those_that_there_are(room: Room, /) -> None:
    with pytest.raises(BadRequest, match="foo: is not an option") as refused:
        await room.do("chat", "words", foo=1)
    named = refused.value.problem.partition("there are ")[2].split(", ")
    assert set(named) == TurnOptions.__annotations__.keys()
