"""What a thing costs while more and more of its kind is there: in one fan-out, pending, waiting, live, ended.

Each member of the group is measured at several sizes, in turns of a supervisor without processes around it (`TurnBench`). Its figure is
the cost at the largest size over that at the smallest. A cost that follows what is new or live has about the same value at each size.

The processor time of such a turn is what the supervisor's event loop is kept from other work. The disk and the wire are left out: their
threads, and their share of each message, do not depend on what the ledger holds.
"""

from __future__ import annotations

import asyncio
import gc
import math
import statistics
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Final

from perdure import Limits
from perdure.actors.link.messages import Call, Deliver, Start, Starts, Wake
from perdure.actors.link.wire import messages_in
from perdure.actors.supervisor.calls import CallRouter, Calls
from perdure.actors.supervisor.effect_executor import EffectExecutor, SweepQueue
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.ledger import (
    Awake,
    Clear,
    Ended,
    Handled,
    HostView,
    Request,
    Stimulus,
    View,
    agent_id,
    apply_fact,
    arm,
    assign_hosts,
    decide,
    digest_of,
    hosts_wanted,
    outstanding,
    overview,
    wants_of,
)
from perdure.ledger.store.memory_store import MemoryStore
from perdure.scenarios.bench.figures import Found
from perdure.scenarios.bench.ledger import AT_MS, HOST, INPUT, OUTPUT, boot_apart, build
from perdure.scenarios.bench.measuring import Bench

SIZES: Final = (1_000, 10_000, 100_000)
REPEATS: Final = 15
FULL: Final = Limits(hosts_max=1, hosts_warm=1, pack_max=1, waiting_max=10_000_000)  # room for one agent
MANY: Final = 10_000_000  # retained runs, to which the memory of a boot is extended
PARENT: Final = agent_id("perdure.census:Census", "stdlib")
CHILD: Final = "perdure.census:Reader"
TURN: Final = 1_000  # messages of one turn
ROOMY: Final = Limits(hosts_max=1, hosts_warm=1, pack_max=10_000_000, tenancies_max=10_000_000, waiting_max=10_000_000)


class TurnBench:
    """A supervisor's view, and the turns that change it. One host answers everything at once.

    `spent_s` is the processor time of all turns until now.
    """

    def __init__(self, limits: Limits = ROOMY) -> None:
        self.view, self.limits, self.spent_s = View(), limits, 0.0
        self.view.hosts[HOST] = HostView(HOST, None, up=True)
        self.sessions = Sessions()
        self.session = self.sessions.by_peer[HOST] = PeerSession(HOST, 1)
        self.calls = Calls(self.view, self.sessions, CallRouter(self.view, lambda _agent: True))
        self.effect_executor = EffectExecutor(None, self.view, self.sessions, MemoryStore(), limits)  # type: ignore[arg-type]

    async def turn(self, stimuli: Iterable[Stimulus]) -> list[Stimulus]:
        begun_s = time.process_time()
        view, rows = self.view, 0
        for stimulus in stimuli:
            rows += len(apply_fact(view, decide(view, stimulus, AT_MS, self.limits), AT_MS))
        rows += len(apply_fact(view, assign_hosts(view, AT_MS, self.limits), AT_MS))
        touched = list(view.touched)
        view.touched.clear()
        arm(view, touched, self.limits)
        await self.effect_executor.perform(list(outstanding(view, touched, AT_MS)), AT_MS)
        self.effect_executor.forget_payloads(touched)
        self.calls.hosts_changed()
        self.calls.seen(touched)
        self.calls.hand_over()
        hosts_wanted(wants_of(view, self.limits))
        self.spent_s += time.process_time() - begun_s
        return list(self._answers())

    def _answers(self) -> Iterable[Stimulus]:
        first, said = self.session.link.take(10_000_000)
        self.session.link.acknowledge(first + len(said) - 1)
        for message in messages_in(said):
            if isinstance(message, Wake):
                yield Awake(message.agent_id, message.incarnation)
            elif isinstance(message, Starts):
                for run_id, incarnation in zip(message.run_ids, message.incarnations, strict=True):
                    yield Ended(run_id, incarnation, OUTPUT, "", None, released=True)
            elif isinstance(message, Start):
                yield Ended(message.run_id, message.incarnation, OUTPUT, "", None, released=True)
            elif isinstance(message, Deliver):
                yield Handled(message.agent_id, message.incarnation, [mail[0] for mail in message.mails], [])

    async def all_turns(self, stimuli: Sequence[Stimulus]) -> None:
        waiting = deque(stimuli)
        while waiting:
            waiting += await self.turn([waiting.popleft() for _ in range(min(TURN, len(waiting)))])

    async def wake_parent(self) -> None:
        self.view.want(PARENT)
        await self.all_turns(await self.turn([]))


