"""The Python client of a gateway: runs, events across a kill, exposed methods, errors of their own class; and no Ray in its process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.actors.gateway.problems import refusal
from perdure.actors.remote.remote_requests import error_of
from perdure.ledger import StorageConflict
from tests.gateway.real import RealGateway, real_gateway
from tests.tidy import IMPORT_PATH

ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)
AGENTS = ["tests.gateway.cast:Walker", "tests.gateway.cast:Counter"]


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    with real_gateway(tmp_path_factory.mktemp("connect"), AGENTS) as started:
        yield started


def test_runs_are_started_watched_and_steered(gateway: RealGateway) -> None:
    with perdure.connect(gateway.url) as remote:
        ended = remote.run("walker", 1, run_id="short")
        assert (ended.ok, ended.output) == (True, "there")
        assert remote.start("walker", 1, run_id="short") == "short"
        assert remote.show("short")["status"] == "completed"
        assert remote.runs(q="short")["runs"][0]["run_id"] == "short"
        assert remote.explain("short")
        remote.start("walker", 600, run_id="long")
        assert remote.cancel("long") == "aborted"
        assert not remote.result("long").ok
        with pytest.raises(perdure.RunFailed, match="aborted"):
            _ = remote.result("long").output
        remote.clear("long")
        assert remote.overview()["runs"]["completed"] == 1


def test_a_run_waits_for_runs_that_were_started_before(gateway: RealGateway) -> None:
    with perdure.connect(gateway.url) as remote:
        first, second = [remote.start("walker", steps) for steps in (0, 600)]
        either = perdure.any_of(first, perdure.EndOf(second))
        assert remote.run("walker", 0, run_id="joined", after=either, losers="cancel").ok
        assert remote.start("walker", 0, run_id="joined", after=either, losers="cancel") == "joined"
        assert not remote.result(second).ok
        for after, field in (([first], "after"), ("nobody", "after"), (perdure.n_of(1, "again"), "after")):
            with pytest.raises(perdure.BadRequest) as refused:
                remote.start("walker", 0, run_id="again", after=after)
            assert refused.value.field == field

    async def both() -> perdure.RunResult:
        async with perdure.connect_async(gateway.url) as remote:
            runs = [await remote.start("walker", 0) for _ in range(2)]
            return await remote.run("walker", 0, after=perdure.n_of(2, *runs, perdure.MilestoneOf(runs[0], "none")))

    assert asyncio.run(both()).ok


def test_many_runs_are_counted_steered_and_reported(gateway: RealGateway) -> None:
    with perdure.connect(gateway.url) as remote:
        for number in range(4):
            remote.start("walker", 600, run_id=f"bundle-{number}")
        counted = remote.cancel_runs(prefix="bundle-", dry_run=True)
        assert (counted.found, counted.hit, counted.dry_run) == (4, 0, True)
        assert remote.cancel_runs(run_ids=["bundle-0", "nobody"]).gone == 1
        done = remote.cancel_runs(q="BUNDLE", status=["running", "starting"], reason="enough")
        assert (done.found, done.hit, done.next) == (3, 3, None)
        assert remote.show("bundle-2")["error"] == "enough"
        assert [each["run_id"] for each in remote.runs(error="enough", limit=2)["runs"]] == ["bundle-3", "bundle-2"]
        assert remote.retry_runs(prefix="bundle-").found == 0
        for wrong, field in (
            ({}, "filter"),
            ({"statuss": "error"}, "statuss"),
            ({"prefix": "b", "all": True}, "filter"),
        ):
            with pytest.raises(perdure.BadRequest) as refused:
                remote.clear_runs(**wrong)
            assert refused.value.field == field

    async def clear() -> int:
        async with perdure.connect_async(gateway.url) as remote:
            return (await remote.clear_runs(prefix="bundle-")).hit

    assert asyncio.run(clear()) == 4


def test_errors_are_raised_as_what_they_were(gateway: RealGateway) -> None:
    with perdure.connect(gateway.url) as remote:
        remote.start("walker", 0, run_id="taken")
        with pytest.raises(perdure.ConflictingRequest) as conflict:
            remote.start("walker", 5, run_id="taken")
        assert conflict.value.field
        with pytest.raises(perdure.UnknownRun):
            remote.show("nobody")
        with pytest.raises(perdure.UnknownRun):
            next(remote.events("nobody"))
        with pytest.raises(perdure.BadRequest):
            remote.agent("counter", "errors").add("two")
        with pytest.raises(ValueError, match="as asked"):
            remote.agent("counter", "errors").fail()
        assert remote.result("taken").ok
        with pytest.raises(perdure.RetryRefused):
            remote.retry("taken")


async def test_exposed_methods_are_called_and_told(gateway: RealGateway) -> None:
    async with perdure.connect_async(gateway.url) as remote:
        counter = remote.agent("counter", "called")
        assert await counter.add(2) == 2
        assert await counter.add(amount=3) == 5
        await counter.tell("add", 5)
        while (await remote.inspect("called@tests.gateway.cast:Counter"))["state"] != {"count": 10}:
            await asyncio.sleep(0.05)


def test_an_exposed_method_that_is_followed_is_refused_in_words_and_never_called(gateway: RealGateway) -> None:
    async def follow() -> int:
        async with perdure.connect_async(gateway.url) as remote:
            counter = remote.agent("counter", "followed")
            with pytest.raises(perdure.BadRequest, match=r"add is called by `await`; one that .* of a `Runtime`"):
                async for _ in counter.add(1):
                    pass
            tasks = [asyncio.create_task(counter.add(1)) for _ in range(2)]
            return max(await asyncio.gather(*tasks))

    assert asyncio.run(follow()) == 2


def test_a_call_that_another_transaction_has_overtaken_is_a_conflict_and_the_client_raises_the_same() -> None:
    conflict = StorageConflict("called@m:Counter", "another transaction was first")
    answer = refusal(conflict)
    assert answer.status_code == 409
    again = error_of(answer.status_code, json.loads(bytes(answer.body)))
    assert (type(again), str(again)) == (StorageConflict, str(conflict))


def test_events_go_on_by_themselves_after_the_gateway_was_killed_none_lost_and_none_twice(gateway: RealGateway) -> None:
    async def watch() -> list[int]:
        async with perdure.connect_async(gateway.url) as remote:
            await remote.start("walker", 4, run_id="watched")
            numbers = []
            async for frame in remote.events("watched"):
                numbers.append(frame["sequence"])
                if len(numbers) == 3:
                    await asyncio.to_thread(again)
            assert (await remote.result("watched")).output == "there"
            return numbers

    def again() -> None:
        gateway.kill()
        gateway.start()

    numbers = asyncio.run(watch())
    assert numbers == list(range(len(numbers)))
    with perdure.connect(gateway.url) as remote:
        assert [frame["sequence"] for frame in remote.events("watched", after=1)] == numbers[2:]


WITHOUT_RAY = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[2:]:
            raise ImportError(name + " is not installed here")

sys.meta_path.insert(0, Absent())
import perdure

with perdure.connect(sys.argv[1]) as remote:
    print(remote.run("walker", 0).output, remote.agent("counter", "far").add(1))
    try:
        remote.show("nobody")
    except perdure.UnknownRun:
        print("unknown")
    try:
        remote.agent("nobody", "far").add(1)
    except perdure.PerdureError as problem:
        print(type(problem).__name__)
"""
ABSENT = (
    "ray",
    "duckdb",
    "starlette",
    "uvicorn",
    "websockets",
    "pydantic",
    "pydantic_ai",
    "psutil",
    "fsspec",
    "openai",
    "tenacity",
    "typer",
)
"""What an installation brings, and this client does not need."""


