"""An agent of pydantic-ai, unchanged, as a chat agent: whatever dies, its answer comes, and nothing is asked or done twice."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from datetime import date
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic_ai import Agent as LibraryAgent
from pydantic_ai import ApprovalRequired, ModelMessage, ModelResponse, ModelRetry, RunContext
from pydantic_ai.capabilities import AbstractCapability, ProcessHistory
from pydantic_ai.models.test import TestModel
from pydantic_ai.toolsets import FunctionToolset

from perdure import BadRequest
from perdure.actors import Agent, Client, DurableAgent, tell
from perdure.actors.life.class_options import check_asked
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, WHOLE, Outside, play
from tests.actors.chat.room import Room, calls, outcomes, visit

FINAL = ScriptedQuestion(
    asks="plan",
    rounds=(
        Round(calls=(ScriptedCall(name="add", arguments={"a": 1, "b": 2}),)),
        Round(calls=(ScriptedCall(name="final_result", arguments={"title": "Three", "steps": ["one", "two"]}),)),
    ),
)
TWICE = ScriptedQuestion(
    asks="twice",
    rounds=(
        Round(calls=(ScriptedCall(name="final_result", arguments={"title": 3, "steps": ["one"]}),)),
        Round(calls=(ScriptedCall(name="final_result", arguments={"title": "Three", "steps": ["one"]}),)),
    ),
)
ALL = Script(
    questions=(
        *SCRIPT.questions,
        FINAL,
        TWICE,
        calls("careful", ScriptedCall(name="careful", arguments={"what": "it"})),
        calls("risky", ScriptedCall(name="risky", arguments={"what": "it"})),
        calls("lend", ScriptedCall(name="lend", arguments={"what": "it"})),
        calls("picky", ScriptedCall(name="picky", arguments={"what": "bad"})),
        calls("wrong", ScriptedCall(name="add", arguments={"a": "one", "b": 2})),
    )
)


class Plan(BaseModel):
    """What the planner returns."""

    title: str
    steps: list[str]


def shortened(messages: list[ModelMessage]) -> list[ModelMessage]:
    """A history processor."""
    Outside.effects["processed"] += 1
    for each in messages:
        if isinstance(each, ModelResponse):
            Outside.effects["ended", each.finish_reason] += 1
            Outside.effects["tokens",] += each.usage.output_tokens
    return messages[-20:]


lent = FunctionToolset[str](id="lent")


@lent.tool_plain
async def lend(what: str) -> str:
    """A tool that a capability brings."""
    Outside.effects["lent"] += 1
    return f"here is {what}"


@dataclass
class Lender(AbstractCapability[str]):
    """Brings a toolset, the same to every run or one of the run's own."""

    is_of_run: bool = False

    async def for_run(self, ctx: RunContext[str]) -> AbstractCapability[str]:
        """The capability of one run."""
        return replace(self) if self.is_of_run else self

    def get_toolset(self) -> FunctionToolset[str]:
        """Its tools."""
        return lent


adder = LibraryAgent("test", deps_type=str, name="Summer", capabilities=[ProcessHistory(shortened), Lender()])


@adder.instructions
def who(context: RunContext[str]) -> str:
    """Instructions that are made for each request."""
    return f"You work for {context.deps}."


@adder.system_prompt
def what() -> str:
    """A system prompt."""
    return "You add numbers."


@adder.tool
async def add(context: RunContext[str], a: int, b: int) -> str:
    """Add two numbers."""
    Outside.effects["add", a] += 1
    Outside.effects["for", context.deps] += 1
    await asyncio.sleep(0.05)
    return str(a + b)


@adder.tool_plain(metadata={"effect": "idempotent"})
async def double(a: int) -> str:
    """Double a number."""
    Outside.effects["double", a] += 1
    await asyncio.sleep(0.02)
    return str(2 * a)


@adder.tool
async def risky(context: RunContext[str], what: str) -> str:
    """Find out that an approval is needed."""
    if not context.tool_call_approved:
        raise ApprovalRequired
    Outside.effects["risky"] += 1
    return f"did {what}"


@adder.tool_plain(requires_approval=True)
async def careful(what: str) -> str:
    """Do something that somebody has to allow."""
    Outside.effects["careful"] += 1
    return f"did {what}"


