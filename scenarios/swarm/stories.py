"""Stories for the swarm: what a client asks for, drawn from a die, so that it can be asked for again, word by word.

A story is played twice. Under fire it may be cut off anywhere. After the world has healed it is played again *patiently*: everything is
asked for once more under the same ids (which must not start anything twice) and waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import pairwise
from random import Random
from typing import Any, Final

from perdure import (
    Agent,
    AskClosed,
    BadRequest,
    ConflictingRequest,
    EventRefused,
    PauseRefused,
    RetryRefused,
    UnknownRun,
    all_of,
)
from perdure.policies import Answerer
from perdure.scenarios.cast.job_desk import JobDesk, draw_jobs, wrong_jobs
from perdure.scenarios.cast.joiners import LOSERS, Heir, Joiner, JoinJob, Racer
from perdure.scenarios.cast.waiters import PatientRun, WaitJob
from perdure.scenarios.cast.workers import (
    BOSSES,
    HANDLERS,
    Boss,
    BossJob,
    CallCounter,
    FamilyHead,
    LoneWorker,
    OnceWorker,
    Task,
    Worker,
)
from perdure.scenarios.swarm.conversations import approvals, chats, letters
from perdure.scenarios.swarm.play_context import OFTEN, SELDOM, Part, PlayContext

LOOKS_MAX: Final = 600
SPREAD_S: Final = 6.0


def task(die: Random, depth: int = 0) -> Task:
    below = die.randint(1, 3) if depth else 0
    aside = die.choice((0, 0, 1, 2)) if depth else 0
    return Task(
        weight=die.randint(1, 9),
        steps=die.choice((0, 0, 1, 3)),
        pause_ms=die.choice((0, 5, 100, 700)),
        milestones=die.random() < OFTEN,
        chunks=die.random() < OFTEN,
        fault="raise" if die.random() < SELDOM else "",
        output_bytes=die.choice((0, 0, 0, 2_000)),
        padding="p" * die.choice((0, 0, 0, 1_500)),
        awaited=[task(die, depth - 1) for _ in range(below)],
        detached=[task(die) for _ in range(aside)],
    )


async def trees(context: PlayContext) -> None:
    die = context.die
    kinds = (Worker, Worker, Worker, LoneWorker, OnceWorker)
    count = die.randint(1, 4)
    asked = [(f"{context.tag}tree-{n}", die.choice(kinds), task(die, die.randint(0, 2))) for n in range(count)]
    await asyncio.gather(*(_tree(context, *each) for each in asked))


async def _tree(context: PlayContext, run_id: str, kind: type[Worker], wanted: Task) -> None:
    result = await context.persist(lambda: context.client.run(kind, wanted, run_id=run_id))
    if result is None or not context.patient:
        return
    if result.ok:
        fine = result.output.total == wanted.total() or context.meddled or kind is OnceWorker
        context.expect(fine, f"run {run_id} returned {result.output.total} instead of {wanted.total()}")
    elif not wanted.fault and kind is not OnceWorker:
        _expect_excuse(context, f"run {run_id}", result)


def _expect_excuse(context: PlayContext, who: str, ended: Any) -> None:
    excused = context.meddled or ended.status == "interrupted" or "progress in between" in ended.error
    context.expect(excused, f"{who} ended {ended.status}: {ended.error}")


async def batches(context: PlayContext) -> None:
    die = context.die
    for number in range(die.randint(1, 2)):
        boss, name = die.choice(BOSSES), f"{context.tag}boss-{number}"
        handlers = die.sample(HANDLERS, 2)
        jobs = [_job(die, f"{name}-{n}", handlers) for n in range(die.randint(1, 12))]
        method = die.choice(("begin", "begin_one_by_one"))
        await context.call(boss, name, method, jobs)


def _job(die: Random, run_id: str, handlers: list[str]) -> BossJob:
    return BossJob(
        run_id=run_id,
        task=task(die, die.choice((0, 0, 1))),
        handler=die.choice(handlers),
        milestones=die.random() < OFTEN,
        follow_ups=die.randint(0, 3),
    )


async def budgets(context: PlayContext) -> None:
    """Runs that outlast their parent's patience: hung ones, silent ones, and some that end late."""
    die = context.die
    name = f"{context.tag}miser"
    jobs = []
    for number in range(die.randint(1, 6)):
        job = _job(die, f"{name}-{number}", ["on_done", "on_done_slowly"])
        job.task.fault = die.choice(("hang", "hang", "", "raise"))
        job.max_budget_ms = die.choice((0.0, 50.0, 1_000.0, 8_000.0))
        job.no_progress_budget_ms = die.choice((None, 200.0, 2_000.0))
        job.give_up_handler = die.choice((None, "on_give_up"))
        jobs.append(job)
    await context.call(Boss, name, "begin", jobs)


