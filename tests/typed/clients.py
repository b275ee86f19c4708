"""Scripts and async code: what they get from a runtime."""

from __future__ import annotations

from typing import Any, assert_type

from perdure import AsyncRuntime, BulkReport, ChatAgent, Client, RunHandle, RunResult, Runtime, TurnResult, awaiting
from perdure.testing import Laboratory
from tests.typed.research import Clerk, Clock, Helpdesk, Idle, Librarian, Notes, Reader, Researcher, Topic


def script() -> None:
    with Runtime(data="./perdure-data") as runtime:
        librarian = runtime.agent(Librarian, "home")
        assert_type(librarian.count(["to be or not", "to be"]), int)
        assert_type(librarian.shelf("Hamlet", upper=True), str)
        assert_type(librarian.signs("Hamlet"), list[str])
        librarian.initial("Hamlet")  # error: mypy[call-arg] pyright[reportCallIssue]
        result = runtime.run(Researcher, Topic(title="Ray"), run_id="ray")
        assert_type(result, RunResult[Notes])
        assert_type(runtime.run(Reader, "to be").output, int)
        assert_type(runtime.start(Clerk, ["a"]), RunHandle)
        assert_type(runtime.start(Clock), RunHandle)
        assert_type(runtime.agent(Helpdesk, "alice").chat("Where is order 17?"), TurnResult)
        for event in runtime.events("ray"):
            print(event["sequence"])
        for page in librarian.pages(3):
            assert_type(page, str)
        for number in librarian.numbers(3):
            assert_type(number, int)

        assert_type(runtime.cancel_runs(type=Reader, requested_before=5.0, dry_run=True), BulkReport)
        assert_type(runtime.clear_runs(everything=True).refused, dict[str, int])
        assert_type(runtime.explain("hamlet"), list[str])

        runtime.retry_runs(statuss="error")  # error: mypy[call-arg] pyright[reportCallIssue]
        runtime.retry_runs(parked="yes")  # error: mypy[arg-type] pyright[reportArgumentType]
        librarian.count("to be")  # error: mypy[arg-type] pyright[reportArgumentType]
        librarian.count(["to be"], 3)  # error: mypy[call-arg] pyright[reportCallIssue]
        librarian.shelf(title="Hamlet", lower=True)  # error: mypy[call-arg] pyright[reportCallIssue]
        librarian.shelve("Hamlet")  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
        runtime.run(Researcher, "Ray")  # error: mypy[misc] pyright[reportArgumentType, reportCallIssue]
        runtime.run(Researcher)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        runtime.run(Clock, 3)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        runtime.start(Idle)  # error: mypy[arg-type] pyright[reportArgumentType]
        runtime.start(Reader, 3)  # error: mypy[misc] pyright[reportArgumentType, reportCallIssue]
        runtime.agent(str, "home")  # error: mypy[type-var] pyright[reportArgumentType]


async def server() -> None:
    async with Runtime(data="./perdure-data") as runtime:
        librarian = runtime.agent(Librarian, "home")
        assert_type(await librarian.count(["to be or not", "to be"]), int)
        assert_type(await runtime.run(Reader, "to be", run_id="hamlet"), RunResult[int])
        assert_type(await awaiting(librarian.shelf("Hamlet")), str)  # a sync method
        assert_type(await runtime.start(Clock), RunHandle)
        assert_type(await runtime.explain("hamlet"), list[str])
        assert_type(await runtime.retry_runs(status=["error"], error="timed out"), BulkReport)
        async for event in runtime.events("hamlet"):
            print(event["sequence"])
        async for page in librarian.pages(3):
            assert_type(page, str)
        async for number in librarian.numbers(3):
            assert_type(number, int)
        async for number in awaiting(librarian.numbers(3)):
            assert_type(number, int)

        await runtime.run(Reader, 3)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        runtime.run(Reader, "to be").output  # error: mypy[attr-defined] pyright[reportAttributeAccessIssue]
        await runtime.retry(mail_id="hamlet")  # error: mypy[call-arg] pyright[reportCallIssue]


def chosen_at_run_time(runtime: Runtime, kind: type[Any], chat: type[ChatAgent]) -> None:
    assert_type(runtime.run(kind, {"any": "thing"}), RunResult[Any])
    assert_type(runtime.run(chat, "Where is order 17?"), RunResult[str])


async def story(client: Client) -> int:
    assert_type(await client.run(Researcher, Topic(title="Ray"), run_id="ray"), RunResult[Notes])
    assert_type(await client.run(Clock), RunResult[float])
    assert_type(await client.start(Clerk, ["a"], run_id="clerk"), RunHandle)
    assert_type(await client.agent(Librarian, "home").count(["to be"]), int)

    await client.run(Reader, 3)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
    await client.run(Clock, 3)  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
    await client.start(Reader, 3)  # error: mypy[misc] pyright[reportArgumentType, reportCallIssue]
    result = await client.run(Reader, "to be")
    return result.output


def simulated() -> int:
    with Laboratory(seed=7) as laboratory:
        assert_type(laboratory.play(story), int)
        assert_type(laboratory.run(Clock, timeout_ms=5_000), RunResult[float])
        assert_type(laboratory.agent(Librarian, "home").signs("Hamlet"), list[str])

        laboratory.run(Reader, 3, run_id="x")  # error: mypy[arg-type] pyright[reportArgumentType, reportCallIssue]
        laboratory.run(Reader, "to be", run_it="x")  # error: mypy[call-overload] pyright[reportCallIssue]
        return laboratory.run(Reader, "to be").output


async def within_a_story(laboratory: Laboratory) -> None:
    assert_type(await awaiting(laboratory.run(Reader, "to be")), RunResult[int])


async def opened_elsewhere(runtime: Runtime) -> None:
    assert_type(runtime.asynchronous, AsyncRuntime)
    assert_type(await runtime.asynchronous.run(Reader, "to be"), RunResult[int])