@adder.tool_plain
async def picky(what: str) -> str:
    """Refuse."""
    raise ModelRetry(f"{what} is not good enough")


planner = LibraryAgent("test", output_type=Plan, tools=[add])


async def team() -> str:
    """The dependencies, made where they are needed."""
    return "the team"


class Scripted(DurableAgent):
    """Asks the scripted provider."""

    chat_stream_stall_timeout_ms = 5_000

    def get_model(self) -> Any:
        """The scripted provider, over the library's own client."""
        return Outside.model


Summer = Scripted.of(adder, deps=team)
Renter = Scripted.of(
    LibraryAgent("test", deps_type=str, capabilities=[Lender(is_of_run=True)]), name="Renter", deps=team
)
Planner = Scripted.of(planner, name="Planner", deps=team)


def twice(messages: list[ModelMessage]) -> list[ModelMessage]:
    """A history processor that tells of each result twice."""
    return [
        replace(each, parts=[*each.parts, *(part for part in each.parts if part.part_kind == "tool-return")])
        for each in messages
    ]


Careless = Scripted.of(
    LibraryAgent("test", tools=[add], capabilities=[ProcessHistory(twice)]), name="Careless", deps=team
)


def test_a_simulated_loop_waits_for_what_is_not_async() -> None:
    """Its time flies while a thread works of which it does not know."""

    async def story(room: Room) -> float:
        await room.do("submit_messages", "sum", request_id="asked")
        await room.do("attach", "asked", follow=True)
        return room.laboratory.simulation.now_ms()

    assert visit(Summer, story, ALL) < 3_000


def test_the_agent_of_the_library_plays_the_turn() -> None:
    """Its tools, dependencies, instructions, system prompt and history processors are used; the answer is the one of a chat agent."""
    Outside.begin(ALL)
    result, listeners, _ = play("sum", agent=Summer)
    assert result.text == WHOLE
    assert result.output == WHOLE[WHOLE.index("Done") :]
    assert listeners[0].ends == ["on_done"]
    assert {name: count for name, count in Outside.effects.items() if name[0] in ("add", "double")} == {
        ("add", 0): 1, ("add", 1): 1, ("add", 2): 1, ("double", 7): 1,
    }  # fmt: skip
    assert Outside.effects["for", "the team"] == 3
    assert Outside.effects["processed"] == 3
    assert Outside.effects["ended", "tool_call"] == 3, "it is asked three times, and knows of none, one and two answers"
    assert Outside.effects["tokens",] > 0
    told = str(Outside.provider.log()[-1].body)
    assert "You work for the team." in told
    assert "You add numbers." in told


def test_a_request_that_a_provider_would_refuse_for_ever_is_not_sent() -> None:
    Outside.begin(ALL)
    result, _, _ = play("sum", agent=Careless)
    assert (result.status, result.reason) == ("error", "IllegalRequest")
    assert ", but the results are of " in result.error
    assert len(Outside.provider.log()) == 1
    assert result.message["parts"][-1]["type"] == "tool-add", "of the request that was not sent nothing is left"


@pytest.mark.parametrize("times", [1, 2])
def test_an_answer_that_broke_off_in_its_text_is_gone_on_with(times: int) -> None:
    """The model is told what it had said by then, and is asked to go on; once more if it breaks off again."""
    Outside.begin(ALL, FaultPlan.at(dict.fromkeys(range(1, 1 + times), Fault(kind=FaultKind.RESET, event=2))))
    result, listeners, _ = play("words", agent=Summer)
    assert (result.status, result.output) == ("completed", result.text)
    assert result.text == "Only words: 0 results.\nThat is all. ∎"
    assert [each.ends for each in listeners] == [["on_done"]]
    first, *later = [record.body["messages"] for record in Outside.provider.log()]
    assert len(later) == times
    for sent in later:
        asked, said, word = sent[-3:]
        assert (asked, said["role"], word["role"]) == (first[-1], "assistant", "user")
        assert result.text.startswith(said["content"])