async def joins(context: PlayContext) -> None:
    """Runs that wait for others: of an agent that is entered again, of a client, and in one transaction; and races."""
    die = context.die
    asked = [
        (f"{context.tag}join-{n}", die.choice((Joiner, Joiner, Racer)), _join_job(die))
        for n in range(die.randint(1, 4))
    ]
    sources = [(f"{context.tag}source-{n}", task(die)) for n in range(die.randint(1, 3))]
    chain = [_job(die, f"{context.tag}link-{n}", ["on_done", "on_done_slowly"]) for n in range(die.randint(2, 4))]
    for before, job in pairwise(chain):
        job.after = [before.run_id]
    await context.call(die.choice(BOSSES), f"{context.tag}chain", "begin", chain)
    await asyncio.gather(_heir(context, sources), *(_join(context, *each) for each in asked))


def _join_job(die: Random) -> JoinJob:
    tasks = [task(die) for _ in range(die.randint(1, 5))]
    return JoinJob(
        tasks=tasks,
        count=die.randint(1, len(tasks)),
        stones=die.random() < OFTEN,
        nested=die.random() < OFTEN,
        losers=die.choice(LOSERS),
        max_budget_ms=die.choice((None, None, 1_000.0)),
    )


async def _join(context: PlayContext, run_id: str, kind: type[Joiner | Racer], job: JoinJob) -> None:
    result = await context.persist(lambda: context.client.run(kind, job, run_id=run_id))
    if result is None or not context.patient:
        return
    if not result.ok:
        _expect_excuse(context, f"run {run_id}", result)
        return
    told = result.output
    if told.status == "completed":
        wrong = job.unlike(told.given) if kind is Joiner else f"{len(told.given)} won" * (len(told.given) != job.count)
        context.expect(not wrong, f"{run_id}: {wrong}")
    elif told.status == "error" and "can never" in told.error:
        enough = told.ends.count("completed") >= job.count and not job.stones and not context.meddled
        context.expect(not enough, f"{run_id} could never begin, and its sources ended {told.ends}: {told.error}")
    else:
        _expect_excuse(context, f"what {run_id} waited for", told)


async def _heir(context: PlayContext, sources: list[tuple[str, Task]]) -> None:
    for run_id, wanted in sources:
        await context.persist(partial(context.client.start, Worker, wanted, run_id=run_id))
    run_ids = [run_id for run_id, _ in sources]
    with suppress(UnknownRun):  # a source was cleared before this was asked for
        result = await context.persist(
            lambda: context.client.run(Heir, None, run_id=f"{context.tag}heir", after=all_of(*run_ids))
        )
        if result is not None and result.ok and context.patient:
            totals = [wanted.total() for _, wanted in sources]
            context.expect(
                result.output == totals, f"the heir of {run_ids} was given {result.output}, and not {totals}"
            )
        return
    context.expect(context.meddled, f"a run of {run_ids} is not known")


async def meddling(context: PlayContext) -> None:
    """Cancel, clear and try again at moments of the die's choosing; only under fire."""
    die = context.die
    if context.patient:
        return
    for _ in range(die.randint(1, 8)):
        await asyncio.sleep(die.choice((0.0, 0.01, 0.3, 2.0)))
        verb = die.choice(("cancel", "cancel", "clear", "retry", "retry"))
        statuses = ["error", "interrupted"] if verb == "retry" else None
        found = await context.client.ask("list", None, statuses, None, 200)
        if not found:
            continue
        run_id = die.choice(found)["run_id"]
        context.meddled[run_id] = None
        asked: dict[str, list[Any]] = {"cancel": [run_id, None, "meddling"], "clear": [[run_id]], "retry": [run_id]}
        with suppress(UnknownRun, RetryRefused):  # cleared meanwhile, or not where it was any more
            await context.client.ask(verb, *asked[verb])


