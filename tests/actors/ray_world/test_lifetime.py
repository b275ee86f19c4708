from __future__ import annotations

import asyncio
import threading
from concurrent.futures import CancelledError, Future

import pytest

from perdure.actors.ray_world.lifetime import Lifetime, on_own_thread
from perdure.ledger import SupervisorUnreachable

GONE = SupervisorUnreachable("it is over")


def test_what_is_waited_for_arrives_as_it_is() -> None:
    life, good, bad = Lifetime(), Future[int](), Future[int]()
    told, refused = life.bound(good), life.bound(bad)
    good.set_result(7)
    bad.set_exception(KeyError("a bug"))
    assert told.result(0) == 7
    with pytest.raises(KeyError, match="a bug"):
        refused.result(0)


def test_the_end_is_told_to_who_waits_and_to_who_comes_later_and_not_to_who_has_an_answer() -> None:
    life, answered, silent = Lifetime(), Future[int](), Future[int]()
    first, second = life.bound(answered), life.bound(silent)
    answered.set_result(7)
    life.end(GONE)
    silent.set_result(8)
    assert first.result(0) == 7
    for told in (second, life.bound(Future[int]())):
        with pytest.raises(SupervisorUnreachable, match="it is over"):
            told.result(0)


def test_an_end_counts_once() -> None:
    life = Lifetime()
    told = life.bound(Future[int]())
    life.end(GONE)
    life.end(KeyError("something else"))
    assert told.exception(0) is GONE


def test_who_cancels_cancels_what_is_waited_for_and_hears_no_more() -> None:
    life, source = Lifetime(), Future[int]()
    told = life.bound(source)
    told.cancel()
    assert source.cancelled()
    life.end(GONE)
    with pytest.raises(CancelledError):
        told.result(0)


def test_a_cancelled_source_cancels_who_waits() -> None:
    life, source = Lifetime(), Future[int]()
    told = life.bound(source)
    source.cancel()
    assert told.cancelled()


def test_what_never_comes_back_is_left_when_the_lifetime_ends() -> None:
    life, stuck = Lifetime(), threading.Event()
    told = life.bound(on_own_thread(stuck.wait))
    life.end(GONE)
    assert told.exception(5) is GONE
    stuck.set()


def test_what_is_done_aside_ends_quietly_though_nobody_waits_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that is cancelled, as at the end of a process, is no error of the thread."""
    raised: list[object] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    go = threading.Event()

    async def story() -> None:
        begun = on_own_thread(go.wait)
        waiting = asyncio.ensure_future(asyncio.wrap_future(begun))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        go.set()
        assert begun.result(5)

    asyncio.run(story())
    assert not raised


def test_what_is_done_aside_tells_its_result_or_its_error() -> None:
    def fail() -> None:
        raise SystemExit(3)

    assert on_own_thread(threading.current_thread).result(5) is not threading.current_thread()
    with pytest.raises(SystemExit):
        on_own_thread(fail).result(5)
