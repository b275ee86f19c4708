"""The runs of an agent as `useAgentToolEvents` is told of them, and the connections to their children (drill-in)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from perdure.actors import Agent, RunContext, exposed, tool
from perdure.actors.chat.stream import merged
from perdure.actors.events.message_parts import apply_chunk
from perdure.actors.link import messages
from perdure.actors.link.supervisor_client import SupervisorClient
from perdure.actors.serve.app import Gateway
from perdure.scenarios.provider.events import Done, Finish, Role, Text
from perdure.scenarios.provider.faults import Pace
from perdure.scenarios.provider.script import Round, Script, ScriptedCall, ScriptedQuestion
from perdure.scenarios.testing.laboratory import QUICK, Laboratory
from tests.actors.chat.desk import SCRIPT, Adder, Outside
from tests.gateway.door import Door
from tests.gateway.tabs import Tab, stored, tab, texts
from tests.gateway.world import visit

PATH = "/agents/boss/b"
ENDS = ("finished", "error", "aborted")
NOTHING = "cf_agent_stream_resume_none"


class Helper(Adder):
    """A child that is a chat."""

    stands_alone = False


class Reporter(Helper):
    """A child that reports from its tools."""

    @tool
    async def report(self, name: str) -> str:
        """Report a milestone."""
        await self.report_progress(fraction=0.5, message=f"before {name}")
        await self.report_progress(milestone=name)
        return name


class Racer(Agent):
    """Reports a thousand times in a second."""

    async def run(self, input: int, run: RunContext) -> str:
        for step in range(input):
            await run.report_progress(fraction=(step + 1) / input)
            await asyncio.sleep(1 / input)
        return "there"


class Grandchild(Agent):
    """Ends at once."""

    async def run(self, input: int) -> str:
        return "there"


class Pupil(Agent):
    """Has a child of its own."""

    async def run(self, input: str) -> str:
        return str((await self.run_agent_tool(Grandchild, 1, run_id=input)).status)


class Sleeper(Agent):
    """Takes an hour."""

    async def run(self, input: int) -> str:
        await asyncio.sleep(3_600)
        return "awake"


KINDS: dict[str, Any] = {each.__name__: each for each in (Helper, Reporter, Racer, Pupil, Grandchild, Sleeper)}


class Boss(Agent):
    """Has children of every kind."""

    @exposed
    async def begin(self, kind: str, input: Any, run_id: str) -> str:
        """Run one, and wait for its end."""
        return str((await self.run_agent_tool(KINDS[kind], input, run_id=run_id)).status)

    @exposed
    async def batch(self, count: int) -> None:
        """Run many at once."""
        await asyncio.gather(*(self.run_agent_tool(Grandchild, 1, run_id=f"g{each:03}") for each in range(count)))

    @exposed
    async def cancel(self, run_id: str) -> None:
        """Cancel one."""
        await self.cancel_agent_tool(run_id)

    @exposed
    async def forget(self) -> int:
        """Clear what is retained."""
        return await self.clear_agent_tool_runs()


def play(story: Any, script: Script = SCRIPT, between_ms: float = 0, **options: Any) -> None:
    """Play a story in front of an agent with children."""
    Outside.begin(script, pace=Pace(between_ms=between_ms))
    visit([Boss, *KINDS.values()], story, **options)


def begin(watching: Tab, kind: str, input: Any, run_id: str) -> None:
    """Have a child run."""
    watching.send("rpc", id=f"begin-{run_id}", method="begin", args=[kind, input, run_id])


def told(watching: Tab, run_id: str) -> list[dict[str, Any]]:
    """What was told of a run by now."""
    return [each for each in watching.frames if each.get("event", {}).get("runId") == run_id]


async def until_told(watching: Tab, run_id: str, *kinds: str) -> list[dict[str, Any]]:
    """What is told of a run up to an event of these kinds."""
    found = told(watching, run_id)
    while not found or found[-1]["event"]["kind"] not in kinds:
        frame = await watching.next()
        found += [frame] if frame.get("event", {}).get("runId") == run_id else []
    return found


def shown(frames: list[dict[str, Any]]) -> list[Any]:
    """The parts of a run as the hook makes them: each number once."""
    once = {each["sequence"]: each["event"] for each in reversed(frames)}
    chunks = [json.loads(once[number]["body"]) for number in sorted(once) if once[number]["kind"] == "chunk"]
    parts: list[Any] = []
    for chunk in merged(chunks):
        parts = apply_chunk(parts, chunk)
    return parts


def prose(parts: list[Any]) -> str:
    """The text in parts."""
    return "".join(part["text"] for part in parts if part["type"] == "text")


@pytest.mark.shows(clients="P-151 P-157")
def test_a_child_that_dies_and_goes_on_is_shown_once_with_its_true_end() -> None:
    """P-151, P-157: to who was there from the beginning, and to who came later."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as live:
            begin(live, "Helper", "sum", "r")
            while "text-delta" not in str(told(live, "r")):
                await live.next()
            for each in list(laboratory.hosts):
                laboratory.simulation.kill(each)
            frames = await until_told(live, "r", *ENDS)
            messages = await stored(door, f"{PATH}/sub/helper/r")
            assert prose(shown(frames)) == texts(messages)[1]
            assert [each["event"]["kind"] for each in frames].count("started") == 1
            numbers = [each["sequence"] for each in frames if each["event"]["kind"] == "chunk"]
            assert len(set(numbers)) == len(numbers)
        async with tab(door, PATH) as late:
            again = await until_told(late, "r", *ENDS)
            assert prose(shown(again)) == texts(messages)[1]
            assert {each["sequence"] for each in again} <= {each["sequence"] for each in frames}
            assert prose(shown([*frames, *again])) == texts(messages)[1], "what comes twice is known by its number"

    play(story, between_ms=30)


