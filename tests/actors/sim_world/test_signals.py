"""A person's Ctrl-C, or the end of a test's time, while the code of an agent is at work in a simulation."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from perdure.actors import Agent, Client, RunContext, exposed
from perdure.scenarios.swarm.explorer import explore
from perdure.scenarios.swarm.runner import swarm
from perdure.scenarios.testing.laboratory import Laboratory

FAILED = pytest.fail.Exception


def strike() -> None:
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGALRM)


class Struck(Agent):
    """Is at work when a signal comes."""

    stands_alone = True
    went_on = threading.Event()
    passed = threading.Event()  # what sync code waits for on its thread; set when the test is over

    async def run(self, input: str, run: RunContext) -> str:
        match input:
            case "async":
                strike()
            case "handled":
                with suppress(BaseException):
                    strike()
                await asyncio.sleep(0)
                self.went_on.set()
            case "task":
                await asyncio.create_task(self._in_a_task())
            case "thread":
                await asyncio.to_thread(self.wait)
            case "own":
                raise KeyboardInterrupt
        return "done"

    async def _in_a_task(self) -> None:
        strike()

    @exposed
    def wait(self) -> None:
        strike()
        self.passed.wait(20)

    @exposed
    def done(self) -> bool:
        return True


@contextmanager
def raising(error: BaseException) -> Iterator[None]:
    def stop(_number: int, _frame: FrameType | None) -> None:
        raise error

    others = set(threading.enumerate())
    before = signal.signal(signal.SIGALRM, stop)
    Struck.passed.clear()
    try:
        yield
        assert signal.getsignal(signal.SIGALRM) is stop, "as it was"
    finally:
        signal.signal(signal.SIGALRM, before)
        Struck.passed.set()
        for thread in [each for each in threading.enumerate() if each not in others]:
            thread.join(20)
            assert not thread.is_alive(), "what was given up has ended"


STOPS = [KeyboardInterrupt("enough"), SystemExit("enough"), FAILED("enough"), pytest.exit.Exception("enough")]
DOORS: dict[str, Callable[[Laboratory], Any]] = {
    **{way: lambda lab, way=way: lab.run(Struck, way) for way in ("async", "handled", "task", "thread")},  # type: ignore[misc]
    "sync": lambda lab: lab.agent(Struck, "a").wait(),
}


@pytest.mark.parametrize("way", DOORS)
@pytest.mark.parametrize("error", STOPS, ids=lambda each: type(each).__name__)
def test_what_a_signal_raises_in_an_agent_s_code_comes_out_of_the_laboratory_whatever_the_code_makes_of_it(
    way: str, error: BaseException
) -> None:
    with raising(error), Laboratory(1) as laboratory:
        with pytest.raises(type(error)) as raised:
            DOORS[way](laboratory)
        assert raised.value is error
    assert not Struck.went_on.is_set()


def test_a_laboratory_that_was_stopped_may_go_on() -> None:
    with raising(FAILED("enough")), Laboratory(1) as laboratory:
        with pytest.raises(FAILED):
            laboratory.run(Struck, "async")
        assert laboratory.agent(Struck, "a").done()
        assert laboratory.run(Struck, "", run_id="other").ok
        assert not laboratory.run(Struck, "own").ok, "what code raises by itself is its run's error"


def test_a_test_s_time_that_is_over_in_a_swarm_or_the_explorer_is_no_finding() -> None:
    async def story(client: Client) -> None:
        await client.run(Struck, "async")

    for play in (lambda: swarm(3, story=story), lambda: explore(story)):
        with raising(FAILED("enough")), pytest.raises(FAILED, match=r"^enough$"):
            play()