def test_an_output_type_is_the_output() -> None:
    """Structured output is validated by the library and told to the caller as plain data."""
    Outside.begin(ALL)
    result, _, _ = play("plan", agent=Planner)
    assert result.output == {"title": "Three", "steps": ["one", "two"]}
    assert Planner.__module__ == __name__, "it is found again where it was made"
    assert [state for state, _ in outcomes(result.message)] == ["output-available"] * 2


class Column:
    """No plain data; and it is compared element by element, as those of numpy are."""

    def __ne__(self, other: object) -> bool:
        raise ValueError("the truth value of a column is ambiguous")

    def __repr__(self) -> str:
        return "Column(0, 1)"


def one_column(_place: int) -> object:
    """An output function."""
    return Column()


def columns(_place: int) -> object:
    """Another one."""
    return {"columns": [Column()]}


def dated(_place: int) -> object:
    """One whose output is known to pydantic."""
    return {"plan": Plan(title="T", steps=[]), "on": date(2026, 1, 2)}


OneColumn = DurableAgent.of(LibraryAgent("test", output_type=one_column), name="OneColumn")
Columns = DurableAgent.of(LibraryAgent("test", output_type=columns), name="Columns")
Dated = DurableAgent.of(LibraryAgent("test", output_type=dated), name="Dated")


@pytest.mark.parametrize("agent", [OneColumn, Columns])
def test_an_output_that_is_no_plain_data_is_refused_by_its_name_and_kind(agent: type[DurableAgent]) -> None:
    """Its text would be taken for what was returned."""
    result, _, _ = play("columns", agent=agent)
    assert (result.status, result.reason) == ("error", "BadRequest")
    assert "output: Column(0, 1) is Column, which is not plain data" in result.error


def test_an_output_of_models_and_dates_is_told_as_plain_data() -> None:
    result, _, _ = play("dates", agent=Dated)
    assert result.output == {"plan": {"title": "T", "steps": []}, "on": "2026-01-02"}


def test_an_output_that_is_refused_is_asked_for_again() -> None:
    """The library says what is wrong; the call has that as its end."""
    Outside.begin(ALL)
    result, _, _ = play("twice", agent=Planner)
    assert result.output == {"title": "Three", "steps": ["one"]}
    first, second = outcomes(result.message)
    assert first[0] == "output-error"
    assert "title" in first[1]
    assert second[0] == "output-available"


@pytest.mark.parametrize("question", ["wrong", "picky"])
def test_what_is_refused_is_told_to_the_model(question: str) -> None:
    """Arguments that do not fit, and a tool that asks for better ones."""
    Outside.begin(ALL)
    result, _, _ = play(question, agent=Summer)
    assert result.status == "completed"
    ((state, words),) = outcomes(result.message)
    assert state == "output-error"
    assert "not good enough" in words or "valid integer" in words


@pytest.mark.parametrize("tool", ["careful", "risky"])
def test_a_tool_that_needs_approval_waits_for_a_person(tool: str) -> None:
    """The turn is parked, also through a death of the agent, and goes on with the answer; whether the tool was declared so or asks."""

    async def story(room: Room) -> Any:
        turn = room.soon("chat", tool, request_id="asked")
        await room.until(lambda: room.is_("parked"))
        assert Outside.effects[tool] == 0
        (message,) = [each for each in await room.do("get_messages") if each["role"] == "assistant"]
        (call,) = [part["toolCallId"] for part in message["parts"] if "toolCallId" in part]
        room.kill()
        await asyncio.sleep(1)
        assert await room.do("respond_to_approval", call, True)
        await room.until(lambda: room.is_("completed"))
        turn.cancel()
        return await room.do("get_messages")

    messages = visit(Summer, story, ALL)
    assert outcomes(messages[-1]) == [("output-available", "did it")]
    assert Outside.effects[tool] == 1


@pytest.mark.parametrize("agent", [Summer, Renter])
def test_a_tool_that_a_capability_brings_is_a_run(agent: type[DurableAgent]) -> None:
    """So it is made at most once, whatever dies."""

    async def story(room: Room) -> Any:
        result = await room.do("chat", "lend")
        assert [run.agent_type for run in room.view.runs.values()] == ["perdure.tools:ToolRun"]
        return outcomes(result.message)

    assert visit(agent, story, ALL) == [("output-available", "here is it")]
    assert Outside.effects["lent"] == 1


