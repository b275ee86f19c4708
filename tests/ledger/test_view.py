"""The view: whatever happens, the fold of the facts is the kept view, and its indexes follow its records (invariant 8)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from perdure.ledger import (
    Awake,
    BadRequest,
    Cancel,
    Chunk,
    Clear,
    Ended,
    Fact,
    FactRow,
    Handled,
    HostLost,
    HostUp,
    HostView,
    Milestone,
    Progress,
    Released,
    Request,
    Retry,
    RunBeingCleared,
    Stimulus,
    StopLives,
    Tick,
    Unstarted,
    Up,
    View,
    assign_hosts,
    audit,
    decide,
    dirty_records,
    leave_out_passers,
    meta_of,
    prepare_rows,
    restore,
    rows_to_make,
)
from perdure.ledger.notes import Note
from perdure.ledger.store.memory_store import MemoryStore
from perdure.ledger.store.store import Boot
from perdure.policies import Limits
from perdure.scenarios.testing.checks import out_of_step
from tests.kit import NOW_MS, PARENT, TYPE, child, enacted

LIMITS = Limits(hosts_max=3, pack_max=4, handler_attempts_max=2, attempts_max=2, recovery_work_max=6)
RUNS = ["a", "b", "c", "d"]
HOSTS = ["h1", "h2", "h3"]
OPTIONS: list[dict[str, Any]] = [
    {},
    {"detached": True, "on_finish": "f", "milestones": {"names": ["m"]}},
    {"detached": True, "hook": True, "max_budget_ms": 5_000, "attempts_max": 1},
    {"limit": 1, "hook": True},
]

run_ids = st.sampled_from(RUNS)
lives = st.integers(1, 12)
moves: Any = st.one_of(
    st.tuples(st.just("request"), run_ids, st.integers(0, 3), st.integers(1, 2)),
    st.tuples(
        st.sampled_from(["up", "progress", "milestone", "chunk", "ended", "failed", "gone", "released"]), run_ids
    ),
    st.tuples(st.sampled_from(["cancel", "clear", "unstarted", "unfit", "retry", "nested"]), run_ids),
    st.tuples(st.sampled_from(["host lost", "host up", "amnesia"]), st.sampled_from(HOSTS)),
    st.tuples(
        st.sampled_from(["handled", "handler failed", "requeue"]), run_ids, st.sampled_from(["finish", "give-up"])
    ),
    st.tuples(st.just("tick"), st.sampled_from([1, 200, 6_000, 40_000, 200_000])),
    st.tuples(st.sampled_from(["awake", "parent released", "parent stopped"])),
)


class Machine:
    """A supervisor's decisions without a supervisor."""

    def __init__(self) -> None:
        self.view, self.rows, self.now_ms = View(), list[FactRow](), NOW_MS
        self.store, self.durable = MemoryStore(), 0

    def put(self, stimulus: Stimulus) -> None:
        try:
            self.enact(decide(self.view, stimulus, self.now_ms, LIMITS))
        except (BadRequest, RunBeingCleared):
            return

    def settle(self) -> None:
        for host in HOSTS:
            self.view.hosts.setdefault(host, HostView(host, None, up=True))
        self.enact(assign_hosts(self.view, self.now_ms, LIMITS))
        self.store.append(self.rows[self.durable :], [])
        self.durable = len(self.rows)
        prepare_rows(self.view, rows_to_make(self.view))

    def enact(self, changes: Iterator[Fact | Note]) -> None:
        self.rows += [row for _fact, row in enacted(self.view, changes, self.now_ms)]

    def checkpoint(self) -> None:
        kept, made = self.view.kept.copy(), self.view.dirty_runs
        self.view.dirty_runs = dict.fromkeys(made)
        at_once, self.view.kept, self.view.dirty_runs = dirty_records(self.view), kept, made
        prepare_rows(self.view, rows_to_make(self.view))
        leave_out_passers(self.view, list(self.view.dirty_agents))
        records = dirty_records(self.view)
        assert records == at_once, "what was made before the cut is what would be made at the cut"
        assert rows_to_make(self.view) == []
        self.store.checkpoint(meta_of(self.view), self.view.seq, records, [])
        self.view.dirty_runs, self.view.dirty_agents, self.view.dirty_mail = {}, {}, {}

    def life(self, agent: str) -> int:
        activation = self.view.agents.get(agent)
        return activation.incarnation if activation is not None else 0

    def move(self, name: str, *args: Any) -> None:
        self.put(self.stimulus(name, *args))
        self.settle()

    def stimulus(self, name: str, *args: Any) -> Stimulus:
        if name == "tick":
            self.now_ms += args[0]
            return Tick()
        if name in ("host lost", "host up", "amnesia"):
            tenants = [] if name == "amnesia" else [(agent, self.life(agent)) for agent in self.view.agents]
            return HostLost(args[0], "it died") if name == "host lost" else HostUp(args[0], tenants)
        if name == "parent stopped":
            return StopLives(PARENT)
        if name in ("awake", "parent released"):
            return (Awake if name == "awake" else Released)(PARENT, self.life(PARENT))
        run_id = args[0]
        life = self.life(child(run_id))
        run = self.view.runs.get(run_id)
        key = run.mail_id(args[1]) if run is not None and name in ("handled", "handler failed", "requeue") else ""
        by_name: dict[str, Any] = {
            "request": lambda: Request(run_id, TYPE, PARENT, "", "d", b"", OPTIONS[args[1]], args[2], wait=True),
            "nested": lambda: Request(run_id, TYPE, child("a"), "a", "d", b"", {}, 1, wait=True),
            "up": lambda: Up(run_id, life),
            "progress": lambda: Progress(run_id, life, b"\x80"),
            "milestone": lambda: Milestone(run_id, life, "m", 1, b"\x80"),
            "chunk": lambda: Chunk(run_id, life, len(self.rows), b"\xc0"),
            "ended": lambda: Ended(run_id, life, b"\x01", "", None, released=False),
            "failed": lambda: Ended(run_id, life, None, "", "it broke", released=True),
            "gone": lambda: Unstarted(run_id, life, "unimportable", "no such class"),
            "unstarted": lambda: Unstarted(run_id, life, "start-failed", "on_start raised"),
            "unfit": lambda: Unstarted(run_id, life, "unfit", "input: months: Field required"),
            "retry": lambda: Retry(run_id),
            "released": lambda: Released(child(run_id), life),
            "cancel": lambda: Cancel(run_id, None, "enough"),
            "clear": lambda: Clear([run_id]),
            "handled": lambda: Handled(PARENT, self.life(PARENT), [key], []),
            "handler failed": lambda: Handled(PARENT, self.life(PARENT), [], [(key, "it raised", False)]),
            "requeue": lambda: Retry(key),
        }
        made: Stimulus = by_name[name]()
        return made


