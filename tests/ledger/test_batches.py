"""Batches: many runs in one fact, and nothing else is different from the same runs one by one."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.actors.supervisor.intake import batch_alike
from perdure.actors.supervisor.sessions import Arrived, PeerSession
from perdure.ledger import (
    BATCH_MIN,
    BadRequest,
    BatchRow,
    Cancel,
    Clear,
    Ended,
    FactRow,
    HostLost,
    LedgerDamaged,
    Request,
    Row,
    Slot,
    StartAttempt,
    StartBatch,
    Stimulus,
    TellEnd,
    Tick,
    Up,
    View,
    WorldError,
    agent_id,
    apply_fact,
    arm,
    assign_hosts,
    decide,
    decode,
    dirty_records,
    end_together,
    expand_rows,
    fold,
    frame_of,
    meta_of,
    outstanding,
    request_together,
    restore,
)
from perdure.ledger.notes import Note
from perdure.ledger.store.memory_store import MemoryStore
from perdure.ledger.store.seals import GENESIS, seal
from perdure.ledger.timeouts import next_look
from perdure.policies import Limits
from tests.kit import NOW_MS, PARENT, TYPE, Ledger

LIMITS = Limits(hosts_max=4, pack_max=12, inline_bytes_max=8, waiting_max=30)
OTHER = "q@tests.toys:Parent"


def request(name: str, parent: str = PARENT, body: bytes = b"\x01", wait: bool = True, **options: Any) -> Request:
    told = options if wait else {"detached": True, "on_finish": "on_done", **options}
    return Request(name, TYPE, parent, "", f"digest of {body!r}", body, told, 1, wait)


class Both(Ledger):
    """A ledger whose stimuli are decided in batches, as the supervisor does it. Whatever is decided is compared with the same stimuli
    one by one."""

    def __init__(self) -> None:
        super().__init__(LIMITS)
        self.rows: list[Row] = []
        self.snapshot_seq = 0

    def say(self, stimuli: Sequence[Stimulus]) -> None:
        """All that one peer said at once."""
        before = copy.deepcopy(self.view)
        alone = [row for each in stimuli for row in _alone(before, each, self.now_ms)]
        rows: list[Row] = []
        session = PeerSession("h1", 1)
        arrived = [Arrived(session, number, each) for number, each in enumerate(stimuli)]  # type: ignore[arg-type]
        for _, group in batch_alike(arrived, LIMITS):
            rows += self._decided(group)
        assert expand_rows(rows) == alone, "other facts than one by one"
        self._same(before)
        self.rows += rows

    def _decided(self, group: Sequence[Any]) -> list[Row]:
        if len(group) >= BATCH_MIN and isinstance(group[0], Ended):
            return apply_fact(self.view, end_together(self.view, group, LIMITS), self.now_ms)
        rows: list[Row] = []
        if len(group) >= BATCH_MIN:
            rows = apply_fact(self.view, request_together(self.view, group, LIMITS), self.now_ms)
        return rows or [row for each in group for row in _alone(self.view, each, self.now_ms)]

    def seat(self) -> None:
        """Whoever waits gets a place. Which host each gets is another one than one by one; how many each host gets is not."""
        before, alone = copy.deepcopy(self.view), copy.deepcopy(self.view)
        for change in assign_hosts(self.view, self.now_ms, LIMITS):
            rows = apply_fact(self.view, [change], self.now_ms)
            if isinstance(change, Note):
                change.apply(before)
            for row in expand_rows(rows):
                fold(before, decode(row.kind, row.body), row.seq, row.at_ms)
            self.rows += rows
        self._same(before)
        for line in alone.queues.keys:
            alone.blockers["somebody"] = None  # then nobody is seated without a look at him
            apply_fact(alone, assign_hosts(alone, self.now_ms, LIMITS), self.now_ms)
            assert line.pool == ""
        assert len(alone.queues) == len(self.view.queues)
        assert sorted(host.load for host in alone.hosts.values()) == sorted(
            host.load for host in self.view.hosts.values()
        )

    def _same(self, other: View) -> None:
        keys = {**other.touched, **self.view.touched}
        effects = [_one_by_one(each, each.touched, self.now_ms) for each in (other, self.view)]
        assert effects[0] == effects[1], "other effects than one by one"
        assert _one_by_one(self.view, keys, self.now_ms) == effects[1]
        assert plain(other) == plain(self.view)
        arm(self.view, self.view.touched, LIMITS)
        for run in [self.view.runs[key] for key in self.view.touched if key in self.view.runs]:
            armed = self.view.timers.armed.get(run.run_id, (math.inf,))
            assert min(armed) <= next_look(self.view, run, LIMITS), "it is looked at too late"
        self.view.touched.clear()


def _one_by_one(view: View, keys: Iterable[str], at_ms: int) -> list[str]:
    """What is outstanding, each for itself and in the order of the words: batches have the order in which their members were touched."""
    told: list[str] = []
    for effect in outstanding(view, keys, at_ms):
        if isinstance(effect, TellEnd):
            told += effect.run_ids
        elif isinstance(effect, StartBatch):
            host_id, agent_type, options, *columns = effect
            for run_id, life, body in zip(*columns, strict=True):
                agent = agent_id(agent_type, run_id)
                told.append(repr(StartAttempt(host_id, agent, life, run_id, 1, body, collect=False, options=options)))
        else:
            told.append(repr(effect))
    return sorted(told)


def _alone(view: View, stimulus: Stimulus, at_ms: int) -> list[FactRow]:
    try:
        return expand_rows(apply_fact(view, decide(view, stimulus, at_ms, LIMITS), at_ms))
    except (BadRequest, WorldError):
        return []


def plain(thing: Any) -> Any:
    """A view as plain data, but for what was touched: of that, what is outstanding is compared."""
    if isinstance(thing, dict):
        return [
            type(thing).__name__,
            [(key, plain(each)) for key, each in sorted(thing.items(), key=repr) if each != 0],
        ]
    if isinstance(thing, Enum):
        return str(thing)
    if isinstance(thing, list | tuple):
        return [plain(each) for each in thing]
    if is_dataclass(thing):
        return [plain(getattr(thing, each.name)) for each in fields(thing)]
    if type(thing).__module__.startswith("perdure.ledger"):
        names = getattr(thing, "__dict__", None) or dict.fromkeys(getattr(thing, "__slots__", ()))
        return {name: plain(getattr(thing, name)) for name in names if name != "touched"}
    return thing


names = st.integers(0, 40).map(lambda number: f"r{number}")
stretches = st.tuples(st.integers(0, 40), st.integers(1, 14)).map(lambda at: [f"r{n}" for n in range(at[0], sum(at))])
oddities: Any = st.sampled_from(
    [{}] * 6
    + [
        {"wait": False},
        {"parent": OTHER},
        {"parent": f"r3@{TYPE}"},
        {"body": b"x" * 9},
        {"limit": 2},
        {"start_hook": True},
        {"order": 3},
        {"attempts_max": 1},
        {"apart": True},
        {"pool": [0, [], "", True]},
    ]
)
ends: Any = st.sampled_from(["ok"] * 8 + ["error", "large", "stays", "stale", "stored"])
moves: Any = st.lists(
    st.one_of(
        st.tuples(st.just("request"), stretches, oddities, oddities),
        st.tuples(st.just("seat")),
        st.tuples(st.just("end"), st.integers(0, 3), st.lists(ends, min_size=1, max_size=20)),
        st.tuples(st.just("up"), names),
        st.tuples(st.just("cancel"), names),
        st.tuples(st.just("clear"), names),
        st.tuples(st.just("lose")),
        st.tuples(st.just("later"), st.integers(1, 40_000)),
    ),
    max_size=14,
)


@settings(max_examples=150, deadline=None)
@given(moves, st.integers(0, 14))
def test_a_history_in_batches_is_the_history_one_by_one(story: list[Any], snapshot_before: int) -> None:
    """Facts, frames, records, every index and what is outstanding are the same at each step and after a boot, with a snapshot or not."""
    both, stores = Both(), (MemoryStore(), MemoryStore())
    for place, (move, *told) in enumerate(story):
        if place == snapshot_before:
            _snapshot(both, stores)
        _play(both, move, *told)
    _the_same_frames(both)
    _the_same_after_a_boot(both, stores)


def _play(both: Both, move: str, *told: Any) -> None:
    view = both.view
    match move:
        case "request":
            run_ids, usual, odd = told
            both.say([request(each, **(odd if each.endswith("7") else usual)) for each in run_ids])
        case "seat":
            both.seat()
        case "end":
            skipped, kinds = told
            placed = [run for run in view.runs.values() if run.is_placed][skipped:]
            said = [_end(run.run_id, run.incarnation, kind) for run, kind in zip(placed, kinds, strict=False)]
            both.say([*said, *said[:1]])
        case "up":
            run = view.runs.get(told[0])
            both.say([Up(told[0], run.incarnation)] if run is not None else [])
        case "cancel":
            both.say([Cancel(told[0], None, "enough")])
        case "clear":
            both.say([Clear(told)])
        case "lose":
            both.say([HostLost("h2", "gone")] if "h2" in view.hosts else [])
        case "later":
            both.later(told[0]).say([Tick()])


def _end(run_id: str, incarnation: int, kind: str) -> Ended:
    life = incarnation - 1 if kind == "stale" else incarnation
    output = b"x" * (9 if kind == "large" else 1)
    error = "no" if kind == "error" else None
    return Ended(run_id, life, output, run_id, error, kind != "stays", "", 4 if kind == "stored" else 0)


def _the_same_frames(both: Both) -> None:
    alone = View()
    for row in expand_rows(both.rows):
        fact = decode(row.kind, row.body)
        assert fold(alone, fact, row.seq, row.at_ms) == row.frame
        assert row.frame is None or frame_of(row, alone.runs[row.subject]) is not None


def _snapshot(both: Both, stores: Sequence[MemoryStore]) -> None:
    """What the first store keeps in batches, the second one keeps one by one."""
    view = both.view
    meta, records = meta_of(view), dirty_records(view)
    view.dirty_runs, view.dirty_agents, view.dirty_mail = {}, {}, {}
    for store, rows in zip(stores, _rows_after(both, 0), strict=True):
        store.append(rows, [])
        store.checkpoint(meta, view.seq, records, [])
    both.snapshot_seq = view.seq


def _rows_after(both: Both, seq: int) -> tuple[list[Row], list[FactRow]]:
    rows = [row for row in both.rows if row.seq > seq]
    return rows, expand_rows(rows)


def _the_same_after_a_boot(both: Both, stores: Sequence[MemoryStore]) -> None:
    for store, rows in zip(stores, _rows_after(both, both.snapshot_seq), strict=True):
        store.append(rows, [])
    shared, alone = (restore(store.boot()) for store in stores)
    assert plain(shared) == plain(alone)
    assert plain(shared.runs) == plain({key: both.view.runs[key] for key in shared.runs})
    assert both.snapshot_seq or shared.runs.keys() == both.view.runs.keys()
    assert plain(shared.mail) == plain(both.view.mail)
    assert (shared.seq, shared.tally, shared.live) == (both.view.seq, both.view.tally, both.view.live)


def fan_out(count: int = 20) -> Both:
    """Children that are asked for, placed and ended at once, but for one."""
    both = Both()
    ids = [f"r{number:02}" for number in range(count)]
    both.say([request(each) for each in ids])
    both.seat()
    placed = [run for run in both.view.runs.values() if run.is_placed]
    both.say([_end(run.run_id, run.incarnation, "ok") for run in placed[:-1]])
    return both


def test_a_fan_out_is_a_few_facts() -> None:
    rows = fan_out().rows
    batches = [row for row in rows if isinstance(row, BatchRow)]
    assert [row.kind for row in batches] == ["RunsRequested", "AttemptsStarted", "AttemptsStarted", "RunsSucceeded"]
    assert sum(row.facts for row in batches) == 20 + 16 + 17
    assert len(rows) - len(batches) == 2, "two more are placed one by one, and two wait for hosts that are coming"


def test_a_fan_out_is_started_by_one_command_for_each_host() -> None:
    both = fan_out(1)
    both.say([request(f"s{number:02}") for number in range(20)])
    both.seat()
    started = [
        each for each in outstanding(both.view, list(both.view.runs), both.now_ms) if isinstance(each, StartBatch)
    ]
    assert sorted((each.host_id, len(each.run_ids)) for each in started) == [("h1", 9), ("h2", 9)]


def test_a_child_that_has_mail_is_started_before_that() -> None:
    """Mail opens no life: what reaches a host before the command to start the child is lost until it is sent again."""
    both = fan_out(1)
    both.say([request(f"s{number}") for number in range(9)])
    both.seat()
    first, *others = [run for run in both.view.runs.values() if run.host_id == "h1"]
    both.view.post(replace(others[0], options={"on_finish": "on_done"}, parent=first.child), Slot.FINISH, None, NOW_MS)
    effects = list(outstanding(both.view, [*both.view.runs, first.child], both.now_ms))
    kinds = [type(each).__name__ for each in effects]
    assert kinds.index("StartAttempt") < kinds.index("DeliverMail") < kinds.index("StartBatch")


@pytest.mark.parametrize(
    "odd", [{"body": b"x" * 9}, {"limit": 2}, {"start_hook": True}, {"order": 1}, {"parent": OTHER}]
)
def test_what_is_odd_among_requests_goes_one_by_one(odd: Any) -> None:
    both = Both()
    both.say([request(f"r{number}", **(odd if number == 4 else {})) for number in range(9)])
    kinds = [(row.kind, row.facts if isinstance(row, BatchRow) else 1) for row in both.rows]
    assert kinds == [("RunsRequested", 4), ("RunRequested", 1), ("RunsRequested", 4)]


@pytest.mark.parametrize("odd", [{"limit": 2}, {"on_limit": "reject"}, {"start_hook": True}])
def test_requests_with_a_limit_or_a_hook_are_no_batch(odd: Any) -> None:
    both = Both()
    both.say([request(f"r{number}", **odd) for number in range(6)])
    assert [row.kind for row in both.rows] == ["RunRequested"] * 6


def test_mail_about_a_batch_is_in_the_order_of_its_members() -> None:
    both = Both()
    both.say([request(f"r{number}", wait=False) for number in range(12)])
    both.seat()
    placed = [run for run in both.view.runs.values() if run.is_placed]
    both.say([_end(run.run_id, run.incarnation, "ok") for run in placed[::-1]])
    mails = list(both.view.mail.values())
    assert [mail.run_id for mail in mails] == [run.run_id for run in placed[::-1]]
    assert [mail.seq for mail in mails] == [run.last_seq for run in placed[::-1]]


def test_a_request_that_is_repeated_makes_its_batch_go_one_by_one() -> None:
    both = Both()
    both.say([request("r3")])
    both.say([request(f"r{number}") for number in range(6)])
    assert [row.kind for row in both.rows] == ["RunRequested"] * 6


def test_more_than_may_wait_are_refused_one_by_one() -> None:
    both = Both()
    both.say([request(f"r{number}") for number in range(40)])
    assert len(both.rows) == LIMITS.waiting_max


@pytest.mark.parametrize("odd", ["error", "large", "stays", "stale", "stored"])
def test_what_is_odd_among_ends_goes_one_by_one(odd: str) -> None:
    both = fan_out(1)
    ids = [f"s{number}" for number in range(12)]
    both.say([request(each) for each in ids])
    both.seat()
    runs = [both.view.runs[each] for each in ids[:9]]
    seen = len(both.rows)
    both.say([_end(run.run_id, run.incarnation, odd if run.run_id == "s4" else "ok") for run in runs])
    kinds = [row.kind for row in both.rows[seen:]]
    assert (kinds[0], kinds[-1]) == ("RunsSucceeded", "RunsSucceeded")
    assert kinds.count("RunsSucceeded") == 2
    assert len(kinds) == (2 if odd == "stale" else 3)


def test_an_end_that_is_told_twice_counts_once() -> None:
    both = fan_out(1)
    both.say([request(f"s{number}") for number in range(12)])
    both.seat()
    placed = [run for run in both.view.runs.values() if run.is_placed][:8]
    said = [_end(run.run_id, run.incarnation, "ok") for run in placed]
    both.say([*said, *(each._replace(summary="later") for each in said)])
    assert all(run.summary == run.run_id for run in placed)
    assert sum(row.kind == "RunSucceeded" for row in expand_rows(both.rows)) == 8


def test_a_batch_with_a_gap_before_it_is_refused() -> None:
    batch = next(row for row in fan_out().rows if isinstance(row, BatchRow))
    assert seal(GENESIS, [batch], []).after.seq == batch.facts
    for rows in ([batch._replace(seq=2)], [batch, batch]):
        with pytest.raises(AssertionError, match="has the numbers"):
            seal(GENESIS, rows, [])


def test_a_batch_that_cannot_be_read_is_damage() -> None:
    for row in (BatchRow(1, NOW_MS, 2, "RunsRequested", b"\x90"), BatchRow(1, NOW_MS, 2, "RunsVanished", b"\x90")):
        with pytest.raises(LedgerDamaged, match="cannot be read"):
            expand_rows([row])
