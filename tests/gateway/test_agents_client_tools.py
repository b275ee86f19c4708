"""Calls that the client answers, approvals, children, and drill-in, as the frames of the `agents` clients show them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, client_tool, exposed
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.chat.desk import Adder, Outside
from tests.actors.chat.talk import risky
from tests.gateway.door import Door
from tests.gateway.tabs import Tab, chunks, stored, tab, text_of, texts
from tests.gateway.world import visit

ASKS = tuple(ScriptedCall(name="ask_user", arguments={"about": about}) for about in ("colour", "size"))
RISKY = ScriptedCall(name="risky", arguments={"what": "it"})
SCRIPT = Script(
    questions=(
        ScriptedQuestion(asks="two", rounds=(Round(says="Wait. ", calls=ASKS),)),
        ScriptedQuestion(asks="one", rounds=(Round(says="Wait. ", calls=ASKS[:1]),)),
        ScriptedQuestion(asks="risk", rounds=(Round(says="Wait. ", calls=(RISKY,)),)),
        ScriptedQuestion(asks="words", rounds=(), concludes="Only words"),
    )
)
PATH = "/agents/asker/r"


class Asker(Adder):
    """Asks the client, and asks for approval."""

    def tools(self) -> list[Any]:
        """One of each."""
        schema = {"type": "object", "properties": {"about": {"type": "string"}}}
        return [client_tool("ask_user", description="Ask the user.", parameters=schema), risky]


def play(story: Any, between_ms: float = 0, plan: FaultPlan | None = None) -> None:
    """Play a story in front of a chat agent that asks."""
    Outside.begin(SCRIPT, plan, Pace(between_ms=between_ms))
    visit([Asker], story)


async def parked(asking: Tab, wire: str) -> list[str]:
    """Let a turn come to its questions; the ids of their calls."""
    told = await asking.until(id=wire, done=True)
    assert told[-1]["outcome"] == "completed"
    return [each["toolCallId"] for each in chunks(told, wire) if each["type"] == "tool-input-available"]


async def continued(asking: Tab) -> list[dict[str, Any]]:
    """Ask for the continuation as the hook does; its frames, whose id is another one."""
    answer = await asking.probe("continue")
    if answer["type"] == "cf_agent_stream_pending":
        answer = (await asking.until(type="cf_agent_stream_resuming"))[-1]
    assert answer["type"] == "cf_agent_stream_resuming"
    asking.acknowledge(answer["id"])
    told = await asking.until(id=answer["id"], done=True)
    assert all(each["continuation"] for each in told if "seq" in each)
    return told


@pytest.mark.shows(
    chat_recovery="C-0315 C-0326 C-0327 C-0333 C-1001 C-1003 C-1004 C-1006 C-1286 C-1289 C-1290",
    clients="P-129 P-131 P-132 P-140 P-145",
)
def test_one_continuation_follows_when_all_calls_are_answered() -> None:
    """P-129, P-131, P-132, P-134, P-140, P-145: the one who answered owns it, and the other tab sees it live."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            left.say("r1", "two")
            first, second = await parked(left, "r1")
            await right.until(id="r1", done=True)
            left.send("cf_agent_tool_result", toolCallId=first, output="blue", autoContinue=True)
            assert (await left.probe("early"))["type"] == "cf_agent_stream_pending"
            right.send("cf_agent_tool_result", toolCallId=first, output="red", autoContinue=False)
            right.send("cf_agent_tool_result", toolCallId="unknown", output="red", autoContinue=False)
            left.send("cf_agent_tool_result", toolCallId=second, output="large", autoContinue=True)
            await right.until_chunk("start")
            assert (await right.probe("mine?")) == {
                "type": "cf_agent_stream_resume_none", "reason": "continuation-owned", "probeId": "mine?",
            }  # fmt: skip
            told = await continued(left)
            assert text_of(told).endswith("∎")
            await right.until(done=True)
            messages = await stored(door, PATH)
            assert [part.get("output") for part in messages[1]["parts"] if "toolCallId" in part] == ["blue", "large"]
            for each in (left, right):
                await each.until_it_shows(texts(messages))
            updated = [each for each in right.frames if each["type"] == "cf_agent_message_updated"]
            assert updated
            assert len(Outside.provider.log()) == 2

    play(story, between_ms=100)


