"""Telemetry under a real Ray: one tree of spans across processes, some of which are killed, and nothing in it that was not asked for."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import ray
from opentelemetry import trace
from pydantic_ai.messages import ModelMessage, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, DeltaToolCall, FunctionModel

from perdure.actors import Agent, ChatAgent, FiberContext, Occurrence, RunContext, Runtime, agent_tool, exposed, tool
from perdure.ledger import Secret
from perdure.policies import Limits
from tests.actors.secret_cast import found_in
from tests.collector import Collector, Received, collector

pytestmark = pytest.mark.thorough

KEY, QUESTION, TOPIC, FOUND = "PERDURE_TEST_KEY", "Where is Atlantis?", "the-lost-island", "below-the-waves"


async def answer(messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[Any]:
    """Look it up and have it researched; then tell what came of it."""
    results = [part for each in messages for part in each.parts if isinstance(part, ToolReturnPart)]
    if results:
        yield " ".join(str(part.content) for part in results)
        return
    yield {
        0: DeltaToolCall(name="look_up", json_args=f'{{"topic": "{TOPIC}"}}', tool_call_id="call-1"),
        1: DeltaToolCall(name="research", json_args=f'{{"input": "{TOPIC}"}}', tool_call_id="call-2"),
    }


@tool
async def look_up(topic: str) -> str:
    """Look a topic up."""
    return f"{FOUND} {topic} {Secret(KEY).reveal()}"


class Researcher(Agent):
    """Says in which process it is, and in its first attempt waits to be killed there."""

    async def run(self, input: str, run: RunContext) -> str:
        place = Path(os.environ["PERDURE_TEST_PLACE"])
        print("at the library")  # noqa: T201 - its record is looked at
        (place / f"attempt-{run.attempt}").write_text(str(os.getpid()))
        while run.attempt == 1:
            await asyncio.sleep(60)
        with trace.get_tracer("researcher").start_as_current_span("reading"):
            return FOUND


class Head(ChatAgent):
    """Has a tool and a child."""

    model: ClassVar[Any] = FunctionModel(stream_function=answer)

    def tools(self) -> list[Any]:
        return [look_up, agent_tool(Researcher, name="research", description="Research a topic.", input=str)]

    @exposed
    async def plan(self) -> None:
        """Have work done that is neither a run nor a turn."""
        self.start_fiber("survey", "survey", fiber_id="survey", retry=3)
        self.queue("note", key="note")

    async def survey(self, fiber: FiberContext) -> None:
        """In its first attempt it waits to be killed."""
        (Path(os.environ["PERDURE_TEST_PLACE"]) / f"survey-{fiber.attempt}").touch()
        while fiber.attempt == 1:
            await asyncio.sleep(60)

    def note(self, payload: Any, occurrence: Occurrence) -> None:
        """An author's own span in a callback."""
        with trace.get_tracer("head").start_as_current_span("noting"):
            pass

    @exposed
    async def process(self) -> int:
        """In which process it is."""
        return os.getpid()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("telemetry")


@pytest.fixture(scope="module")
def key() -> str:
    return "sk-" + secrets.token_hex(16)


@pytest.fixture(scope="module")
def received(place: Path, key: str) -> Iterator[Collector]:
    """What a collector received of one conversation, of which the agent's own process and that of its child are killed."""
    with pytest.MonkeyPatch.context() as patch, collector() as held:
        patch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", held.url)
        patch.setenv("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={key[::-1]}")
        patch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "500")
        patch.setenv("PERDURE_TEST_PLACE", str(place))
        patch.setenv(KEY, key)
        _converse(place, held)
        yield held


ABOVE = trace.SpanContext(int("ab" * 16, 16), int("cd" * 8, 16), is_remote=False, trace_flags=trace.TraceFlags(1))