Member = Callable[[TurnBench, int], list[float]]
"""What is measured at one size: seconds of each repeat. It is given a supervisor of which so many runs have ended."""


def requests(count: int, *, first: int = 0, **options: object) -> list[Stimulus]:
    digest = digest_of(INPUT)
    told = {"detached": True, **options}
    return [
        Request(f"stdlib-{number:07d}", CHILD, PARENT, "", digest, INPUT, dict(told), 1, wait=False)
        for number in range(first, first + count)
    ]


async def pending_mail(count: int) -> list[float]:
    turns = TurnBench()
    await turns.wake_parent()
    asked = requests(count + REPEATS, on_finish="on_done")
    for first in range(0, count, TURN):
        await _end(turns, asked[first : first + min(TURN, count - first)])
    return [await _spent(turns, _end(turns, [each])) for each in asked[count:]]


async def waiting_runs(count: int) -> list[float]:
    turns = await _asked_for(count)
    return [await _spent(turns, turns.turn([])) for _ in range(REPEATS)]


async def waiting_agents(count: int) -> list[float]:
    turns = TurnBench(FULL)
    for number in range(count):
        asked = Call(f"agent-{number:07d}@perdure.census:Clerk", "hear", b"", None, False, "", 0, False, "")
        turns.calls.begin(turns.session, str(number), asked)
    await turns.turn([])
    return [await _spent(turns, turns.turn([])) for _ in range(REPEATS)]


async def live_agents(count: int) -> list[float]:
    # Seconds of a sweep.
    turns = TurnBench()
    for number in range(count):
        turns.view.want(f"agent-{number:07d}@perdure.census:Clerk")
    await turns.all_turns(await turns.turn([]))
    rounds, told = SweepQueue(turns.view), []
    for _ in range(REPEATS):
        begun_s = time.process_time()
        effects = list(outstanding(turns.view, rounds.next_keys(), AT_MS))
        await turns.effect_executor.perform(effects, AT_MS)
        turns.effect_executor.tidy()
        told.append(time.process_time() - begun_s)
    return told


def clearing(turns: TurnBench, _count: int) -> list[float]:

    def clear(number: int) -> None:
        apply_fact(turns.view, decide(turns.view, Clear([f"stdlib-{number:07d}"]), AT_MS, turns.limits), AT_MS)

    return [_took(partial(clear, number)) for number in range(REPEATS)]