@pytest.mark.shows(chat_recovery="C-0139", clients="P-135 P-136 P-137 P-138")
def test_an_approval_is_answered_by_the_id_of_its_call() -> None:
    """P-135, P-136, P-137, P-138: also by a tab that came later; the first answer counts."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        for number, approved in enumerate((True, False)):
            wire = f"r{number}"
            async with tab(door, PATH) as asking:
                before = await stored(door, PATH)
                asking.say(wire, "risk", *before)
                await parked(asking, wire)
            messages = await stored(door, PATH)
            (part,) = [part for part in messages[-1]["parts"] if "toolCallId" in part]
            assert part["state"] == "approval-requested"
            ran = Outside.effects["risky", "it"]
            async with tab(door, PATH) as late:
                assert (await late.probe("p"))["type"] == "cf_agent_stream_resume_none"
                for answer in (approved, not approved):
                    late.send(
                        "cf_agent_tool_approval", toolCallId=part["toolCallId"], approved=answer, autoContinue=True
                    )
                told = await continued(late)
                kinds = [each["type"] for each in chunks(told)]
                assert ("tool-output-available" in kinds, "tool-output-denied" in kinds) == (approved, not approved)
                assert "tool-approval-response" not in kinds
            assert Outside.effects["risky", "it"] == ran + approved

    play(story)


@pytest.mark.shows(chat_recovery="C-0137")
def test_a_result_that_is_an_error_is_a_result() -> None:
    """The part becomes an error, and the turn goes on, because the model has to know."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left:
            left.say("r1", "one")
            (call_id,) = await parked(left, "r1")
            left.send(
                "cf_agent_tool_result",
                toolCallId=call_id,
                state="output-error",
                errorText="no camera",
                autoContinue=False,
            )
            await left.until_chunk("finish-step")
            await left.until(done=True)
            (part,) = [part for part in (await stored(door, PATH))[1]["parts"] if "toolCallId" in part]
            assert (part["state"], part["errorText"]) == ("output-error", "no camera")

    play(story)


@pytest.mark.shows(chat_recovery="C-0328 C-0767 C-0768 C-1116", clients="P-075 P-076")
def test_a_failed_turn_is_told_and_told_again_until_the_next() -> None:
    """P-075, P-076."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            left.say("r1", "words")
            for each in (left, right):
                told = await each.until(id="r1", done=True)
                (error,) = [frame for frame in told if frame.get("error")]
                assert error["body"]
                assert error["done"] is False
                assert told[-1]["outcome"] == "error"
            async with tab(door, PATH) as late:
                assert (await late.probe("p"))["type"] == "cf_agent_stream_resuming"
                late.acknowledge("r1")
                last = (await late.until(id="r1", done=True))[-1]
                assert (last["error"], last["body"]) == (True, error["body"])
            left.send("cf_agent_chat_clear")
            await right.until(type="cf_agent_chat_clear")
            assert (await right.probe("p"))["type"] == "cf_agent_stream_resume_none"

    Outside.begin(SCRIPT)
    Asker.get_model = lambda self: "nobody:nothing"  # type: ignore[method-assign]
    try:
        visit([Asker], story)
    finally:
        del Asker.get_model


class Child(Agent):
    """Works in steps."""

    async def run(self, input: int, run: RunContext) -> str:
        for step in range(input):
            await run.report_progress(fraction=(step + 1) / input, milestone=f"step-{step}" if step % 2 else None)
        if input > 90:
            raise ValueError("too many steps")
        return "there"

    @exposed
    def who(self) -> str:
        """The child's own name."""
        return self.name


class Parent(Agent):
    """Has children."""

    @exposed
    async def begin(self, steps: int, run_id: str) -> str:
        """Run a child."""
        return str((await self.run_agent_tool(Child, steps, run_id=run_id)).status)

    @exposed
    async def forget(self) -> int:
        """Clear what is retained."""
        return await self.clear_agent_tool_runs()


