"""Loops and threads of authors' own: every verb does there what it does in the agent's own code."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.actors import Agent, FiberContext, MessengerAgent, RunContext, exposed, tell
from perdure.actors.agent.groups import FiberGroup, OwnStorage, QueueGroup, ScheduleGroup, SubAgentGroup
from perdure.actors.threads import inherit_contexts
from perdure.ledger import BadRequest, UnknownRun, WaitTimedOut
from tests.actors.agent.test_surface import members
from tests.actors.loop_cast import (
    SYNC,
    Branch,
    Broken,
    Doer,
    Doing,
    Keeper,
    LoopTalker,
    Place,
    Stepping,
    SyncDoer,
    Verb,
    Waiter,
)
from tests.actors.messenger.paper import said
from tests.actors.one_process import OneProcess, play
from tests.actors.sync_cast import Leaf
from tests.kit import played

# What authors override, and what is only looked at: it asks nobody for anything.
NO_VERBS = {
    *"name path parent agent prepare migrate on_start on_error on_state_changed validate_state get_agent_tool_summary".split(),
    *"on_agent_tool_start on_agent_tool_finish on_progress on_fiber_recovered callback_retry".split(),
    *"attempts_max max_concurrent_agent_tools agent_tool_reattach_no_progress_timeout_ms stands_alone exclusive".split(),
    *"agent_tool_reattach_max_window_ms detached_max_budget_ms detached_no_progress_budget_ms num_cpus".split(),
    *"num_gpus memory accelerator_type label_selector resources".split(),
    *"runtime_env fibers schedules queued sub_agents storage run".split(),
    *"model model_key instructions max_steps toolsets library_agent chat_recovery chat_stream_stall_timeout_ms".split(),
    *"chat_first_token_timeout_ms tool_timeout_ms context_overflow message_concurrency tools get_model".split(),
    *"get_model_settings get_instructions on_chat_response on_chat_error on_chat_recovery active_turn".split(),
    *"repair_interrupted_tool_part format_agent_tool_input get_agent_tool_output format_detached_completion".split(),
    *"format_detached_milestone messengers on_messenger_event on_ask ask_thread ask_threads".split(),
}  # fmt: skip


def _in_a_block(agent: Any, _context: Any) -> Any:
    with agent.transaction():
        agent.state["a"] = 1
        agent.queue(agent.noted)
    return agent.state["a"]


def _awake(agent: Any, _context: Any) -> None:
    with agent.keep_alive():
        pass


def _fiber(agent: Any) -> str:
    return str(agent.start_fiber("f", "noted", idempotency_key="k").fiber_id)


AGENT: dict[str, Verb] = {
    "sql": lambda agent, _: [
        agent.sql("CREATE TABLE t (n INT)"),
        agent.sql("INSERT INTO t VALUES (1)"),
        agent.sql("FROM t"),
    ],
    "transaction": _in_a_block,
    "state": lambda agent, _: [agent.state.update({"b": [1]}), agent.state["b"]],
    "destroy": lambda agent, _: agent.sub_agents.list(),  # below
    "keep_alive": _awake,
    "run_agent_tool": lambda agent, _: agent.run_agent_tool(Leaf, 1),
    "run_agent_tools": lambda agent, _: agent.run_agent_tools([(Leaf, 2), (Leaf, 3)]),
    "ask": lambda agent, _: agent.ask("Go on?", expires=0.01, otherwise=False),
    "as_completed": lambda agent, _: agent.as_completed([(Leaf, 4), (Leaf, 5)]),
    "first_ok": lambda agent, _: agent.first_ok(1, [(Leaf, 6)]),
    "cancel_agent_tool": lambda agent, _: agent.cancel_agent_tool("nobody"),
    "send_event": lambda agent, _: agent.send_event("nobody", "news"),
    "inspect_agent_tool_run": lambda agent, _: agent.inspect_agent_tool_run("nobody"),
    "has_agent_tool_run": lambda agent, _: agent.has_agent_tool_run(Leaf, "nobody"),
    "list_agent_tool_runs": lambda agent, _: agent.list_agent_tool_runs(["aborted"]),
    "clear_agent_tool_runs": lambda agent, _: agent.clear_agent_tool_runs(status=["aborted"]),
    "run_fiber": lambda agent, _: agent.run_fiber("now", lambda fiber: fiber.stash(1)),
    "start_fiber": lambda agent, _: agent.start_fiber("f", "noted", wait_for_completion=True),
    "inspect_fiber": lambda agent, _: agent.inspect_fiber(_fiber(agent)),
    "inspect_fiber_by_key": lambda agent, _: agent.inspect_fiber_by_key("none"),
    "list_fibers": lambda agent, _: agent.list_fibers(),
    "cancel_fiber": lambda agent, _: agent.cancel_fiber("none"),
    "cancel_fiber_by_key": lambda agent, _: agent.cancel_fiber_by_key("none", "why"),
    "resolve_fiber": lambda agent, _: agent.resolve_fiber("none", "completed"),
    "delete_fibers": lambda agent, _: agent.delete_fibers(),
    "schedule": lambda agent, _: agent.schedule(1_000, agent.noted),
    "schedule_every": lambda agent, _: agent.schedule_every(1_000, agent.noted),
    "queue": lambda agent, _: agent.queue(agent.noted),
    "sub_agent": lambda agent, _: agent.sub_agent(LoopTalker, "s").counted(2),
    "on_before_sub_agent": lambda agent, _: Agent.on_before_sub_agent(agent, "x:Y", "s"),
    # in runs and fibers
    "report_progress": lambda agent, context: (context or agent).report_progress(0.5, milestone="half"),
    "stash": lambda agent, context: (context or agent).stash([1]),
}


def _in_vain(wait: Callable[[], Any]) -> Any:
    try:
        given = wait()
    except WaitTimedOut:
        return "in vain"
    return _awaited_in_vain(given)


async def _awaited_in_vain(given: Any) -> str:
    with pytest.raises(WaitTimedOut):
        await given
    return "in vain"


RUN: dict[str, Verb] = {
    "report_progress": lambda _, run: run.report_progress(0.5, message="soon"),
    "step": lambda _, run: [run.step("a", lambda: 1), run.step("a", lambda: 1)],
    "stash": lambda _, run: [run.stash([1]), run.stashed],
    "emit": lambda _, run: run.emit({"a": 1}),
    "sleep": lambda _, run: run.sleep(0.01),
    "sleep_until": lambda _, run: run.sleep_until(datetime(2020, 1, 1, tzinfo=UTC)),
    "wait_for": lambda _, run: _in_vain(lambda: run.wait_for("news", timeout=0.01)),
    "receive": lambda _, run: _in_vain(lambda: run.receive(timeout=0.01)),
    "ask": lambda _, run: run.ask("Go on?", expires=0.01, otherwise=False),
    "a milestone": lambda agent, _: agent.report_progress(milestone="half"),
}
FIBER: dict[str, Verb] = {
    "step": lambda _, fiber: [fiber.step("a", lambda: 1), fiber.step("a", lambda: 1)],
    "stash": lambda agent, fiber: [fiber.stash([1]), agent.stash([2]), fiber.snapshot],
    "sleep": lambda _, fiber: fiber.sleep(0.01),
    "sleep_until": lambda _, fiber: fiber.sleep_until(datetime(2020, 1, 1, tzinfo=UTC)),
    "wait_for": lambda agent, fiber: [agent.fibers.send(fiber.id, "news"), fiber.wait_for("news")][1],
    "wait_for in vain": lambda _, fiber: _in_vain(lambda: fiber.wait_for("news", timeout=0.01)),
}
GROUPS: dict[str, Verb] = {
    "FiberGroup.start": lambda agent, _: agent.fibers.start([{"name": "a", "fn_name": "noted"}]),
    "FiberGroup.send": lambda agent, _: agent.fibers.send(_fiber(agent), "news", 1),
    "FiberGroup.wait": lambda agent, _: agent.fibers.wait(_fiber(agent), timeout_ms=60_000),
    "ScheduleGroup.list": lambda agent, _: agent.schedules.list(),
    "ScheduleGroup.get": lambda agent, _: agent.schedules.get(agent.schedule(1_000, agent.noted).schedule_id),
    "ScheduleGroup.history": lambda agent, _: agent.schedules.history("none"),
    "ScheduleGroup.cancel": lambda agent, _: agent.schedules.cancel(agent.schedule(1_000, agent.noted).schedule_id),
    "ScheduleGroup.pause": lambda agent, _: agent.schedules.pause(agent.schedule(1_000, agent.noted).schedule_id),
    "ScheduleGroup.resume": lambda agent, _: agent.schedules.resume(agent.schedule(1_000, agent.noted).schedule_id),
    "ScheduleGroup.retry": lambda agent, _: agent.schedules.retry("none"),
    "QueueGroup.list": lambda agent, _: agent.queued.list(callback="none"),
    "QueueGroup.drop": lambda agent, _: agent.queued.drop("none"),
    "QueueGroup.drop_all": lambda agent, _: agent.queued.drop_all("none"),
    "QueueGroup.retry": lambda agent, _: agent.queued.retry("none"),
    "SubAgentGroup.has": lambda agent, _: agent.sub_agents.has(LoopTalker, "s"),
    "SubAgentGroup.list": lambda agent, _: agent.sub_agents.list(),
    "SubAgentGroup.abort": lambda agent, _: agent.sub_agents.abort(LoopTalker, "s"),
    "SubAgentGroup.delete": lambda agent, _: agent.sub_agents.delete(LoopTalker, "s"),
    "OwnStorage.snapshot": lambda agent, _: agent.sql("SELECT 1"),  # of files; not here
    "OwnStorage.restore": lambda agent, _: agent.sql("SELECT 1"),
    "OwnStorage.durable": lambda agent, _: agent.storage.durable(),
    "OwnStorage.fork": lambda agent, _: agent.sql("SELECT 1"),
}
HANDLES: dict[str, Verb] = {
    "a call": lambda agent, _: agent.sub_agent(LoopTalker, "s").get_messages(),
    "a turn": lambda agent, _: agent.sub_agent(LoopTalker, "s").chat("hello"),
    "tell": lambda agent, _: tell(agent.sub_agent(LoopTalker, "s").counted, 1),
    "the parent": lambda agent, _: agent.sub_agent(LoopChild, "c").ask_parent(),
}


class LoopChild(Agent):
    """Asks its parent, from a loop of its own."""

    @exposed
    def ask_parent(self) -> Any:
        async def ask() -> Any:
            return await self.parent.do(Place.LOOP, 0)

        return asyncio.run(ask())


def feed(agent: Any, _context: Any) -> Any:
    return agent.feed()


feed.most = 1  # type: ignore[attr-defined]


CHAT: dict[str, Verb] = {
    "chat": lambda agent, _: agent.chat("hello"),
    "save_messages": lambda agent, _: agent.save_messages(["hello"]),
    "submit_messages": lambda agent, _: agent.submit_messages("hello"),
    "continue_last_turn": lambda agent, _: agent.continue_last_turn(),
    "regenerate": lambda agent, _: agent.regenerate(),
    "attach": lambda agent, _: agent.attach("none"),
    "feed": feed,
    "cancel_chat": lambda agent, _: agent.cancel_chat("none"),
    "cancel_all_chats": lambda agent, _: agent.cancel_all_chats(),
    "wait_until_stable": lambda agent, _: agent.wait_until_stable(60_000),
    "add_messages": lambda agent, _: agent.add_messages(
        [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "x"}]}]
    ),
    "delete_messages": lambda agent, _: agent.delete_messages(["m"]),
    "get_messages": lambda agent, _: agent.get_messages(1),
    "inspect_turn": lambda agent, _: agent.inspect_turn("none"),
    "list_turns": lambda agent, _: agent.list_turns("error"),
    "delete_turns": lambda agent, _: agent.delete_turns("error"),
    "has_pending_interaction": lambda agent, _: agent.has_pending_interaction(),
    "steer": lambda agent, _: agent.steer("shorter"),
    "resolve_tool_call": lambda agent, _: agent.resolve_tool_call("none", 1),
    "respond_to_approval": lambda agent, _: agent.respond_to_approval("none", True),
    "summarize_messages": lambda agent, _: agent.get_messages(1),  # asks the model, as a turn does
    "clear": lambda agent, _: agent.clear(),
    "stash": lambda agent, _: agent.run_fiber("s", lambda fiber: agent.stash(1)),
    "receive": lambda agent, _: agent.receive(said("news")),
    "deliver_notice": lambda agent, _: agent.deliver_notice("note", "t"),
    "cancel_reply": lambda agent, _: agent.cancel_reply("none"),
    "retry_delivery": lambda agent, _: agent.retry_delivery("none"),
    "list_deliveries": lambda agent, _: agent.list_deliveries("parked"),
}


def test_every_verb_is_tried_here() -> None:
    assert members(Agent) - NO_VERBS == AGENT.keys()
    assert members(MessengerAgent) - members(Agent) - NO_VERBS | {"stash"} == CHAT.keys()
    engine = {
        "begin",
        "entered",
        "note_task",
        "hear",
        "hearing",
        "order",
        "has_heard",
        "counted",
        "records",
        "close",
        "flush",
        "in_words",
        "waits_are_over",
    }
    iterated = {"messages"}
    assert {
        name for name in members(RunContext) if callable(getattr(RunContext, name))
    } - engine - iterated <= RUN.keys()
    engine |= {"begins_in", "finished", "stop", "holds", "event_came"}
    verbs = {name for name in members(FiberContext) if callable(getattr(FiberContext, name))}
    assert verbs - engine == FIBER.keys() - {"wait_for in vain"}
    groups = (FiberGroup, ScheduleGroup, QueueGroup, SubAgentGroup, OwnStorage)
    assert {f"{kind.__name__}.{name}" for kind in groups for name in members(kind)} == GROUPS.keys()


@pytest.fixture(autouse=True)
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As in the process of a host: threads have the context of who starts them."""
    monkeypatch.setattr(threading.Thread, "start", threading.Thread.start)
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    inherit_contexts()
    yield
    Doing.verbs = []