NAMES = ("first", "second", "third")
REPORTS = tuple(
    Round(says=f"{each}. ", calls=(ScriptedCall(name="report", arguments={"name": each}),)) for each in NAMES
)


@pytest.mark.shows(clients="P-153")
def test_progress_and_milestones_come_between_the_chunks() -> None:
    """P-153."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as live:
            begin(live, "Reporter", "reports", "r")
            frames = await until_told(live, "r", *ENDS)
            bodies = [json.loads(each["event"]["body"]) for each in frames if each["event"]["kind"] == "chunk"]
            milestones = [each["data"] for each in bodies if each["type"] == "data-agent-milestone"]
            assert [(each["name"], each["sequence"]) for each in milestones] == [*zip(NAMES, range(3), strict=True)]
            assert "data-agent-progress" in [each["type"] for each in bodies]
            messages = await stored(door, f"{PATH}/sub/reporter/r")
            assert prose(shown(frames)) == texts(messages)[1]

    play(story, Script(questions=(ScriptedQuestion(asks="reports", rounds=REPORTS),)), between_ms=20)


@pytest.mark.shows(clients="P-155")
def test_a_thousand_reports_in_a_second_are_told_in_a_few_frames() -> None:
    """P-155."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as live:
            begin(live, "Racer", 1_000, "fast")
            frames = await until_told(live, "fast", *ENDS)
            reports = [json.loads(each["event"]["body"])["data"] for each in frames if each["event"]["kind"] == "chunk"]
            assert len(reports) <= 8, reports
            assert reports[-1]["fraction"] == 1

    play(story)


@pytest.mark.shows(clients="P-158")
def test_who_is_cancelled_is_told_as_aborted_in_every_tab() -> None:
    """P-158."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as left, tab(door, PATH) as right:
            begin(left, "Pupil", "inner", "outer")
            begin(left, "Sleeper", 1, "asleep")
            for each in (left, right):
                await until_told(each, "asleep", "started")
            right.send("rpc", id="c", method="cancel", args=["asleep"])
            for each in (left, right):
                assert (await until_told(each, "asleep", *ENDS))[-1]["event"]["kind"] == "aborted"

    play(story)


class Asking(SupervisorClient):
    """Counts its questions by their kinds."""

    counted: Counter[str]

    @classmethod
    async def of(cls, door: Door) -> Asking:
        """The questions of a gateway, counted from now on."""
        assert isinstance(door.app, Gateway)
        found = (await door.app.backend.client()).supervisor
        found.__class__ = cls
        assert isinstance(found, cls)
        found.counted = Counter()
        return found

    async def ask(self, question: messages.ScriptedQuestion) -> messages.Plain:
        self.counted[type(question).__name__] += 1
        return await super().ask(question)


def test_a_new_connection_is_told_of_many_retained_runs_by_a_few_questions() -> None:
    """Whether they are in memory or not; and those that have not ended are followed."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        asking = await Asking.of(door)
        async with tab(door, PATH) as live:
            begin(live, "Sleeper", 1, "asleep")
            await until_told(live, "asleep", "started")
            live.send("rpc", id="many", method="batch", args=[450])
            await live.until(id="many", done=True)
            begin(live, "Helper", "sum", "chat")
            frames = await until_told(live, "chat", *ENDS)
        await asyncio.sleep(60)  # idle, so a checkpoint is taken, and what is settled leaves memory
        assert len(laboratory.supervisors[-1].view.runs) < 20
        asking.counted.clear()
        async with tab(door, PATH) as late:
            again = await until_told(late, "chat", *ENDS)
            assert prose(shown(again)) == prose(shown(frames))
            assert all(each["replay"] for each in again)
            for number in range(450):
                kinds = [each["event"]["kind"] for each in told(late, f"g{number:03}")]
                assert kinds == ["started", "finished"]
            assert [each["event"]["kind"] for each in told(late, "asleep")] == ["started"]
            starts = [each["event"]["runId"] for each in late.frames if each.get("event", {}).get("kind") == "started"]
            assert starts == ["asleep", *(f"g{number:03}" for number in range(450)), "chat"]
            late.send("rpc", id="c", method="cancel", args=["asleep"])
            assert (await until_told(late, "asleep", *ENDS))[-1]["event"]["kind"] == "aborted"
        assert asking.counted["KeptFrames"] == 3
        assert asking.counted["Frames"] == 2, "of the one that has not ended"

    play(story, limits=replace(QUICK, retained_in_memory=3))