async def run_frames(watching: Tab, run_id: str) -> list[dict[str, Any]]:
    """The frames of a run up to its end."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["event"]["kind"] not in ("finished", "error", "aborted"):
        frame = await watching.next()
        if frame["type"] == "agent-tool-event" and frame["event"]["runId"] == run_id:
            found.append(frame)
    return found


@pytest.mark.shows(chat_recovery="C-0763", clients="P-055 P-148 P-150 P-154 P-156 P-160 P-163 P-167")
def test_runs_are_told_live_and_again_with_the_same_numbers() -> None:
    """P-148, P-150, P-151, P-154, P-156, P-160, P-163, P-167."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        path = "/agents/parent/p"
        async with tab(door, path) as live:
            for run_id, steps, kind in (("good", 4, "finished"), ("bad", 91, "error")):
                live.send("rpc", id=run_id, method="begin", args=[steps, run_id])
                told = await run_frames(live, run_id)
                assert told[0]["event"]["kind"] == "started"
                assert told[0]["event"]["agentType"] == "Child"
                assert told[-1]["event"]["kind"] == kind
                numbers = [each["sequence"] for each in told]
                assert numbers == sorted(set(numbers))
            async with tab(door, path) as late:
                again = [*await run_frames(late, "good")]
                assert all(each.pop("replay") for each in again)
                own = [each for each in live.frames if each.get("event", {}).get("runId") == "good"]
                by_number = {each["sequence"]: each for each in own}
                replayed = {each["sequence"]: each for each in again}
                for number, frame in by_number.items():
                    frame.pop("replay", None)
                    if "data-agent-progress" in frame["event"].get("body", ""):
                        continue  # of several the newest is told
                    assert replayed[number] == frame
                milestones = [each for each in again if "data-agent-milestone" in each["event"].get("body", "")]
                assert len(milestones) == 2
        async with tab(door, f"{path}/sub/child/good") as child:
            assert child.frames[0]["name"] == "good"
            assert child.frames[0]["agent"] == "child"
            child.send("rpc", id="1", method="who", args=[])
            assert (await child.until(type="rpc"))[-1]["result"] == "good"
            assert not [each for each in child.frames if each["type"] == "agent-tool-event"]
        async with door.socket(f"{path}/sub/child/never") as socket:
            assert await socket.receive() is None
            assert socket.closed is not None
            assert socket.closed[0] == 4404
        await asyncio.sleep(30)  # what watched the child has let go of it
        async with tab(door, path) as live:
            live.send("rpc", id="clear", method="forget", args=[])
            await live.until(type="rpc")
        async with tab(door, path) as late:
            late.send("rpc", id="again", method="begin", args=[1, "third"])
            await run_frames(late, "third")
            assert {each["event"]["runId"] for each in late.frames if each["type"] == "agent-tool-event"} == {"third"}
        async with door.socket(f"{path}/sub/child/good") as socket:
            assert await socket.receive() is None
            assert socket.closed is not None
            assert socket.closed[0] == 4404

    visit([Parent], story)


class Halting(Agent):
    """Reports twice at once, and then nothing for long."""

    async def run(self, input: str, run: RunContext) -> str:
        await run.report_progress(fraction=0.1)
        await run.report_progress(fraction=0.7)
        await asyncio.sleep(60)
        return "there"


class Patron(Agent):
    """Has such a child."""

    @exposed
    async def begin(self) -> str:
        """Run it."""
        return str((await self.run_agent_tool(Halting, "", run_id="halting")).status)


def test_the_newest_report_of_progress_is_told_soon_although_it_came_too_fast() -> None:
    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, "/agents/patron/p") as live:
            live.send("rpc", id="1", method="begin", args=[])
            clock = asyncio.get_running_loop().time
            began_s, told = clock(), 0.0
            while told != 0.7:
                frame = await live.next()
                body = frame.get("event", {}).get("body", "")
                told = json.loads(body)["data"]["fraction"] if "data-agent-progress" in body else told
            assert clock() - began_s < 30
            await run_frames(live, "halting")

    visit([Patron], story)