Way = Callable[[OneProcess, Place, int], Any]


async def _by_a_call(stage: OneProcess, place: Place, number: int) -> Any:
    method = "do_in_sync" if place in SYNC else "do"
    return await stage.client.call(Doer, f"{number} {place}", method, (place.value, number), {})


async def _by_a_turn(stage: OneProcess, place: Place, number: int) -> Any:
    method = "do_in_sync" if place in SYNC else "do"
    await stage.client.call(LoopTalker, f"{number} {place}", "add_messages", ("first",), {})
    return await stage.client.call(LoopTalker, f"{number} {place}", method, (place.value, number), {})


async def _by_a_run(stage: OneProcess, place: Place, number: int) -> Any:
    ended = await stage.client.run(SyncDoer if place in SYNC else Doer, [place.value, number])
    return ended.output if ended.ok else f"raised {ended.error}"


async def _by_a_fiber(stage: OneProcess, place: Place, number: int) -> Any:
    return await stage.client.call(Doer, f"{number} {place}", "do_in_fiber", (place.value, number), {})


REFUSED = {"cancel_agent_tool", "send_event", "attach", "report_progress", "stash"}
"""What is refused in all kinds of code: there is no such run, or no run or fiber."""

TABLES: list[tuple[Way, dict[str, Verb]]] = [
    (_by_a_call, AGENT | GROUPS | HANDLES),
    (_by_a_run, AGENT | RUN),
    (_by_a_fiber, AGENT | FIBER),
    (_by_a_turn, CHAT),
]