def _converse(place: Path, held: Collector) -> None:
    with Runtime(place / "data", limits=Limits(hosts_max=2)) as runtime:
        session = ray._private.worker.global_worker.node.get_session_dir_path()  # noqa: SLF001 - nothing public tells
        (place / "session").symlink_to(session)
        head = runtime.agent(Head, "head")
        with trace.use_span(trace.NonRecordingSpan(ABOVE)):
            asked = head.submit_messages(QUESTION)
            head.plan()
        _until(lambda: (place / "attempt-1").exists() and (place / "attempt-1").read_text())
        held.wait_for(lambda it: any(name.startswith("chat") for name in it.names))
        held.wait_for(lambda it: {"execute_tool look_up", "queue note", "noting"} <= set(it.names))
        _until((place / "survey-1").exists)
        own, child = head.process(), int((place / "attempt-1").read_text())
        for pid in {own, child}:
            os.kill(pid, signal.SIGKILL)
        told = head.attach(asked["request_id"])
        while told.status == "interrupted":
            told = head.attach(asked["request_id"], first=told.next_event)
        assert told.ok, told
        assert FOUND in told.text
        held.wait_for(lambda it: _ended(it) == 2 and "perdure.recoveries" in it.metrics)
        held.wait_for(lambda it: it.names.count("invoke_agent Head") == 2 and "reading" in it.names)
        held.wait_for(lambda it: it.names.count("fiber survey") == 2)


def _until(condition: Callable[[], object]) -> None:
    end_s = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def _named(received: Collector, name: str) -> list[Received]:
    return [span for span in received.spans if span.name == name]


def test_all_processes_tell_one_tree(received: Collector) -> None:
    spans = received.spans
    assert {span.trace_id for span in spans} == {"ab" * 16}
    ids = {span.span_id for span in spans} | {"cd" * 8}
    assert [span for span in spans if span.parent not in ids] == []
    assert all(span.end_ms >= span.start_ms > 0 for span in spans)
    turns = _named(received, "invoke_agent Head")
    assert {span.parent for span in turns} == {"cd" * 8}
    (call,) = _named(received, "execute_tool research")
    assert call.parent == turns[0].span_id
    assert {span.parent for span in _named(received, "invoke_agent Researcher")} == {call.span_id}
    (look,) = _named(received, "execute_tool look_up")
    assert look.parent == turns[0].span_id
    for name in ("fiber survey", "queue note"):
        assert {span.parent for span in _named(received, name)} == {"cd" * 8}
    assert len({span.process for span in spans}) >= 3


def test_attempts_that_were_killed_are_ended_and_linked(received: Collector) -> None:
    lost = {"invoke_agent Head": "process_lost", "invoke_agent Researcher": "host_lost", "fiber survey": "process_lost"}
    for name, error in lost.items():
        first, *later = _named(received, name)
        assert (first.is_error, first.attributes["error.type"]) == (True, error)
        assert not later[-1].is_error
        assert [span.links for span in later] == [[span.span_id] for span in [first, *later][:-1]]


def test_what_an_author_traces_stands_below_the_attempt(received: Collector) -> None:
    (reading,), (noting,) = _named(received, "reading"), _named(received, "noting")
    assert reading.parent == _named(received, "invoke_agent Researcher")[-1].span_id
    assert noting.parent == _named(received, "queue note")[0].span_id


def test_neither_content_nor_a_secret_reaches_the_collector(received: Collector, key: str) -> None:
    for words in (QUESTION, TOPIC, FOUND, key, key[::-1]):
        assert all(words.encode() not in body for body in received.bodies), words


def test_metrics_of_supervisor_and_hosts_arrive(received: Collector) -> None:
    expected = {
        "gen_ai.client.token.usage",
        "gen_ai.client.operation.duration",
        "perdure.commit.duration",
        "perdure.runs",
        "perdure.runs.live",
        "perdure.runs.ended",
        "perdure.recoveries",
    }
    assert expected <= received.metrics.keys()
    assert sum(point.as_int + point.as_double for point in received.metrics["perdure.recoveries"]) >= 1
    assert _ended(received) == 2


def _ended(received: Collector) -> float:
    """How many runs have completed, as the newest point says."""
    points = received.metrics.get("perdure.runs.ended", ())
    ends = {point.attributes[0].value.string_value: point.as_int + point.as_double for point in points}
    return ends.get("completed", 0.0)


def test_a_record_of_the_log_names_its_span(received: Collector, place: Path) -> None:
    lines = [line for path in (place / "data" / "logs").glob("*.jsonl") for line in path.read_text().splitlines()]
    said = [record for record in map(json.loads, lines) if record["text"] == "at the library"]
    attempts = {span.span_id for span in _named(received, "invoke_agent Researcher")}
    assert {record["trace"] for record in said} == {"ab" * 16}
    assert {record["span"] for record in said} <= attempts
    assert said


def test_neither_logs_nor_data_hold_the_key_of_the_collector(received: Collector, place: Path, key: str) -> None:
    for folder in (place / "data", Path((place / "session").readlink())):
        assert found_in(folder, "INFO")
        assert found_in(folder, key[::-1]) == []