@pytest.mark.shows(clients="P-162")
def test_a_retained_child_is_shown_whole_asked_for_nothing_and_spoken_to_again() -> None:
    """P-161, P-162."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as live:
            begin(live, "Helper", "words", "r")
            await until_told(live, "r", *ENDS)
            path = f"{PATH}/sub/helper/r"
            before = await stored(door, path)
            assert texts(before)[0] == "words"
            async with tab(door, path) as child:
                assert (await child.probe())["type"] == NOTHING
                child.say("r1", "words again", *before)
                assert (await child.until(id="r1", done=True))[-1]["outcome"] == "completed"
                assert len(await stored(door, path)) == 4
            assert not [each for each in live.frames if each["type"] == "cf_agent_use_chat_response"]
            assert [each["event"]["kind"] for each in told(live, "r")].count("finished") == 1

    play(story)


@pytest.mark.shows(clients="P-166")
def test_a_connection_to_a_child_that_is_cleared_is_closed_and_brings_nothing_back() -> None:
    """P-166."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        path = f"{PATH}/sub/helper/r"
        async with tab(door, PATH) as live:
            begin(live, "Helper", "words", "r")
            await until_told(live, "r", *ENDS)
            async with tab(door, path) as child:
                live.send("rpc", id="f", method="forget", args=[])
                await live.until(id="f")
                child.say("r1", "words")
                while await child.socket.receive() is not None:
                    pass
                assert child.socket.closed is not None
                assert child.socket.closed[0] == 4404, child.socket.closed
            assert (await door.get(f"{path}/get-messages")).status == 404

    play(story)


@pytest.mark.shows(clients="P-168")
def test_runs_of_a_child_are_told_on_its_own_connections() -> None:
    """P-168."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as live:
            begin(live, "Pupil", "inner", "outer")
            await until_told(live, "outer", *ENDS)
            async with tab(door, f"{PATH}/sub/pupil/outer") as child:
                await until_told(child, "inner", *ENDS)
                assert not told(child, "outer")
            assert not told(live, "inner")

    play(story)


def started(watching: Tab) -> list[tuple[str, int]]:
    """The runs in the order in which they were told to have started, with the place that each shall have."""
    found = [each["event"] for each in watching.frames if each.get("event", {}).get("kind") == "started"]
    return [(each["runId"], each["order"]) for each in found]


def _followed(laboratory: Laboratory) -> list[str]:
    """The runs that are followed from now on."""
    client: Any = laboratory._client  # noqa: SLF001 - the story's own
    followed: list[str] = []
    follow = client.follow

    def noted(run_id: str, after: int = -1) -> Any:
        followed.append(run_id)
        return follow(run_id, after)

    client.follow = noted
    return followed


@pytest.mark.shows(clients="P-169")
def test_fifty_children_at_once_are_told_in_the_order_of_their_starts() -> None:
    """P-169."""

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as live:
            live.send("rpc", id="c", method="batch", args=[50])
            await live.until(id="c")
            for each in range(50):
                await until_told(live, f"g{each:03}", *ENDS)
            orders = [started(live)]
        followed = _followed(laboratory)
        async with tab(door, PATH) as late:
            for each in range(50):
                await until_told(late, f"g{each:03}", *ENDS)
            orders.append(started(late))
        assert followed == [], "what has ended is read, and not followed"
        assert orders == [[(f"g{each:03}", 0) for each in range(50)]] * 2

    play(story)


LARGE = "x" * 2_000_000
MUCH = ScriptedQuestion(
    asks="much",
    verbatim=(
        (Role(), *(Text(text=f"{at} ") for at in range(10_000)), Text(text=LARGE), Text(text="∎"), Finish(), Done()),
    ),
)


@pytest.mark.shows(clients="P-172")
@pytest.mark.thorough
def test_ten_thousand_chunks_and_a_large_one_are_replayed_while_the_connection_is_used() -> None:
    """P-171, P-172."""
    whole = "".join(f"{at} " for at in range(10_000)) + LARGE + "∎"

    async def story(door: Door, laboratory: Laboratory) -> None:
        async with tab(door, PATH) as live:
            begin(live, "Helper", "much", "r")
            assert prose(shown(await until_told(live, "r", *ENDS))) == whole
        async with tab(door, PATH) as late:
            begin(late, "Grandchild", 1, "beside")
            clock = asyncio.get_running_loop().time
            began_s = clock()
            assert prose(shown(await until_told(late, "r", *ENDS))) == whole
            assert clock() - began_s < 5
            await until_told(late, "beside", *ENDS)

    play(story, Script(questions=(MUCH,)))