@pytest.mark.parametrize(("way", "table"), TABLES, ids=["calls", "runs", "fibers", "chats"])
def test_every_verb_gives_the_same_in_every_kind_of_code(way: Way, table: dict[str, Verb]) -> None:
    async def story(stage: OneProcess) -> dict[str, dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        for number, name in enumerate(table):
            told = await asyncio.gather(*(_told(way, stage, place, number) for place in Place))
            found[name] = dict(zip(Place, told, strict=True))
        return found

    Doing.verbs = list(table.values())
    found = play(story, threads_max=2)
    wrong = {name: told for name, told in found.items() if len(set(told.values())) > 1 or "hangs" in told.values()}
    assert not wrong, "\n".join(
        f"{name} in {place}: {each}" for name, told in wrong.items() for place, each in told.items()
    )
    assert {name for name, told in found.items() if "raised" in told[Place.LOOP]} <= REFUSED


async def _told(way: Way, stage: OneProcess, place: Place, number: int) -> str:
    try:
        async with asyncio.timeout(20):
            return str(await way(stage, place, number))
    except TimeoutError:
        return "hangs"
    except Exception as problem:
        return f"raised {type(problem).__name__}: {problem}"


def test_one_thread_is_enough_for_sync_parents_that_wait_on_loops_and_threads_of_their_own() -> None:
    async def story(stage: OneProcess) -> int:
        return int((await stage.client.run(Branch, [3, 2, 2])).output)

    assert play(story, threads_max=1) == 3 + 6 + 12


@played(play)
async def test_a_time_limit_in_a_loop_of_its_own_ends_the_wait_and_the_child_that_is_waited_for(
    stage: OneProcess, /
) -> None:
    assert (await stage.client.run(Waiter, "late")).output == "given up"
    await stage.until(lambda: stage.supervisor.view.runs["late"].status == "aborted")
    await stage.until(lambda: all(world.threads.left_behind == 0 for world in stage.worlds))


def test_who_waits_on_a_loop_of_its_own_is_told_that_this_life_is_over() -> None:
    async def story(stage: OneProcess) -> None:
        running = asyncio.create_task(stage.client.run(Waiter, "forever", run_id="w"))
        await stage.until(lambda: "forever" in stage.supervisor.view.runs)
        await stage.client.ask("cancel", "w", None, "enough")
        assert (await running).status == "aborted"
        await stage.until(lambda: Waiter.heard == ["StaleIncarnation", "left"])
        await stage.until(lambda: all(world.threads.left_behind == 0 for world in stage.worlds))

    Waiter.heard = []
    play(story)


def test_what_a_verb_raises_is_raised_in_a_loop_of_its_own() -> None:
    async def refused(agent: Any) -> str:
        with pytest.raises(UnknownRun):
            await agent.cancel_agent_tool("nobody")
        with pytest.raises(BadRequest, match="input"):
            await agent.run_agent_tool(Leaf, "no number")
        return str((await agent.run_agent_tool(Broken, 1)).error)

    async def story(stage: OneProcess) -> Any:
        return await stage.client.call(Doer, "d", "do_in_sync", (Place.THREAD_IN_SYNC.value, 0), {})

    Doing.verbs = [lambda agent, _: refused(agent)]
    assert play(story) == "str"


@pytest.mark.parametrize("how", ["sync", "async"])
def test_what_threads_of_a_handler_do_is_part_of_its_transaction(how: str) -> None:
    async def story(stage: OneProcess) -> None:
        async def told() -> Any:
            return await stage.client.call(Keeper, how, "told", (), {})

        await stage.client.call(Keeper, how, "begin", (how,), {})
        await stage.until(lambda: stage.supervisor.view.tally["delivered"] >= 1)
        while (found := await told())[1] is None:
            await asyncio.sleep(0.02)
        assert found == [1, 1, 1, None]
        assert Keeper.tries[how] == 2
        assert len(stage.supervisor.view.runs) == 2

    Keeper.tries.clear()
    play(story, retry_first_ms=10)


def test_a_thread_of_a_handler_cannot_wait_for_a_run() -> None:
    async def story(stage: OneProcess) -> Any:
        await stage.client.call(Keeper, "k", "begin", ("waiting",), {})
        await stage.until(lambda: stage.supervisor.view.tally["delivered"] == 1)
        return (await stage.client.call(Keeper, "k", "told", (), {}))[3]

    assert play(story) == ["detached", "detached"]


def test_steps_and_fibers_of_a_loop_work_on_that_loop() -> None:
    async def story(stage: OneProcess) -> Any:
        return (await stage.client.run(Stepping, "s")).output

    assert play(story) == ["done", "done", "done"]


def test_runs_that_threads_ask_for_are_runs_of_the_run_that_started_them() -> None:
    async def story(stage: OneProcess) -> list[str]:
        await stage.client.run(SyncDoer, [Place.THREAD_IN_SYNC.value, 0], run_id="p")
        return [each.parent_run for each in stage.supervisor.view.runs.values() if each.parent]

    Doing.verbs = [lambda agent, _: agent.run_agent_tools([(Leaf, 1), (Leaf, 1)])]
    assert play(story) == ["p", "p"]


def test_a_fiber_that_is_cancelled_wakes_who_waits_for_that_on_a_loop_of_its_own() -> None:
    async def story(stage: OneProcess) -> None:
        await stage.client.call(Doer, "d", "begin_fiber", (), {})
        await stage.until(lambda: bool(Doing.begun))
        await stage.client.call(Doer, "d", "end_fiber", (), {})
        await stage.until(lambda: Doing.begun == ["begun", "cancelled"])

    Doing.begun = []
    play(story)


class Whole(threading.Thread):
    """A thread with a method of its own."""

    told = ""

    def run(self) -> None:
        self.told = WHO.get("nobody")


WHO: contextvars.ContextVar[str] = contextvars.ContextVar("who")


def test_threads_and_pools_have_the_context_of_who_starts_them_and_each_job_of_a_pool_its_own() -> None:
    def told(pool: ThreadPoolExecutor, who: str) -> list[str]:
        WHO.set(who)
        thread = Whole()
        thread.start()
        thread.join()
        timer = threading.Timer(0, lambda: timed.append(WHO.get("nobody")))
        timed: list[str] = []
        timer.start()
        timer.join()
        return [thread.told, *timed, pool.submit(lambda: WHO.get("nobody")).result()]

    with ThreadPoolExecutor(1) as pool:
        assert [contextvars.copy_context().run(told, pool, who) for who in "ab"] == [["a"] * 3, ["b"] * 3]
        assert pool.submit(lambda: WHO.get("nobody")).result() == "nobody"