def test_the_client_needs_httpx_and_msgpack_and_nothing_else_of_an_installation(
    gateway: RealGateway, tmp_path: Path
) -> None:
    said = subprocess.run(
        [sys.executable, "-c", WITHOUT_RAY, gateway.url, *ABSENT],
        cwd=tmp_path,
        env={"PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert said.stdout.split() == ["there", "1", "unknown", "NoSuchAgent"], said.stderr


@pytest.mark.parametrize(
    ("hand_over", "field"),
    [
        (lambda remote: remote.agent("counter", "c").add(object()), "args[0]"),
        (lambda remote: remote.agent("counter", "c").add(1, [{"rows": float("nan")}]), "args[1][0].rows"),
        (lambda remote: remote.agent("counter", "c").add(amount=b"2"), "kwargs.amount"),
        (lambda remote: remote.agent("counter", "c").tell("add", {1}), "args[0]"),
        (lambda remote: remote.agent("counter", "c").tell(None), "method"),
        (lambda remote: remote.start("walker", object()), "input"),
        (lambda remote: remote.start("walker", [10**5_000]), "input[0]"),
        (lambda remote: remote.run("walker", {(1, 2): 3}), "input"),
        (lambda remote: remote.run("walker", ENDLESS), "input"),
        (lambda remote: remote.send("run", "event", object()), "value"),
        (lambda remote: remote.cancel_runs(run_ids=["run", object()]), "run_ids[1]"),
        (lambda remote: remote.agent("counter", None), "name"),
        (lambda remote: remote.agent(None, "c"), "agent_class"),
        (lambda remote: remote.agent("counter", "c", "sub", "shard", 2), "address[4]"),
        (lambda remote: remote.chat("waiter", None), "name"),
        (lambda remote: remote.chat("waiter", "c").send(None), "text"),
        (lambda remote: remote.chat("waiter", "c").steer(None), "text"),
        (lambda remote: remote.chat("waiter", "c").ask("Hello?", message_id=3), "message_id"),
        (lambda remote: remote.chat("waiter", "c").attach(None), "message_id"),
        (lambda remote: remote.show(None), "run_id"),
        (lambda remote: remote.show("x" * 70_000), "run_id"),
        (lambda remote: remote.agent("counter", "ü" * 20_000), "name"),
    ],
)
def test_what_cannot_be_sent_is_refused_by_its_name_before_anything_is_asked(
    hand_over: Callable[[Any], object], field: str
) -> None:
    with perdure.connect("http://127.0.0.1:9") as remote, pytest.raises(perdure.BadRequest) as refused:
        hand_over(remote)
    assert refused.value.field == field


def test_a_client_that_was_closed_or_forked_or_is_on_another_loop_says_so() -> None:
    nobody = "http://127.0.0.1:9"
    remote = perdure.connect(nobody)
    counter = remote.agent("counter", "c")
    child = os.fork()
    if child == 0:
        try:
            counter.add(1)
        except perdure.RuntimeClosed as refused:
            os._exit(7 if "was forked" in str(refused) else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    remote.close()
    with pytest.raises(perdure.RuntimeClosed, match="connect again"):
        counter.add(1)
    later = perdure.connect_async(nobody)

    async def ask() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await later.overview()

    asyncio.run(ask())
    with pytest.raises(perdure.BadRequest, match="on each loop"):
        asyncio.run(later.agent("counter", "c").add(1))
