"""What a request asks for stands below whoever made it, in a trace."""

from __future__ import annotations

import asyncio

import pytest

from perdure.actors.serve.app import Traced
from perdure.actors.telemetry.telemetry import TRACE
from perdure.policies import TraceContext
from perdure.scenarios.testing.laboratory import Laboratory
from tests.actors.traces import Recorder
from tests.gateway.cast import CHAT as TALKER
from tests.gateway.cast import script
from tests.gateway.door import Door
from tests.gateway.world import visit

PLACE = {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01"}
ASKED = {
    "id": "c",
    "trigger": "submit-message",
    "messages": [{"id": "m1", "role": "user", "parts": [{"type": "text", "text": "words"}]}],
}


@pytest.mark.parametrize(
    ("headers", "is_below"), [(PLACE, True), ({}, False), ({"traceparent": "nonsense \u00fc"}, False)]
)
def test_a_turn_stands_where_its_request_says(
    headers: dict[str, str], is_below: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://there")
    recorder = Recorder()

    async def story(door: Door, _laboratory: Laboratory) -> None:
        answer = await door.post("/chat/talker", ASKED, headers=headers)
        assert answer.status == 200

    script()
    visit([TALKER], story, telemetry=recorder)
    (turn,) = recorder.named("invoke_agent Talker")
    assert (turn.parent == "cd" * 8) is is_below
    assert (turn.context.trace_id == "ab" * 16) is is_below


def test_while_telemetry_is_off_the_header_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    recorder = Recorder()

    async def story(door: Door, _laboratory: Laboratory) -> None:
        assert (await door.post("/chat/talker", ASKED, headers=PLACE)).status == 200

    script()
    visit([TALKER], story, telemetry=recorder)
    assert recorder.one("invoke_agent Talker").parent == ""


def test_what_an_app_does_after_a_request_does_not_stand_below_it() -> None:
    """The gateway may be mounted in the app of somebody else, which goes on in the same task."""
    seen: list[TraceContext | None] = []

    async def inner(*_: object) -> None:
        seen.append(TRACE.get())

    async def story() -> None:
        given = [(name.encode(), value.encode()) for name, value in PLACE.items()]
        await Traced(inner)({"type": "http", "headers": given}, asyncio.Queue().get, asyncio.Queue().put)
        await inner()

    asyncio.run(story())
    assert [each and each.span_id for each in seen] == ["cd" * 8, None]