async def twins(context: PlayContext) -> None:
    """The same run asked for twice at once, and once more with other content, which must be refused."""
    die = context.die
    run_id, wanted = f"{context.tag}twin", task(die, die.randint(0, 1))
    try:
        both = await asyncio.gather(
            *(context.persist(lambda: context.client.run(Worker, wanted, run_id=run_id)) for _ in range(2))
        )
    except ConflictingRequest:  # the first was cleared, so that the other content below had the id for itself
        context.expect(context.meddled, f"{run_id} was taken by another request")
        return
    if both[0] is not None and both[1] is not None and not context.meddled:
        same = (both[0].status, both[0].output_or(None)) == (both[1].status, both[1].output_or(None))
        context.expect(same or not context.patient, f"run {run_id} ended in two ways: {both}")
    await _contradict(context, run_id, wanted.model_copy(update={"weight": wanted.weight + 1}))


async def _contradict(context: PlayContext, run_id: str, other: Task) -> None:
    try:
        await context.persist(lambda: context.client.run(Worker, other, run_id=run_id))
    except ConflictingRequest:
        return
    except BadRequest as problem:
        context.expect(False, f"a conflicting request was refused for another reason: {problem}")
    context.expect(context.meddled, f"a conflicting request for {run_id} was accepted")


async def desks(context: PlayContext) -> None:
    die = context.die
    for number in range(die.randint(1, 2)):
        desk, jobs = f"{context.tag}desk-{number}", draw_jobs(die.randint(4, 14), die.randrange(1_000_000), SPREAD_S)
        for _ in range(2):
            await context.call(JobDesk, desk, "accept", jobs)
        cancelled = [job.key for job in jobs if job.kind == "cancelled"]
        await context.call(JobDesk, desk, "cancel", cancelled)
        if context.patient:
            await _until(context, lambda told: told.left == 0, JobDesk, desk, "progress")
            report = await context.call(JobDesk, desk, "report")
            for wrong in wrong_jobs(jobs, report) if report is not None else ():
                context.expect(False, f"{desk}: {wrong}")


async def _until(
    context: PlayContext, fits: Callable[[Any], bool], agent_class: type[Agent], name: str, method: str, *args: object
) -> None:
    told: Any = None
    for _ in range(LOOKS_MAX):
        told = await context.call(agent_class, name, method, *args)
        if told is None or fits(told):
            return
        await asyncio.sleep(1)
    context.expect(False, f"it never came to an end: {told}")


async def families(context: PlayContext) -> None:
    """Words are spread in a family; each member hears each once. One of them is deleted in the end, and begins anew."""
    die = context.die
    head, words = f"{context.tag}head", [f"word {number}" for number in range(die.randint(1, 6))]
    names = [f"member {number}" for number in range(die.randint(1, 3))]
    for first in range(len(words)):
        await context.call(FamilyHead, head, "spread", words[first : first + 2], names)
    if not context.patient:
        return
    for name in names:
        await _until(context, lambda heard: len(heard) >= len(words), FamilyHead, head, "heard", name)
        heard = await context.call(FamilyHead, head, "heard", name)
        context.expect(sorted(heard or ()) == sorted(words), f"{name} of {head} heard {heard}, and not {words}")
    await context.call(FamilyHead, head, "drop", names[0])
    heard = await context.call(FamilyHead, head, "heard", names[0])
    context.expect(heard == [], f"{names[0]} of {head} was deleted, and has heard {heard}")


