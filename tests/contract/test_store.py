"""What every store does: the same story is told to the one in memory and to the one on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure.ledger.errors import LedgerError
from perdure.ledger.maintenance.bucket_restoration import copy_ledger, seed_bucket
from perdure.ledger.store.bucket import Bucket
from perdure.ledger.store.bucket_past import PastStore
from perdure.ledger.store.bucket_store import BucketStore
from perdure.ledger.store.duckdb_store import DuckDBStore
from perdure.ledger.store.memory_store import MemoryStore
from perdure.ledger.store.store import Boot, FactRow, First, Payload, Record, Row, Store, Wanted
from tests import named_bucket


class Following(DuckDBStore):
    """Has DuckDB catch up with every other commit, so that what is read is partly there and partly in the backlog."""

    commits = 0

    def append(self, rows: Sequence[Row], payloads: list[Payload]) -> None:
        super().append(rows, payloads)
        self.commits += 1
        if self.commits % 2:
            self.follow()


class Wandering(BucketStore):
    """Announces a snapshot whenever it can, and loses its cache whenever it is closed."""

    root_s = 0

    def close(self) -> None:
        super().close()
        rmtree(self.path, ignore_errors=True)


class Restored(BucketStore):
    """Goes on in another bucket whenever it is closed."""

    root_s = keep_s = 0
    goes_on = True

    def close(self) -> None:
        is_open = self.goes_on and self._con is not None
        super().close()
        if not is_open:
            return
        with TemporaryDirectory() as place, closing(PastStore(Path(place) / "past", self._bucket)) as past:
            past.boot()
            past.settle()
            copy_ledger(past.path, Path(place) / "ledger")
            self._bucket = Bucket("memory:///")
            seed_bucket(self._bucket, Path(place) / "ledger", [])


STORES: dict[str, Callable[[Path], Store]] = {
    "memory": lambda _: MemoryStore(),
    "duckdb": partial(DuckDBStore, fsync=False),
    "following": partial(Following, fsync=False),
    "bucket": lambda path: Wandering(path, Bucket("memory:///")),
    "restored": lambda path: Restored(path, Bucket("memory:///")),
}


@pytest.fixture(params=[*STORES, *(["named bucket"] if named_bucket.NAMED else [])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param in STORES:
        made = STORES[request.param](tmp_path / "ledger")
        made.boot()
        yield made
        if isinstance(made, Restored):
            made.goes_on = False
        made.close()
        return
    with named_bucket.fresh_prefix() as url, closing(Wandering(tmp_path / "ledger", Bucket(url))) as in_bucket:
        in_bucket.boot()
        yield in_bucket


def fact(seq: int, subject: str = "a", frame: int | None = None, body: bytes = b"body") -> FactRow:
    return FactRow(seq, 1_000 + seq, subject, frame, "Happened", body)


def facts(first: int, last: int, subject: str = "a") -> list[FactRow]:
    return [fact(seq, subject) for seq in range(first, last + 1)]


def run(
    key: str, first_seq: int, last_seq: int, *, live: bool = True, status: str = "running", parent: str = ""
) -> Record:
    columns = (status, "m:T", parent, 1_000 + first_seq, None, first_seq, last_seq)
    return Record("runs", key, live, columns, b"run " + key.encode())


def mail(key: str, recipient: str, run_id: str, *, live: bool = True) -> Record:
    return Record("mail", key, live, (recipient, "pending", run_id), b"mail")


def agent(key: str, *, live: bool = True) -> Record:
    return Record("agents", key, live, ("host-1", 3), b"agent")


def reboot(store: Store) -> Boot:
    store.close()
    return store.boot()


def keys(boot: Boot) -> list[str]:
    return [record.key for record in boot.records]


# ------------------------------------------------------------------ facts


def test_a_new_store_is_empty(store: Store) -> None:
    assert reboot(store) == Boot(None, [], [], [])


def test_what_was_appended_is_there_after_a_restart(store: Store) -> None:
    rows = [
        FactRow(1, 5, "", None, "SupervisorStarted", b""),
        FactRow(2, -6, "größe ✓ 🙂", 0, "RunRequested", bytes(range(256))),
        FactRow(3, 2**40, "größe ✓ 🙂", 1, "Progress", b"\x00"),
    ]
    store.append(rows[:1], [])
    store.append(rows[1:], [])
    assert reboot(store) == Boot(None, [], rows, [])


def test_an_empty_commit_is_nothing(store: Store) -> None:
    store.append([], [])
    assert reboot(store).rows == []


def test_numbers_that_do_not_continue_are_our_bug_and_leave_nothing_behind(store: Store) -> None:
    for wrong in ([2], [0], [1, 3], [1, 1], [2, 1]):
        with pytest.raises(AssertionError):
            store.append([fact(seq) for seq in wrong], [Payload("a", "input", b"x")])
    assert reboot(store).rows == []
    assert store.payload("a", "input") is None


@pytest.mark.parametrize("wrong", [{"at_ms": 1.5}, {"at_ms": 2**63}, {"frame": True}, {"frame": "0"}])
def test_a_fact_that_no_column_can_hold_is_our_bug_and_leaves_nothing_behind(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    store = DuckDBStore(tmp_path / "ledger", fsync=False)
    store.boot()
    with pytest.raises(AssertionError):
        store.append([fact(1)._replace(**wrong)], [])
    assert reboot(store).rows == []
    store.close()


def test_a_payload_needs_a_fact_in_its_commit(store: Store) -> None:
    with pytest.raises(AssertionError):
        store.append([], [Payload("a", "input", b"x")])


@pytest.mark.thorough
def test_ten_thousand_facts_in_one_commit_and_ten_thousand_more_in_the_next(store: Store) -> None:
    rows = [fact(seq, f"run-{seq % 100}", seq // 100) for seq in range(1, 20_001)]
    store.append(rows[:10_000], [])
    store.append(rows[10_000:], [])
    assert reboot(store).rows == rows
    assert [row.seq for row in store.facts("run-7")] == list(range(7, 20_001, 100))


def test_a_question_is_never_in_the_way_of_the_next_commit(store: Store) -> None:
    store.append([fact(1)], [Payload("a", "input", b"in")])
    assert store.payload("a", "input") == b"in"
    store.append(facts(2, 9), [])
    assert [row.seq for row in store.facts("a", limit=3)] == [1, 2, 3]
    store.append(facts(10, 19), [Payload("a", "output", b"out")])
    assert len(reboot(store).rows) == 19


def test_facts_are_told_by_subject_and_in_order(store: Store) -> None:
    store.append([fact(1, "a"), fact(2, "b"), fact(3, "a")], [])
    store.append([fact(4, "b"), fact(5, "a")], [])
    assert [row.seq for row in store.facts("a")] == [1, 3, 5]
    assert [row.seq for row in store.facts("a", limit=2)] == [1, 3]
    assert store.facts("nobody") == []


def test_events_are_facts_with_a_frame_after_a_given_one(store: Store) -> None:
    store.append([fact(1, "a", 0), fact(2, "a"), fact(3, "a", 1), fact(4, "b", 0), fact(5, "a", 2)], [])
    assert [row.frame for row in store.facts("a", frames_only=True)] == [0, 1, 2]
    assert [row.frame for row in store.facts("a", 0, frames_only=True)] == [1, 2]
    assert [row.frame for row in store.facts("a", 0, frames_only=True, limit=1)] == [1]
    assert [row.seq for row in store.facts("a", 5)] == [1, 2, 3, 5]


def test_events_of_many_runs_are_told_together(store: Store) -> None:
    store.append([fact(1, "a", 0), fact(2, "b", 0), fact(3, "agent"), fact(4, "a", 1), fact(5, "c", 0)], [])
    store.checkpoint(b"m", 5, [run("a", 1, 4), run("b", 2, 2)], [])
    store.append([fact(6, "b", 1), fact(7, "a", 2), fact(8, "b")], [])
    assert [row.seq for row in store.frames(["b", "a", "a", "agent", "nobody"], 1, 8)] == [1, 2, 4, 6, 7]
    assert [row.seq for row in store.frames(["a", "b"], 2, 6)] == [2, 4, 6]
    assert store.frames([], 1, 8) == []


def test_facts_of_a_run_are_found_before_and_after_the_snapshot_that_knows_it(store: Store) -> None:
    store.append([fact(1, "old", 0), fact(2, "run", 0), fact(3, "run", 1), fact(4, "agent")], [])
    store.checkpoint(b"m", 4, [run("old", 1, 1), run("run", 2, 3)], [])
    store.append([fact(5, "run", 2), fact(6, "new", 0), fact(7, "agent"), fact(8, "new", 1)], [])
    expected = {"old": [1], "run": [2, 3, 5], "new": [6, 8], "agent": [4, 7]}
    assert {key: [row.seq for row in store.facts(key)] for key in expected} == expected
    assert [row.frame for row in store.facts("new", 0, frames_only=True)] == [1]


# ------------------------------------------------------------------ payloads


def test_payloads_are_stored_with_their_facts(store: Store) -> None:
    store.append([fact(1, "a"), fact(2, "b")], [Payload("a", "input", b"x" * 10_000), Payload("b", "input", b"")])
    store.append([fact(3, "a")], [Payload("a", "output", b"y")])
    for _ in range(2):
        assert store.payload("a", "input") == b"x" * 10_000
        assert store.payload("a", "output") == b"y"
        assert store.payload("b", "input") == b""
        assert store.payload("b", "output") is None
        reboot(store)
    store.checkpoint(b"m", 3, [run("a", 1, 3)], [])
    assert store.payload("a", "output") == b"y"


# ------------------------------------------------------------------ snapshot


def test_a_snapshot_covers_the_facts_up_to_its_number(store: Store) -> None:
    store.append(facts(1, 5), [])
    store.checkpoint(b"first", 3, [run("a", 1, 3)], [])
    assert reboot(store) == Boot(b"first", [run("a", 1, 3)], facts(4, 5), [])
    store.append(facts(6, 7), [])
    store.checkpoint(b"second", 7, [run("a", 1, 7)], [])
    assert reboot(store) == Boot(b"second", [run("a", 1, 7)], [], [])
    assert len(store.facts("a")) == 7


@pytest.mark.parametrize("upto_seq", [2, 6])
def test_a_snapshot_neither_goes_back_nor_covers_what_is_not_durable(store: Store, upto_seq: int) -> None:
    store.append(facts(1, 5), [])
    store.checkpoint(b"m", 3, [], [])
    with pytest.raises(AssertionError):
        store.checkpoint(b"n", upto_seq, [run("a", 1, 5)], [])
    assert reboot(store).meta == b"m"


def test_a_boot_reads_live_records_those_that_later_facts_touch_and_the_runs_of_live_mail(store: Store) -> None:
    subjects = ["live", "dead", "touched", "spoken-of", "silent"]
    store.append([fact(seq, key) for seq, key in enumerate(subjects, 1)], [])
    runs = [run(key, seq, seq, live=key == "live") for seq, key in enumerate(subjects, 1)]
    mails = [mail("spoken-of!finish", "p", "spoken-of"), mail("silent!finish", "p", "silent", live=False)]
    agents = [agent("host-less", live=False), agent("at-work"), agent("woken", live=False)]
    store.checkpoint(b"m", 5, [*runs, *mails, *agents], [])
    store.append([fact(6, "touched"), fact(7, "woken")], [])
    assert keys(reboot(store)) == ["live", "touched", "spoken-of", "at-work", "woken", "spoken-of!finish"]


def test_runs_are_booted_in_the_order_of_their_requests(store: Store) -> None:
    store.append([fact(1, "z"), fact(2, "y"), fact(3, "x")], [])
    store.checkpoint(b"m", 3, [run("x", 3, 3), run("z", 1, 1), run("y", 2, 2)], [])
    store.checkpoint(b"m", 3, [run("z", 1, 1)], [])
    assert keys(reboot(store)) == ["z", "y", "x"]


def test_records_are_replaced_and_found_by_key(store: Store) -> None:
    store.append(facts(1, 2), [])
    store.checkpoint(b"m", 1, [run("a", 1, 1), run("b", 1, 1), mail("a", "p", "a")], [])
    store.checkpoint(b"m", 2, [run("a", 1, 2, live=False, status="completed"), agent("a")], [])
    assert store.records("runs", ["nobody", "b", "a", "b"]) == [
        run("b", 1, 1),
        run("a", 1, 2, live=False, status="completed"),
    ]
    assert store.records("mail", ["a"]) == [mail("a", "p", "a")]
    assert store.records("agents", ["a"]) == [agent("a")]
    assert store.records("agents", []) == []


def test_the_last_of_two_records_of_one_key_stays(store: Store) -> None:
    store.append(facts(1, 1), [])
    store.checkpoint(b"m", 1, [run("a", 1, 1, status="starting"), run("a", 1, 1, status="running")], [])
    assert store.records("runs", ["a"]) == [run("a", 1, 1, status="running")]


def test_a_dead_record_without_a_body_is_a_deletion(store: Store) -> None:
    store.append(facts(1, 2), [])
    store.checkpoint(b"m", 1, [mail("m", "p", "a")], [])
    store.checkpoint(b"m", 2, [Record("mail", "m", live=False, columns=(None, None, None), body=b"")], [])
    assert store.records("mail", ["m"]) == []


def test_ended_runs_are_listed_by_age_and_what_is_asked(store: Store) -> None:
    store.append([fact(seq, f"r{seq}") for seq in range(1, 7)], [])
    ended = [
        run(
            f"r{seq}",
            seq,
            seq,
            live=False,
            status="error" if seq % 2 else "completed",
            parent="p" if seq < 4 else "p>q",
        )
        for seq in (5, 3, 1, 2, 4)
    ]
    store.checkpoint(b"m", 6, [*ended, run("r6", 6, 6)], [])

    def listed(limit: int = 9, first: First = "oldest", **wanted: Any) -> str:
        return " ".join(record.key for record in store.wanted_runs(Wanted(**wanted), limit, first))

    assert listed() == "r1 r2 r3 r4 r5"
    assert listed(limit=2) == "r1 r2"
    assert listed(parent="p") == "r1 r2 r3"
    assert listed(statuses=["error"]) == "r1 r3 r5"
    assert listed(statuses=[]) == ""
    assert listed(until_ms=1_003) == "r1 r2"
    assert [record.key for record in store.family_runs("p", 9)] == ["r1", "r2", "r3", "r4", "r5"]
    assert [record.key for record in store.family_runs("p>q", 9)] == ["r4", "r5"], "those of all that descend from it"
    assert listed(parent="p>q", statuses=["completed", "aborted"], until_ms=2_000) == "r4"
    assert listed(first="newest") == "r5 r4 r3 r2 r1"
    assert listed(statuses=["error"], limit=2, first="newest") == "r5 r3"


def test_runs_are_found_by_pages_from_the_newest_on(store: Store) -> None:
    store.append([fact(seq, f"R{seq}") for seq in range(1, 8)], [])
    ended = [
        run(f"R{seq}", seq, seq, live=False, status="error" if seq % 2 else "completed", parent=f"p{seq // 4}")
        for seq in (5, 3, 1, 6, 2, 4)
    ]
    store.checkpoint(b"m", 7, [*ended, run("R7", 7, 7)], [])

    def page(limit: int = 9, **wanted: Any) -> str:
        return " ".join(record.key for record in store.wanted_runs(Wanted(**wanted), limit))

    assert page() == "R6 R5 R4 R3 R2 R1"
    assert page(2) == "R6 R5"
    assert page(2, before=5) == "R4 R3"
    assert page(before=1) == ""
    assert page(parent="p0") == "R3 R2 R1"
    assert page(statuses=["error"], before=5) == "R3 R1"
    assert page(statuses=[]) == ""
    assert page(words="r4") == page(words="R4") == "R4"
    assert page(words="P1") == "R6 R5 R4", "a parent is found by its name, too"
    assert page(words="%") == ""
    assert page(agent_type="nobody:Nothing") == ""


def test_a_boot_counts_the_runs_that_are_not_live(store: Store) -> None:
    store.append([fact(seq, f"r{seq}") for seq in range(1, 5)], [])
    ended = [run(f"r{seq}", seq, seq, live=False, status="error" if seq % 2 else "completed") for seq in (1, 2, 3)]
    store.checkpoint(b"m", 4, [*ended, run("r4", 4, 4)], [])
    assert reboot(store).ended == {"error": 2, "completed": 1}
    store.checkpoint(b"m", 4, [], ["r1"])
    assert reboot(store).ended == {"error": 1, "completed": 1}
    store.checkpoint(b"m", 4, [run("r2", 2, 2), run("r3", 3, 3, live=False, status="aborted")], [])
    assert reboot(store).ended == {"aborted": 1}
    store.checkpoint(b"m", 4, [run("r2", 2, 2, live=False, status="completed")], [])
    assert reboot(store).ended == {"aborted": 1, "completed": 1}


# ------------------------------------------------------------------ forgetting


def test_nothing_of_a_forgotten_run_comes_back(store: Store) -> None:
    store.append(
        [fact(1, "a", 0), fact(2, "b", 0), fact(3, "a", 1)], [Payload("a", "input", b"A"), Payload("b", "input", b"B")]
    )
    records = [run("a", 1, 3), run("b", 2, 2), mail("a!finish", "p", "a"), mail("b!finish", "p", "b"), agent("a")]
    store.checkpoint(b"m", 3, records, [])
    store.append([fact(4, "a"), fact(5, "b", 1)], [])
    store.checkpoint(b"m", 5, [run("b", 2, 5)], ["a", "never-was"])
    for _ in range(2):
        assert store.facts("a") == []
        assert store.payload("a", "input") is None
        assert [store.records(table, ["a", "a!finish"]) for table in ("runs", "mail", "agents")] == [[], [], []]
        assert [row.seq for row in store.facts("b")] == [2, 5]
        assert store.payload("b", "input") == b"B"
        assert keys(reboot(store)) == ["b", "b!finish"]


def test_a_run_id_that_is_used_again_after_it_was_forgotten_is_another_run(store: Store) -> None:
    store.append([fact(1, "a", 0), fact(2, "a", 1)], [Payload("a", "input", b"first")])
    store.append([fact(3, "a", 0)], [Payload("a", "input", b"second")])
    store.checkpoint(b"m", 3, [run("a", 3, 3)], ["a"])
    assert [row.seq for row in store.facts("a")] == [3]
    assert store.payload("a", "input") == b"second"
    assert store.records("runs", ["a"]) == [run("a", 3, 3)]


def test_a_run_that_was_asked_for_again_after_the_snapshot_was_taken_stays(store: Store) -> None:
    store.append([fact(1, "a", 0), fact(2, "a", 1)], [])
    store.append([fact(3, "a", 0)], [Payload("a", "input", b"second")])
    store.checkpoint(b"m", 2, [], ["a"])
    assert [row.seq for row in reboot(store).rows] == [3]
    assert [row.seq for row in store.facts("a")] == [3]
    assert store.payload("a", "input") == b"second"


# ------------------------------------------------------------------ life


def test_a_closed_store_refuses_until_it_is_booted_again(store: Store) -> None:
    store.append(facts(1, 1), [])
    store.close()
    store.close()
    for use in (
        lambda: store.append(facts(2, 2), []),
        lambda: store.checkpoint(b"m", 1, [], []),
        lambda: store.facts("a"),
        lambda: store.records("runs", []),
        lambda: store.known_among([]),
        lambda: store.payload("a", "input"),
        lambda: store.wanted_runs(Wanted(), 1),
    ):
        with pytest.raises(LedgerError):
            use()
    assert store.boot().rows == facts(1, 1)
    store.append(facts(2, 2), [])


def test_a_memory_store_answers_no_sql() -> None:
    with pytest.raises(LedgerError):
        MemoryStore().rows("SELECT 1", [])


names = st.sampled_from(["a", "b", "c", "d"])
steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(names, min_size=1, max_size=5), st.sets(names, max_size=2)),
        st.tuples(st.just("checkpoint"), st.sets(names), st.sets(names, max_size=2)),
        st.just(("follow", frozenset(), frozenset())),
        st.just(("boot", frozenset(), frozenset())),
    ),
    max_size=10,
)


@pytest.mark.thorough
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(story=steps)
def test_both_stores_tell_the_same_story(
    tmp_path_factory: pytest.TempPathFactory, story: list[tuple[str, ...]]
) -> None:
    stores: list[Store] = [MemoryStore(), DuckDBStore(tmp_path_factory.mktemp("twin"), fsync=False)]
    assert stores[0].boot() == stores[1].boot()
    seq, changed = 0, set[str]()
    for verb, some, others in story:
        if verb == "append":
            rows = [fact(number, subject, number) for number, subject in enumerate(some, seq + 1)]
            for store in stores:
                store.append(rows, [Payload(key, "input", key.encode() * seq) for key in sorted(others)])
            seq += len(rows)
            changed |= set(some)
        elif verb == "checkpoint":
            records = [run(key, 1, seq, live=key < "c") for key in sorted((changed | set(some)) - set(others))]
            changed.clear()
            for store in stores:
                store.checkpoint(b"%d" % seq, seq, records, sorted(others))
        elif verb == "follow":
            stores[1].follow()
        else:
            for store in stores:
                store.close()
            assert stores[0].boot() == stores[1].boot()
        for key in "abcd":
            assert stores[0].facts(key) == stores[1].facts(key)
            assert stores[0].payload(key, "input") == stores[1].payload(key, "input")
            assert stores[0].records("runs", [key]) == stores[1].records("runs", [key])
        assert stores[0].frames(["a", "c"], seq // 2, seq) == stores[1].frames(["a", "c"], seq // 2, seq)
        assert set(stores[0].known_among("abcd")) <= set(stores[1].known_among("abcd"))
    for store in stores:
        store.close()


def test_runs_with_a_hard_end_are_found_by_the_time_of_their_end(store: Store) -> None:
    def ended(key: str, at_ms: int, status: str = "completed", *, live: bool = False, parent: str = "p") -> Record:
        return Record("runs", key, live, (status, "m:T", parent, 1, at_ms, 1, 1), b"run")

    store.append(facts(1, 1), [])
    runs = [ended("b", 20), ended("a", 20, "error", parent="q@m:T>k@m:T"), ended("c", 10, "aborted", parent="q@m:T")]
    others = [ended("d", 5, "interrupted"), ended("e", 5, live=True), run("f", 1, 1)]
    store.checkpoint(b"m", 1, [*runs, *others], [])

    def found(before_ms: float = float("inf"), after: tuple[int, str] = (-1, ""), limit: int = 9) -> str:
        return "".join(record.key for record in store.settled_before(before_ms, after, limit))

    assert found() == "cab"
    assert found(before_ms=20) == "c"
    assert found(after=(20, "a")) == "b"
    assert found(after=(10, "c"), limit=1) == "a"
    assert sorted(record.key for record in store.runs_of(["q@m:T"], 9)) == ["a", "c"]
    assert store.runs_of(["m:T"], 9) == []


def test_agents_are_told_by_pages(store: Store) -> None:
    store.append(facts(1, 1), [])
    store.checkpoint(b"m", 1, [agent(key) for key in "cab"], [])
    assert [record.key for record in store.agents("", 2)] == ["a", "b"]
    assert [record.key for record in store.agents("b", 2)] == ["c"]