def test_a_second_turn_knows_the_first_and_its_system_prompt() -> None:
    """The history of the library is made of the transcript."""

    async def story(room: Room) -> None:
        await room.do("chat", "sum")
        await room.do("chat", "words")

    visit(Summer, story, ALL)
    told = str(Outside.provider.log()[-1].body)
    assert told.count("You add numbers.") == 1
    assert "And then double it." in told


@pytest.mark.thorough
@pytest.mark.parametrize(("question", "agent"), [("sum", Summer), ("plan", Planner)])
def test_nothing_is_lost_or_done_twice_wherever_a_process_dies(question: str, agent: type[DurableAgent]) -> None:
    """Any process, at every thirteenth kill point that the turn visits."""
    Outside.begin(ALL)
    whole, _, places = play(question, agent=agent)
    for place in range(1, places + 1, 13):
        Outside.begin(ALL)
        result, listeners, _ = play(question, agent=agent, kill_at=place)
        assert result.status == "completed", f"kill_at={place}: {result}"
        done = {name: count for name, count in Outside.effects.items() if name[0] == "add"}
        assert max(done.values(), default=1) == 1, f"kill_at={place}: {done}"
        assert listeners[-1].ends == ["on_done"]
        unknown = [part for part in result.message["parts"] if "OUTCOME UNKNOWN" in part.get("errorText", "")]
        assert unknown or result.output == whole.output, f"kill_at={place}: {result.output}"


def test_a_run_of_it_has_its_output() -> None:
    """As a child of another agent, or of a client."""
    Outside.begin(ALL)

    async def story(client: Client) -> Any:
        return await client.run(Planner, "plan")

    with Laboratory(1) as laboratory:
        result = laboratory.play(story)
    assert result.output == {"title": "Three", "steps": ["one", "two"]}


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("agent", lambda: DurableAgent.of("an agent")),  # type: ignore[arg-type]
        ("name", lambda: DurableAgent.of(planner)),
        ("name", lambda: DurableAgent.of(planner, name="not a name")),
        ("deps", lambda: DurableAgent.of(adder, deps="team")),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_made_durable_is_refused(field: str, make: Any) -> None:
    """With the argument's name."""
    with pytest.raises(BadRequest) as refused:
        make()
    assert refused.value.field == field


said = LibraryAgent(TestModel(custom_output_text="said"))
Said = DurableAgent.of(said, name="Said")


class AsksSaid(Agent):
    """Has it run."""

    async def run(self, input: str) -> str:
        """Ask."""
        return str((await self.run_agent_tool(Said, input)).output)


@pytest.mark.parametrize("override", [{"model": TestModel()}, {"deps": 1}, {"tools": []}, {"instructions": "Sing."}])
def test_an_override_that_no_host_sees_is_refused_where_something_is_asked_for(override: dict[str, Any]) -> None:
    async def asked(client: Client) -> None:
        with said.override(**override):
            for ask in (
                lambda: client.agent(Said, "a").chat("hello"),
                lambda: client.run(Said, "hello"),
                lambda: tell(client.agent(Said, "a").get_messages),
            ):
                with pytest.raises(BadRequest, match=r"overridden here.* `Said.model = TestModel\(\)`"):
                    await ask()
        assert (await client.agent(Said, "a").chat("hello")).text == "said"
        assert (await client.run(AsksSaid, "hello")).output == "said"

    with Laboratory(1) as laboratory:
        laboratory.play(asked)
        with said.override(**override), pytest.raises(BadRequest, match="overridden here"):
            laboratory.agent(Said, "b").chat("hello")
        with said.override(**override), pytest.raises(BadRequest, match="overridden here"):
            laboratory.run(Said, "hello")


relay = LibraryAgent(TestModel())
Relay = DurableAgent.of(relay, name="Relay")


@relay.instructions
async def asks_itself() -> str:
    """As a request for another turn of this agent, within one, would be looked at."""
    check_asked(Relay)
    return "Sing."


def test_in_a_turn_the_same_agent_may_be_asked() -> None:
    with Laboratory(1) as laboratory:
        answer = laboratory.agent(Relay, "a").chat("hello")
    assert (answer.status, answer.error) == ("completed", "")