def known(view: View) -> dict[str, Any]:
    """Everything that a boot must bring back. Hosts are seen anew, and whoever waits for a place is found by its timer."""
    agents = {
        key: (a.incarnation, a.host_id, a.run_id, a.unclean, a.losses, a.deaths, a.stopping)
        for key, a in view.agents.items()
    }
    return {
        "runs": view.runs,
        "mail": view.mail,
        "agents": {key: told for key, told in agents.items() if told[1] or told[3]},
        "numbers": (view.seq, view.incarnation, view.tally),
        "mailbox": {key: list(box) for key, box in view.mailbox.items()},
        "children": {key: set(family) for key, family in view.children.items()},
        "parked mail": view.parked_mail,
        "live": view.live,
        "alarmed": view.alarmed,
        "calls": (view.asked_calls, view.closed_calls, [a.calls for a in view.agents.values() if a.calls]),
        "placed": view.placed,
        "awaiting": view.awaiting,
        "parked": view.parked,
    }


def waiting(view: View) -> set[str]:
    """The runs that somebody will look at: in a queue, held back, or armed."""
    lines = [view.queues, *view.held.values(), view.timers.armed]
    return {key for line in lines for key in line}


def check_indexes(view: View) -> None:
    """The indexes say what the records say."""
    assert list(out_of_step(view)) == []
    live = {run.run_id for run in view.runs.values() if run.is_live}
    assert {key for family in view.children.values() for key in family} == live
    placed: dict[str, int] = {}
    for run in view.runs.values():
        if run.is_placed:
            placed[run.parent] = placed.get(run.parent, 0) + 1
            activation = view.agents[run.child]
            assert (activation.host_id, activation.incarnation) == (run.host_id, run.incarnation)
    assert view.placed == placed
    pending = {mail.mail_id for mail in view.mail.values() if mail.state == "pending"}
    assert {key for box in view.mailbox.values() for key in box} == pending
    lines = [set(line) for line in (view.queues, *view.held.values())]
    assert sum(map(len, lines)) == len(set().union(*lines)), "a run waits in two places"
    assert set().union(*lines) <= {key for key in live if not view.runs[key].is_placed}
    for host in view.hosts.values():
        here = {agent for agent, activation in view.agents.items() if activation.host_id == host.host_id}
        assert set(host.tenants) == here
        assert host.load == sum(not view.awaiting.get(agent) for agent in here)


@pytest.mark.thorough
@hypothesis_settings(max_examples=250)
@given(st.lists(moves, min_size=1, max_size=60), st.integers(0, 60))
def test_whatever_happens_the_indexes_follow_the_records_and_a_boot_finds_the_same(
    story: list[tuple[Any, ...]], checkpoint_at: int
) -> None:
    machine = Machine()
    machine.settle()
    for number, move in enumerate(story):
        if number == checkpoint_at:
            machine.checkpoint()
        machine.move(*move)
        check_indexes(machine.view)
        assert audit(machine.view)["balanced"]
    folded = restore(Boot(None, [], machine.rows, []))
    assert known(folded) == known(machine.view)
    unplaced = {run.run_id for run in folded.runs.values() if run.is_live and not run.is_placed and not run.parked}
    assert unplaced <= waiting(folded)
    booted = restore(machine.store.boot())
    forgotten = {key for key in machine.view.runs if key not in booted.runs}
    assert all(machine.view.runs.pop(key).is_settled for key in forgotten), "a boot forgets only what nobody waits for"
    assert known(booted) == known(machine.view)
    assert unplaced <= waiting(booted)


@given(st.lists(moves, min_size=1, max_size=40))
def test_a_stimulus_that_comes_twice_in_a_row_changes_nothing_the_second_time(story: list[tuple[Any, ...]]) -> None:
    machine = Machine()
    machine.settle()
    for move in story:
        if move[0] in ("chunk", "handler failed", "requeue", "unstarted"):
            continue
        stimulus = machine.stimulus(*move)
        machine.put(stimulus)
        count = len(machine.rows)
        machine.put(stimulus)
        if move[0] != "progress":
            assert [row.kind for row in machine.rows[count:]] == [], move
        machine.settle()
