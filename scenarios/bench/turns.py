"""Turns of a supervisor without processes around it: what they decide, fold, look up and say. One host answers everything at once.

The processor time of such a turn is what the supervisor's event loop is kept from other work. The disk and the wire are left out: their
threads, and their share of each message, do not depend on what the ledger holds.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from perdure.actors.link.columns import Starts
from perdure.actors.link.messages import Deliver, Start, Wake
from perdure.actors.link.wire import messages_in
from perdure.actors.supervisor.call_router import CallRouter
from perdure.actors.supervisor.calls import Calls
from perdure.actors.supervisor.effect_executor import EffectExecutor
from perdure.actors.supervisor.sessions import PeerSession, Sessions
from perdure.ledger import (
    Awake,
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
    pack,
)
from perdure.ledger.store.memory_store import MemoryStore
from perdure.policies import Limits

AT_MS: Final = 1_750_000_000_000
HOST: Final = "host"
PARENT: Final = agent_id("perdure.census:Census", "stdlib")
CHILD: Final = "perdure.census:Reader"
TURN: Final = 1_000  # messages of one turn
INPUT: Final = pack({"path": "a/file/of/some/length.py", "copy_number": 0})
OUTPUT: Final = pack({"definitions": 10, "branches": 20, "lines": 300, "digest": "0123456789abcd"})
ROOMY: Final = Limits(hosts_max=1, hosts_warm=1, pack_max=10_000_000, tenancies_max=10_000_000, waiting_max=10_000_000)


class TurnBench:
    """A supervisor's view, and the turns that change it. `spent_s` is the processor time of all turns until now."""

    def __init__(self, limits: Limits = ROOMY) -> None:
        self.view, self.limits, self.spent_s = View(), limits, 0.0
        self.view.hosts[HOST] = HostView(HOST, None, up=True)
        self.sessions = Sessions()
        self.session = self.sessions.by_peer[HOST] = PeerSession(HOST, 1)
        self.calls = Calls(self.view, self.sessions, CallRouter(self.view, lambda _agent: True))
        self.effect_executor = EffectExecutor(None, self.view, self.sessions, MemoryStore(), limits)  # type: ignore[arg-type]

    async def turn(self, stimuli: Iterable[Stimulus]) -> list[Stimulus]:
        """One turn, and what the host answers to it."""
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
        hosts_wanted(view, self.limits)
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

    async def wake(self, agent: str = PARENT) -> None:
        self.view.want(agent)
        await self.all_turns(await self.turn([]))


def requests(count: int, *, first: int = 0, parent: str = PARENT, **options: object) -> list[Stimulus]:
    digest = digest_of(INPUT)
    told = {"detached": True, **options}
    return [
        Request(f"stdlib-{number:07d}", CHILD, parent, "", digest, INPUT, dict(told), 1, wait=False)
        for number in range(first, first + count)
    ]
