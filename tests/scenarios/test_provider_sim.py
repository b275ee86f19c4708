"""The simulated provider: what a client hears of it is what it hears over real sockets, and time is virtual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI

from perdure.actors.sim_world.simulation import Deadlock
from perdure.actors.sim_world.virtual_loop import VirtualLoop
from perdure.scenarios.provider.faults import Fault, FaultKind, FaultPlan, Pace
from perdure.scenarios.provider.scripted import SeenRequest
from perdure.scenarios.provider.server import SocketProvider
from perdure.scenarios.provider.sim import SIM_URL, SimProvider
from perdure.scenarios.testing.laboratory import Laboratory
from tests.scenarios.listening import ASK, SCRIPT, Heard, listen, wait_until, with_results

T = TypeVar("T")
PATIENCES_S = (0.15, 3.0)  # of a client; the second is for a machine on which the answers themselves are late
SPOKEN = "I read and I search → at once."


def on_virtual_time(story: Callable[[], Awaitable[T]]) -> T:
    loop = VirtualLoop()

    async def main() -> T:
        return await story()

    try:
        return loop.run_until_complete(main())
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def openai_of(provider: SimProvider, **options: Any) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=SIM_URL, api_key="scripted", max_retries=0, http_client=provider.client(), **options)


def simulated(provider: SimProvider, story: Callable[[AsyncOpenAI], Awaitable[T]], **options: Any) -> T:
    async def main() -> T:
        async with openai_of(provider, **options) as client:
            return await story(client)

    return on_virtual_time(main)


async def exchange(client: AsyncOpenAI) -> list[Heard]:
    """A question, its continuation, one that does not pair, and one that expects no stream."""
    first = await listen(client)
    messages = [ASK]
    if first.finish == "tool_calls":
        messages += with_results(first, ["r"] * len(first.calls))
    second = await listen(client, messages, stream_options={"include_usage": True})
    return [first, second, await listen(client, [*messages, {"role": "tool", "tool_call_id": "x", "content": ""}])]


def over_sockets(plan: FaultPlan, patience_s: float) -> tuple[list[Heard], list[SeenRequest]]:
    async def main() -> list[Heard]:
        client = AsyncOpenAI(base_url=provider.base_url, api_key="scripted", max_retries=0, timeout=patience_s)
        async with client:
            return await exchange(client)

    with SocketProvider(SCRIPT, plan) as provider:
        heard = asyncio.run(main())
        wait_until(provider, still_open=0)
        return heard, provider.log()


def in_the_simulation(plan: FaultPlan, patience_s: float) -> tuple[list[Heard], list[SeenRequest]]:
    provider = SimProvider(SCRIPT, plan)
    return simulated(provider, exchange, timeout=patience_s), provider.log()


def bare(record: SeenRequest) -> dict[str, Any]:
    """A record without its times. Who leaves may have been sent what it did not read any more."""
    return record.model_dump(exclude={"at_ms", "ended_at_ms", "sent"})


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    kind = draw(st.sampled_from(list(FaultKind)))
    if kind is FaultKind.STATUS:
        return Fault(kind=kind, status=draw(st.sampled_from([400, 401, 429, 503])), retry_after="1")
    if kind is FaultKind.REFUSED:
        return Fault(kind=kind)
    if kind is not FaultKind.ERROR and draw(st.booleans()):
        return Fault(kind=kind, byte=draw(st.integers(0, 4_000)))
    event = draw(st.none() | st.integers(-3, 30))
    inside = event is not None and kind is not FaultKind.ERROR and draw(st.booleans())
    return Fault(kind=kind, event=event, inside=inside)


@pytest.mark.thorough
@settings(max_examples=80)
@given(plan=st.dictionaries(st.integers(1, 3), faults(), max_size=2).map(FaultPlan.at))
def test_a_client_hears_the_same_over_sockets_and_in_the_simulation(plan: FaultPlan) -> None:
    for patience_s in PATIENCES_S:
        heard, log = over_sockets(plan, patience_s)
        heard_in_simulation, log_in_simulation = in_the_simulation(plan, patience_s)
        if heard_in_simulation == heard:
            break
    assert heard_in_simulation == heard
    assert [bare(record) for record in log_in_simulation] == [bare(record) for record in log]


def test_a_slow_reply_takes_its_time_in_virtual_time() -> None:
    provider = SimProvider(SCRIPT, pace=Pace(first_ms=60_000, between_ms=1_000))
    assert simulated(provider, listen).text == SPOKEN
    (record,) = provider.log()
    assert record.ended_at_ms == 60_000 + 1_000 * (len(record.sizes) - 1)


def test_a_client_waits_no_longer_for_one_read_than_it_has_patience() -> None:
    stall = FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=2, duration_ms=40_000)})
    assert simulated(SimProvider(SCRIPT, stall), listen, timeout=50).text == SPOKEN
    provider = SimProvider(SCRIPT, stall)
    got = simulated(provider, listen, timeout=30)
    assert (len(got.chunks), got.error, got.cause) == (2, "APITimeoutError", "ReadTimeout")
    assert provider.log()[0].ended_at_ms == 30_000


def test_who_has_no_watchdog_waits_for_ever_when_a_reply_stalls() -> None:
    provider = SimProvider(SCRIPT, FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=2)}))
    with pytest.raises(Deadlock, match="deadlock"):
        simulated(provider, listen, timeout=None)


def test_a_stall_ends_when_it_is_released() -> None:
    provider = SimProvider(SCRIPT, FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=2)}))

    async def story(client: AsyncOpenAI) -> Heard:
        asyncio.get_running_loop().call_later(100, provider.release, 1)
        return await listen(client, timeout=None)

    assert simulated(provider, story).text == SPOKEN
    assert provider.log()[0].ended_at_ms == 100_000


@pytest.mark.parametrize("kind", [FaultKind.RESET, FaultKind.HANG_UP, FaultKind.END, FaultKind.ERROR])
def test_a_reply_may_be_silent_before_it_breaks(kind: FaultKind) -> None:
    provider = SimProvider(SCRIPT, FaultPlan.at({1: Fault(kind=kind, event=-1, duration_ms=9_000)}))

    async def story(client: AsyncOpenAI) -> Heard:
        return await listen(client, timeout=None)

    assert simulated(provider, story).finish == "tool_calls"
    (record,) = provider.log()
    assert (record.ended, record.ended_at_ms) == (kind, 9_000)


def test_a_refusal_ends_after_its_time() -> None:
    provider = SimProvider(SCRIPT, FaultPlan.at({1: Fault(kind=FaultKind.REFUSED, duration_ms=5_000)}))

    async def story(client: AsyncOpenAI) -> float:
        while (await listen(client)).error:
            await asyncio.sleep(1)
        return asyncio.get_running_loop().time()

    assert simulated(provider, story) == 5.0
    assert provider.counters().refused == 5


@pytest.mark.parametrize("where", [None, 3])
def test_a_client_that_is_cancelled_or_closes_has_left_at_that_moment(where: int | None) -> None:
    provider = SimProvider(SCRIPT, FaultPlan.at({1: Fault(kind=FaultKind.STALL, event=where)}))

    async def story(client: AsyncOpenAI) -> None:
        asked = asyncio.create_task(listen(client, timeout=None))
        await asyncio.sleep(7)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked

    simulated(provider, story)
    (record,) = provider.log()
    assert (record.ended, record.ended_at_ms) == ("gone", 7_000)


def test_a_client_that_dies_with_its_process_has_left_at_that_moment() -> None:
    provider = SimProvider(SCRIPT, pace=Pace(between_ms=1_000))

    async def ask_and_die(_client: object) -> None:
        client = openai_of(provider)
        stream = await client.chat.completions.create(model="m", messages=[ASK], stream=True)  # type: ignore[list-item]
        await anext(aiter(stream))
        raise RuntimeError("the client's process ends here, with the reply still open")

    with Laboratory(seed=1) as laboratory, pytest.raises(RuntimeError):
        laboratory.play(ask_and_die)
    assert [record.ended for record in provider.log()] == ["gone"]
    assert provider.counters().open == 0


def test_what_is_not_chat_completions_is_not_found() -> None:
    async def main() -> int:
        async with SimProvider().client() as client:
            return (await client.get(f"{SIM_URL}/models")).status_code

    assert on_virtual_time(main) == httpx2.codes.NOT_FOUND
