"""What a chat agent can be asked, and what it does, while nothing goes wrong outside of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from pydantic import BaseModel

from perdure.actors import (
    Agent,
    ChatAgent,
    Client,
    Detached,
    RunCompleted,
    RunContext,
    RunInfo,
    TurnResult,
    agent_tool,
    client_tool,
    exposed,
    tool,
)
from perdure.actors.code.author_call import SUMMARY_CHARS_MAX, without_middle
from perdure.ledger import BadRequest, ConflictingRequest
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import SCRIPT, WHOLE, Adder, Listener, Outside
from tests.actors.chat.room import outcomes
from tests.actors.chat.talk import risky, streams
from tests.kit import address, played

Story = Callable[[Client], Awaitable[Any]]


def tell(story: Story, script: Script = SCRIPT, pace: Pace | None = None, *, rests: bool = True) -> Any:
    """Play a story in a quiet world, which must come to rest."""
    Outside.begin(script, None, pace)
    with Laboratory(3) as laboratory:
        result = laboratory.play(story)
        if rests:
            laboratory.settle()
        laboratory.simulation.raise_errors()
    assert Outside.provider.counters().illegal == 0, Outside.provider.log()
    return result


async def call(client: Client, agent: type[Agent], method: str, *args: Any, **options: Any) -> Any:
    return await client.call(agent, "somebody", method, args, options)


SLOW = Pace(first_ms=200, between_ms=50)


@pytest.mark.shows(chat_recovery="W-47")
@played(tell)
async def test_a_turn_can_be_submitted_and_asked_about(client: Client, /) -> None:
    """The same key with the same content is the same turn; with other content it is refused (W-47, C submissions)."""
    first = await call(client, Adder, "submit_messages", "words", idempotency_key="k")
    again = await call(client, Adder, "submit_messages", "words", idempotency_key="k")
    assert (first["accepted"], again["accepted"]) == (True, False)
    assert first["request_id"] == again["request_id"]
    with pytest.raises(ConflictingRequest):
        await call(client, Adder, "submit_messages", "other words", idempotency_key="k")
    result = await call(client, Adder, "attach", first["request_id"])
    assert result.ok
    told = await call(client, Adder, "inspect_turn", first["request_id"])
    assert (told["status"], told["trigger"], told["attempt"]) == ("completed", "submission", 1)
    assert [each["request_id"] for each in await call(client, Adder, "list_turns")] == [first["request_id"]]
    assert await call(client, Adder, "delete_turns") == 1
    assert await call(client, Adder, "inspect_turn", first["request_id"]) is None
    assert len(await call(client, Adder, "get_messages")) == 2


@pytest.mark.shows(chat_recovery="C-0477 C-0480 C-0530")
@played(tell)
async def test_turns_are_played_in_the_order_of_their_acceptance(client: Client, /) -> None:
    """One at a time, each with the transcript of those before it (C turn queue)."""
    asked = [await call(client, Adder, "submit_messages", f"words {number}") for number in range(3)]
    for each in asked:
        assert (await call(client, Adder, "attach", each["request_id"])).ok
    roles = [message["role"] for message in await call(client, Adder, "get_messages")]
    assert roles == ["user", "assistant"] * 3
    assert Outside.provider.counters().open_most == 1


@pytest.mark.shows(chat_recovery="C-0007")
@played(lambda story: tell(story, pace=SLOW))
async def test_a_queued_turn_that_is_cancelled_never_begins(client: Client, /) -> None:
    """Its messages do not join the transcript (#1741). What is over or unknown is cancelled by nobody (C-0007)."""
    first = await call(client, Adder, "submit_messages", "words one")
    second = await call(client, Adder, "submit_messages", "words two")
    assert await call(client, Adder, "cancel_chat", second["request_id"], "not needed") is True
    for unknown in (second["request_id"], "nobody"):
        assert await call(client, Adder, "cancel_chat", unknown) is False
    assert (await call(client, Adder, "attach", first["request_id"])).ok
    ended = await call(client, Adder, "attach", second["request_id"])
    assert (ended.status, ended.reason) == ("aborted", "cancelled")
    assert len(await call(client, Adder, "get_messages")) == 2


@pytest.mark.shows(chat_recovery="C-0499 C-0500 C-0501 C-0502 C-0544 C-1211")
@played(lambda story: tell(story, pace=SLOW))
async def test_a_running_turn_that_is_cancelled_keeps_what_it_said(client: Client, /) -> None:
    """It ends as aborted, once, for whoever watches (W-21)."""
    listener = Listener()
    asking = asyncio.ensure_future(call(client, Adder, "chat", "sum", listener, request_id="asked"))
    while "text-delta" not in listener.types:
        await asyncio.sleep(0.05)
    assert await call(client, Adder, "cancel_chat", "asked", "changed my mind") is True
    result = await asking
    assert result.status == "aborted"
    assert listener.ends == ["on_error"]
    assert result.text
    assert (await call(client, Adder, "chat", "words")).ok


class Asker(Adder):
    """Has a tool of its client's, and one that wants to be allowed."""

    def tools(self) -> list[Any]:
        """A question for the person, and an act that needs a yes."""
        question = client_tool("ask_user", description="Ask.", parameters={"type": "object", "properties": {}})
        return [question, risky]


def _round(name: str, **arguments: Any) -> Script:
    return Script(
        questions=(ScriptedQuestion(asks="go", rounds=(Round(calls=(ScriptedCall(name=name, arguments=arguments),)),)),)
    )


async def _parked(client: Client) -> str:
    """Ask, and wait until somebody is waited for; the id of the call."""
    await call(client, Asker, "submit_messages", "go", request_id="asked")
    while not await call(client, Asker, "has_pending_interaction"):
        await asyncio.sleep(0.1)
    told = await call(client, Asker, "inspect_turn", "asked")
    while told["status"] != "parked":
        await asyncio.sleep(0.1)
        told = await call(client, Asker, "inspect_turn", "asked")
    (message,) = [each for each in await call(client, Asker, "get_messages") if each["role"] == "assistant"]
    return str(next(part["toolCallId"] for part in message["parts"] if "toolCallId" in part))


@pytest.mark.shows(chat_recovery="C-0073 C-0971 C-0995")
@played(lambda story: tell(story, _round("ask_user")))
async def test_a_turn_waits_for_its_client_and_goes_on_with_the_first_answer(client: Client, /) -> None:
    """Parked, it costs nothing and holds up nobody, and it survives the sleep of its agent (spec §7)."""
    call_id = await _parked(client)
    await asyncio.sleep(10)  # long enough for the agent to sleep
    assert await call(client, Asker, "resolve_tool_call", call_id, "blue") is True
    assert await call(client, Asker, "resolve_tool_call", call_id, "red") is False
    result = await call(client, Asker, "attach", "asked")
    assert result.ok
    answers = [part["output"] for part in result.message["parts"] if "output" in part]
    assert answers == ["blue"]


@pytest.mark.shows(chat_recovery="C-0789 C-0790 C-0791 C-0798 C-0834 C-0837 C-0973 C-0974")
@pytest.mark.parametrize("allowed", [True, False])
@played(lambda story: tell(story, _round("risky", what="it")))
async def test_a_call_that_needs_approval_runs_only_when_it_is_approved(client: Client, /, allowed: bool) -> None:
    """A refusal is told to the model as one; the call never ran."""
    call_id = await _parked(client)
    assert Outside.effects["risky", "it"] == 0
    assert await call(client, Asker, "respond_to_approval", call_id, allowed) is True
    result = await call(client, Asker, "attach", "asked")
    assert result.ok
    assert Outside.effects["risky", "it"] == int(allowed)


@pytest.mark.shows(chat_recovery="W-29")
@played(lambda story: tell(story, _round("ask_user")))
async def test_another_turn_may_pass_one_that_waits(client: Client, /) -> None:
    """The request pairs all the same, and the question stays open (W-29)."""
    call_id = await _parked(client)
    assert (await call(client, Asker, "chat", "something else")).ok
    assert await call(client, Asker, "resolve_tool_call", call_id, "late") is True
    assert (await call(client, Asker, "attach", "asked")).ok


class Parent(Adder):
    """Has a chat child and a plain child as tools."""

    def tools(self) -> list[Any]:
        """The children."""
        return [
            agent_tool(Adder, name="ask_adder", description="Ask another chat."),
            agent_tool(Counting, name="count", description="Count.", input=int),
            agent_tool(Counting, name="count_later", description="Count.", input=int, detached=True),
        ]

    @exposed
    async def begin(self) -> str:
        """Begin a detached child that tells this chat of its end."""
        handle = await self.run_agent_tool(Counting, 3, run_id="counted", detached=Detached(notify=True))
        return str(handle.run_id)


class Planner(ChatAgent[dict[str, Any]]):
    """A chat whose output has a structure."""

    def get_model(self) -> Any:
        return Outside.model

    def get_agent_tool_output(self, result: TurnResult, run: RunContext) -> dict[str, Any]:
        return {"run": run.run_id, "steps": ["first", "then"], "text": "x" * 600}


class Plan(BaseModel):
    steps: list[str]


class Unmade(ChatAgent[Plan]):
    """A chat that names a structure, and does not say how its answer becomes one."""

    def get_model(self) -> Any:
        return Outside.model


class MadeLater(Unmade):
    """The same, and it makes it of what its run gives."""

    async def run(self, input: Any, run: RunContext) -> Plan:
        return Plan(steps=[str(await super().run(input, run))])


class Delegating(Adder):
    """Has a planner, detached."""

    @exposed
    async def begin(self) -> None:
        """Begin the planner, which tells this chat of its end."""
        await self.run_agent_tool(Planner, "words", run_id="plan", detached=Detached(notify=True))


class Counting(Agent):
    """Counts."""

    async def run(self, input: int, run: RunContext) -> str:
        """Count to a number."""
        await run.report_progress(milestone="halfway")
        return f"counted to {input}"


def test_agents_are_tools_of_a_chat() -> None:
    """A chat child and a plain one, each a run of its own with its parent's call (seed 003)."""
    rounds = (
        Round(
            calls=(
                ScriptedCall(name="ask_adder", arguments={"message": "words please"}),
                ScriptedCall(name="count", arguments={"input": 5}),
                ScriptedCall(name="count_later", arguments={"input": 6}),
            )
        ),
    )
    script = Script(questions=(ScriptedQuestion(asks="family", rounds=rounds), *SCRIPT.questions))

    async def story(client: Client) -> None:
        result = await call(client, Parent, "chat", "family")
        assert result.ok, result
        outputs = [part["output"] for part in result.message["parts"] if "output" in part]
        assert "counted to 5" in outputs
        assert any("Only words" in str(output) for output in outputs), result.message
        (begun,) = [output for output in outputs if "runId" in str(output)]
        assert begun["status"] == "running"
        while (run := await client.ask("inspect", begun["runId"]))["status"] != "completed":
            await asyncio.sleep(0.2)
        assert run["output"] == "counted to 6", "nobody has waited for it"

    tell(story, script)


@played(tell)
async def test_a_chat_reads_the_structured_result_of_its_detached_chat_child(client: Client, /) -> None:
    """The summary is the output as JSON, shortened; the notice has all of it."""
    await call(client, Delegating, "begin")
    while not (told := await call(client, Delegating, "get_messages")):
        await asyncio.sleep(0.2)
    run = await client.ask("inspect", "plan")
    assert (run["summary"][:40], len(run["summary"])) == ('{"run":"plan","steps":["first","then"],"', 500)
    text = told[0]["parts"][0]["text"]
    assert "has completed" in text
    assert json.loads(text.partition("\n\n")[2]) == run["output"]


@played(tell)
async def test_a_chat_that_names_a_structure_and_gives_its_text_is_told_which_method_makes_it(
    client: Client, /
) -> None:
    ended = await client.run(Unmade, "words", run_id="unmade")
    assert "output: the text of its answer was given where Plan is wanted" in ended.error
    assert "override `get_agent_tool_output`" in ended.error
    made = await client.run(MadeLater, "words", run_id="made")
    assert [type(step) for step in made.output.steps] == [str]


@pytest.mark.parametrize(
    ("summary", "output", "detail"),
    [
        ("", {"n": 1}, '{"n":1}'),
        ('{"n":1}', {"n": 1}, '{"n":1}'),
        (json.dumps(["x" * 600]), ["x" * 600], json.dumps(["x" * 600])),
        ("one", {"n": 1}, 'one\n\n{"n":1}'),
        ("one", "two", "one"),
        (without_middle("two" * 10_000, SUMMARY_CHARS_MAX), "two" * 10_000, "two" * 10_000),
        ("", "two", "two"),
        ("one", None, "one"),
        ("", None, ""),
    ],
)
def test_the_notice_of_an_end_has_the_summary_and_the_output_once_each(summary: str, output: Any, detail: str) -> None:
    run = RunInfo(run_id="r", agent_type="cast:Planner")
    result = RunCompleted(run_id="r", agent_type="cast:Planner", output=output, summary=summary)
    told = asyncio.run(ChatAgent.format_detached_completion(object.__new__(Adder), run, result))
    assert told == "The background run r (Planner) has completed." + (f"\n\n{detail}" if detail else "")


@pytest.mark.shows(agent_tools="124", chat_recovery="C-0641")
@played(lambda story: tell(story, rests=False))
async def test_a_detached_run_tells_its_chat_once_and_the_model_answers(client: Client, /) -> None:
    """`notify`: one message of the user, and a turn (seed 003)."""
    assert await call(client, Parent, "begin") == "counted"
    while len(await call(client, Parent, "get_messages")) < 2:
        await asyncio.sleep(0.2)
    told, answer = await call(client, Parent, "get_messages")
    assert "counted to 3" in told["parts"][0]["text"]
    assert told["metadata"]["source"] == "detached-agent-tool"
    assert answer["role"] == "assistant"


@pytest.mark.shows(chat_recovery="W-23 W-24")
def test_a_callback_that_raises_or_hangs_stops_nothing() -> None:
    """The turn does not wait for it, and it is still told the end (W-23, W-24)."""

    class Rude(Listener):
        async def on_event(self, event: Any) -> None:
            super().on_event(event)
            raise RuntimeError("I do not want to know")

    class Asleep(Listener):
        async def on_event(self, event: Any) -> None:
            super().on_event(event)
            await asyncio.sleep(10_000)

    async def story(client: Client) -> None:
        for listener in (Rude(), Asleep()):
            result = await call(client, Adder, "chat", "sum", listener)
            assert result.text == WHOLE
            assert listener.ends == ["on_done"]
            assert len(listener.types) == 1

    tell(story)


@pytest.mark.shows(chat_recovery="C-0481")
@played(lambda story: tell(story, pace=SLOW))
async def test_the_conversation_can_be_cleared(client: Client, /) -> None:
    """What was under way ends as aborted, and nothing comes back (invariant 10)."""
    assert (await call(client, Adder, "chat", "words")).ok
    await call(client, Adder, "submit_messages", "sum", request_id="under-way")
    await call(client, Adder, "clear")
    assert await call(client, Adder, "get_messages") == []
    assert await call(client, Adder, "list_turns") == []
    assert (await call(client, Adder, "chat", "words")).ok
    assert len(await call(client, Adder, "get_messages")) == 2


class Hirer(Adder):
    """Has a tool in its own process that requests a run."""

    def tools(self) -> list[Any]:
        """A child too."""
        return [*super().tools(), agent_tool(Errand, name="send", description="Send somebody.", input=str)]

    @tool
    async def hire(self, what: str) -> str:
        """Have something done by a run that is not named."""
        return str((await self.run_agent_tool(Errand, what)).output)


class Errand(Agent):
    """Counts what it has done."""

    async def run(self, what: str, run: RunContext) -> str:
        """Do it."""
        Outside.effects["errand", what] += 1
        return f"{what}, time {Outside.effects['errand', what]}"


HIRED = streams(
    ScriptedCall(name="hire", arguments={"what": "a"}), ScriptedCall(name="send", arguments={"input": "b"}), asks="go"
)
ADDED = streams(
    ScriptedCall(name="add", arguments={"a": 1, "b": 2}),
    ScriptedCall(name="add", arguments={"a": 2, "b": 2}),
    asks="add",
)


@pytest.mark.parametrize("between", ["nothing", "clear", "delete_turns", "forget"])
@played(lambda story: tell(story, Script(questions=(HIRED.questions[0], ADDED.questions[0]))))
async def test_each_turn_has_runs_of_its_own_whatever_its_request_is_called(client: Client, /, between: str) -> None:
    """In another chat, after the conversation was cleared, after its ended turns were deleted, or the agent itself was."""
    for count, name in enumerate(("ann", "bob") if between == "nothing" else ("ann", "ann"), 1):
        result = await client.call(Hirer, name, "chat", ("go",), {"request_id": "asked"})
        assert outcomes(result.message) == [
            ("output-available", f"a, time {count}"),
            ("output-available", f"b, time {count}"),
        ]
        await client.call(Hirer, name, "chat", ("add",), {"request_id": "added"})
        assert (Outside.effects["add", 1], Outside.effects["add", 2]) == (count, count)
        if between == "forget":
            await client.ask("forget", address(Hirer, name))
        elif between != "nothing":
            await client.call(Hirer, name, between, (), {})


@pytest.mark.shows(chat_recovery="C-0537 C-0538")
@played(tell)
async def test_a_continuation_goes_on_in_the_same_message(client: Client, /) -> None:
    """It appends, under the same id (W-45); without an answer to go on with it is skipped."""
    skipped = await call(client, Adder, "continue_last_turn")
    assert skipped.status == "skipped"
    first = await call(client, Adder, "chat", "words")
    more = await call(client, Adder, "continue_last_turn")
    assert more.message["id"] == first.message["id"]
    assert more.text.startswith(first.text)
    assert len(await call(client, Adder, "get_messages")) == 2


class Curt(Adder):
    """Takes no message while a turn is under way."""

    message_concurrency = "drop"


class Latest(Adder):
    """Answers the latest of the messages that came meanwhile."""

    message_concurrency = "latest"


@played(lambda story: tell(story, pace=Pace(first_ms=3000)))
async def test_a_message_during_a_turn_is_dropped_where_the_author_says_so(client: Client, /) -> None:
    """Nothing of it is kept, and its sender is told."""
    first = asyncio.ensure_future(call(client, Curt, "chat", "words", request_id="first"))
    await asyncio.sleep(1.0)
    listener = Listener()
    second = await call(client, Curt, "chat", "words again", listener)
    assert (second.status, second.reason) == ("skipped", "dropped")
    assert listener.ends == ["on_error"]
    assert (await first).ok
    assert len(await call(client, Curt, "get_messages")) == 2


@played(lambda story: tell(story, pace=Pace(first_ms=3000)))
async def test_the_latest_message_takes_the_place_of_those_before_it(client: Client, /) -> None:
    """Theirs stay in the transcript; the model answers once (C submit concurrency)."""
    jobs = []
    for number in range(4):
        jobs.append(asyncio.ensure_future(call(client, Latest, "chat", f"words {number}")))
        await asyncio.sleep(0.5)
    statuses = [(await job).status for job in jobs]
    assert statuses == ["completed", "skipped", "skipped", "completed"]
    roles = [message["role"] for message in await call(client, Latest, "get_messages")]
    assert roles == ["user", "assistant", "user", "user", "user", "assistant"]


@pytest.mark.shows(chat_recovery="W-41")
@pytest.mark.parametrize(
    ("args", "options", "field"),
    [
        ((["not a message"],), {"chat_stream_stall_timeout_ms": -1}, "chat_stream_stall_timeout_ms"),
        (([],), {}, "messages"),
        (({"role": "robot", "parts": []},), {}, "messages.role"),
        (("hello",), {"request_id": "a\x00b"}, "request_id"),
        (("hello",), {"idempotency_key": " "}, "idempotency_key"),
        (("hello",), {"colour": "blue"}, "colour"),
        (("hello",), {"client_tools": "none"}, "client_tools"),
    ],
)
@played(tell)
async def test_bad_requests_name_the_field_and_leave_nothing(
    client: Client, /, args: Any, options: Any, field: str
) -> None:
    """A typed error, and no turn."""
    with pytest.raises(BadRequest) as refused:
        await call(client, Adder, "submit_messages", *args, **options)
    assert refused.value.field == field
    assert await call(client, Adder, "list_turns") == []


@played(tell)
async def test_a_chat_is_run_like_any_agent(client: Client, /) -> None:
    """As a run it has an output, a summary, and frames that can be followed (seed 003)."""
    result = await client.run(Adder, "sum", run_id="one")
    assert result.output == WHOLE
    frames = await client.ask("frames", "one", -1)
    kinds = [frame["event"]["kind"] for frame in frames]
    assert kinds[0] == "started"
    assert kinds[-1] == "finished"
    assert "chunk" in kinds
    again = await client.run(Adder, "sum", run_id="one")
    assert again.output == WHOLE


@played(tell)
async def test_base_classes_need_a_model(client: Client, /) -> None:
    """Without one the turn ends in words that say what is missing, and the agent goes on."""
    class_ = ChatAgent
    result = await call(client, class_, "chat", "hello")
    assert result.status == "error"
    assert "model" in result.error