async def tallies(context: PlayContext) -> None:
    """Agents whose answers only grow, whoever dies in between: what was answered once is never forgotten."""

    async def tally(name: str, calls: list[float]) -> None:
        for pause_s in calls:
            await asyncio.sleep(pause_s)
            told = await context.persist(
                lambda: context.client.call(CallCounter, name, "count", (), {"in_table": name.endswith("table")})
            )
            before = context.heard.get(name, 0)
            context.expect(told is None or told > before, f"{name} answered {told} after it had answered {before}")
            context.heard[name] = told or before

    pauses = [[context.die.choice((0.0, 0.01, 1.0, 4.0)) for _ in range(context.die.randint(1, 6))] for _ in range(3)]
    names = (f"{context.tag}tally", f"{context.tag}tally-table", f"{context.tag}other-tally")
    await asyncio.gather(*map(tally, names, pauses))


async def waits(context: PlayContext) -> None:
    """Runs that wait for times, events, messages and people, some of them paused. What they are sent comes before they wait, or later."""
    die = context.die
    jobs = [(f"{context.tag}wait-{n}", _wait_job(die), die.random() < OFTEN) for n in range(die.randint(1, 4))]
    await asyncio.gather(*(_wait(context, *each) for each in jobs))


def _wait_job(die: Random) -> WaitJob:
    names = [f"event {n}" for n in range(die.choice((0, 1, 3)))]
    naps = [die.choice((0, 50, 900, 7_000, 20_000)) for _ in range(die.choice((0, 1, 2)))]
    return WaitJob(
        naps_ms=naps,
        events=names,
        at_once=die.random() < OFTEN,
        messages=die.choice((0, 0, 1, 4)),
        asks=die.random() < OFTEN,
    )


async def _wait(context: PlayContext, run_id: str, job: WaitJob, paused: bool) -> None:
    client = context.client
    await context.persist(lambda: client.start(PatientRun, job, run_id=run_id))
    sent = [(event, place, event) for place, event in enumerate(job.events)]
    sent += [("mail", number, f"mail {number}") for number in range(job.messages)]
    if paused:
        await context.persist(partial(_steered, lambda: client.ask("pause", run_id, True)))
    for event, value, event_id in sent:
        await context.persist(partial(_steered, partial(client.send, run_id, event, value, event_id)))
        await asyncio.sleep(job.messages * 0.4)
    if paused:
        await context.persist(partial(_steered, lambda: client.ask("pause", run_id, False)))
    if not context.patient:
        return
    ended = asyncio.ensure_future(context.persist(lambda: client.run(PatientRun, job, run_id=run_id)))
    while not ended.done():
        if paused:  # what a client that died asked for may come after what the next one asks for
            await context.persist(partial(_steered, lambda: client.ask("pause", run_id, False)))
        for ask in (await context.persist(lambda: client.ask("asks")) if job.asks else ()) or ():
            if ask["run_id"] == run_id:
                answer = partial(client.answer, ask["ask_id"], True, Answerer("ada", is_operator=True), "cli")
                await context.persist(partial(_steered, answer))
        await asyncio.wait([ended], timeout=2)
    result = ended.result()
    if result is not None:
        context.expect(
            result.ok and result.output == job.expected(), f"{run_id} waited for {job}, and came to {result}"
        )


async def _steered(ask: Callable[[], Awaitable[object]]) -> None:
    with suppress(EventRefused, PauseRefused, AskClosed, UnknownRun):  # it has ended, or somebody was first
        await ask()


STORIES: dict[str, tuple[Part, ...]] = {
    "trees": (trees,),
    "batches": (batches,),
    "budgets": (budgets,),
    "twins": (twins,),
    "meddling": (trees, batches, meddling),
    "everything": (trees, batches, budgets, twins, meddling, joins),
    "chats": (chats,),
    "approvals": (approvals,),
    "offices": (chats, batches),
    "desks": (desks,),
    "families": (families, batches),
    "letters": (letters,),
    "joins": (joins,),
    "meddled joins": (joins, trees, meddling),
    "waits": (waits, waits),
    "mixture": (trees, batches, budgets, twins),
}


async def play_parts(parts: Sequence[Part], context: PlayContext, seed: int) -> None:
    """Play the parts at the same time, each with a die of its own that is the same in every play."""
    contexts = [replace(context, die=Random(f"{seed}/{at}"), tag=f"{at}-") for at in range(len(parts))]
    await asyncio.gather(*(part(own) for part, own in zip(parts, contexts, strict=True)))