def letting_go(turns: TurnBench, count: int) -> list[float]:
    turns.view.dirty_runs.clear()
    count = len(turns.view.settled)
    steps = range(1, min(REPEATS, count // 100))
    return [_took(partial(turns.view.let_go_of_oldest, count - 100 * step)) for step in steps]


async def looking(count: int) -> list[float]:
    turns = await _asked_for(count)
    return [_took(lambda: overview(turns.view, 100)) for _ in range(REPEATS)]


def _anew(measure: Callable[[int], Coroutine[None, None, list[float]]]) -> Member:
    def measured(_ended: TurnBench, count: int) -> list[float]:
        gc.collect()
        return asyncio.run(measure(count))

    return measured


MEMBERS: Final[dict[str, Member]] = {
    "one fan-out of {size}, for each run": lambda turns, count: [turns.spent_s / count],
    "{size} runs in memory, to clear one": clearing,
    "{size} ended runs in memory, to drop 100": letting_go,
    "{size} mails pending for one agent, for a turn": _anew(pending_mail),
    "{size} runs waiting, for a turn": _anew(waiting_runs),
    "{size} agents waiting, for a turn": _anew(waiting_agents),
    "{size} agents awake, for a sweep": _anew(live_agents),
    "{size} runs live, for `perdure ps`": _anew(looking),
}


def growth(bench: Bench) -> Found:
    sizes = SIZES[: bench.size(3, 2)]
    least, most = sizes[0], sizes[-1]
    ended = {size: asyncio.run(fan_out(size)) for size in sizes}
    costs_us = [
        _costs_us(bench, name, {size: measure(ended[size], size) for size in sizes})
        for name, measure in MEMBERS.items()
    ]
    armed = len(ended[most].view.timers.armed)
    ended.clear()
    ratios = [each[most] / each[least] if each[least] else math.inf for each in costs_us]
    costs = [f"{each[most]:,.3g}" for each in costs_us]
    few, more = bench.size(100_000, 5_000), bench.size(1_000_000, 50_000)
    found = (armed, _memory(), _snapshot_mb(bench, few, more))
    return Found(*ratios, *found, costs=costs, size=most, least=least, many=MANY, more=more)


def _costs_us(bench: Bench, name: str, costs_s: dict[int, list[float]]) -> dict[int, float]:
    costs_us = {size: statistics.median(costs) * 1e6 for size, costs in costs_s.items()}
    told = ", ".join(f"{cost:,.3g} µs at {size:,}" for size, cost in costs_us.items())
    bench.say(f"{name.format(size='N')}: {told}")
    return costs_us


def _memory() -> float:
    count = 5_000
    gc.collect()
    tracemalloc.start()
    turns = asyncio.run(fan_out(count))
    gc.collect()
    size, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del turns
    return size / count


def _snapshot_mb(bench: Bench, few: int, more: int) -> float:
    # `MANY` would take too long to build: it is extended from what fewer take.
    peaks = []
    for count in (few, more):
        build(bench.data / f"growth-{count}", count, 0, bench.say)
        peaks.append(statistics.median(boot_apart(bench.data / f"growth-{count}")["peak_mb"] for _ in range(3)))
    bench.say(f"a boot takes {peaks[0]:.0f} MB with {few:,} retained runs, and {peaks[1]:.0f} MB with {more:,}")
    return peaks[1] + max(0.0, peaks[1] - peaks[0]) / (more - few) * (MANY - more)


async def fan_out(count: int) -> TurnBench:
    """Runs of one awake parent are requested, placed and ended, and the parent is told. Returns the supervisor after that."""
    turns = TurnBench()
    await turns.wake_parent()
    turns.spent_s = 0.0
    await turns.all_turns(requests(count, on_finish="on_done"))
    if turns.view.live or PARENT in turns.view.mailbox:
        raise RuntimeError(f"of {count} runs {turns.view.live} are live")
    return turns


async def _asked_for(count: int) -> TurnBench:
    turns = TurnBench(FULL)
    for first in range(0, count, TURN):
        await turns.turn(requests(min(TURN, count - first), first=first))
    return turns


async def _end(turns: TurnBench, asked: Sequence[Stimulus]) -> None:
    # The parent does not come to handle the mail.
    said = await turns.turn(asked)
    await turns.turn([each for each in said if isinstance(each, Ended)])


async def _spent(turns: TurnBench, job: Coroutine[None, None, object]) -> float:
    before_s = turns.spent_s
    await job
    return turns.spent_s - before_s


def _took(job: Callable[[], object]) -> float:
    begun_s = time.process_time()
    job()
    return time.process_time() - begun_s
