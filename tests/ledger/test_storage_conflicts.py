"""Transactions of one agent that are open at the same time: the later commit never undoes or overlooks the earlier one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import duckdb
import pytest

from perdure.ledger.errors import StorageConflict, StorageError
from perdure.ledger.storage.agent_storage import IN_VAIN_MAX
from perdure.ledger.storage.agent_storages import AgentStorages, MemoryDisk, Storage, Transaction


@pytest.fixture
def storage() -> Iterator[Storage]:
    disk = MemoryDisk()
    made = AgentStorages(disk).open("census@m:T", 1)
    made.sql("CREATE TABLE t (i INTEGER PRIMARY KEY, v INTEGER); CREATE TABLE other (i INTEGER, v INTEGER)")
    made.sql("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3); INSERT INTO other VALUES (1, 1)")
    made.state.update(a=1, b=1)
    yield made
    disk.close()


def race(storage: Storage, first: Callable[[Transaction], object], second: Callable[[Transaction], object]) -> None:
    """Both begin and look, the first commits, then the second acts and commits."""
    one, two = storage.begin(), storage.begin()
    for each in (one, two):
        each.sql("SELECT * FROM t")
    try:
        with one.active():
            first(one)
        one.commit()
        with two.active():
            second(two)
        two.commit()
    finally:
        two.rollback()


def sql(text: str) -> Callable[[Transaction], object]:
    return lambda transaction: transaction.sql(text)


COLLISIONS = {
    "update, update": ("UPDATE t SET v = 9 WHERE i = 2", "UPDATE t SET v = 8 WHERE i = 2"),
    "delete, delete": ("DELETE FROM t WHERE i = 2", "DELETE FROM t WHERE i = 2"),
    "delete, update": ("DELETE FROM t WHERE i = 2", "UPDATE t SET v = 8 WHERE i = 2"),
    "update, delete": ("UPDATE t SET v = 9 WHERE i = 2", 'DELETE FROM main."t" WHERE v = 2'),
    "truncate, update": ("TRUNCATE t", "UPDATE t SET v = 8 WHERE i = 2"),
    "merge, delete": (
        "MERGE INTO t USING other o ON t.i = o.i WHEN MATCHED THEN UPDATE SET v = 7",
        "DELETE FROM t WHERE v = 1",
    ),
    "upsert, delete": ("INSERT OR REPLACE INTO t VALUES (2, 9)", "DELETE FROM t WHERE i = 2"),
    "delete, upsert": ("DELETE FROM t WHERE i = 2", "INSERT INTO t VALUES (2, 9) ON CONFLICT DO UPDATE SET v = 9"),
    "insert, insert": ("INSERT INTO t VALUES (5, 5)", "INSERT INTO t VALUES (5, 6)"),
    "insert, upsert": ("INSERT INTO t VALUES (5, 5)", "INSERT INTO t VALUES (5, 6) ON CONFLICT DO NOTHING"),
    "alter, insert": ("ALTER TABLE t ADD COLUMN w INTEGER", "INSERT INTO t (i, v) VALUES (5, 6)"),
    "create, create": ("CREATE TABLE n (i INTEGER)", "CREATE TABLE n (j INTEGER)"),
    "update, delete in a with": (
        "UPDATE t SET v = 9 WHERE i = 2",
        "WITH gone AS (DELETE FROM t WHERE v = 2 RETURNING i) SELECT * FROM gone",
    ),
}


@pytest.mark.parametrize(("first", "second"), COLLISIONS.values(), ids=COLLISIONS)
def test_the_later_of_two_writes_to_the_same_rows_is_a_conflict_and_leaves_nothing(
    storage: Storage, first: str, second: str
) -> None:
    def also_state(transaction: Transaction) -> None:
        storage.state["second"] = True
        transaction.sql(second)

    with pytest.raises(StorageConflict):
        race(storage, sql(first), also_state)
    assert "second" not in storage.state
    storage.sql("SELECT 1")


def test_uncommitted_inserts_of_the_same_key_collide_at_the_later_commit(storage: Storage) -> None:
    one, two = storage.begin(), storage.begin()
    one.sql("INSERT INTO t VALUES (5, 5)")
    two.sql("INSERT INTO t VALUES (5, 6)")
    told: list[int] = []
    one.then(lambda: told.append(1))
    two.then(lambda: told.append(2))
    one.commit()
    with pytest.raises(StorageConflict):
        two.commit()
    assert storage.sql("SELECT v FROM t WHERE i = 5") == [(5,)]
    assert told == [1], "what follows a commit never follows a conflict"


def test_a_conflict_is_solved_by_doing_it_again(storage: Storage) -> None:
    again = sql("UPDATE t SET v = v * 10 WHERE i = 2")
    with pytest.raises(StorageConflict):
        race(storage, sql("UPDATE t SET v = v + 1 WHERE i = 2"), again)
    with storage.transaction() as transaction:
        again(transaction)
    assert storage.sql("SELECT v FROM t WHERE i = 2") == [(30,)]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("UPDATE t SET v = 9 WHERE i = 2", "DELETE FROM other"),
        ("DELETE FROM t WHERE i = 2", "UPDATE other SET v = 2"),
        ("INSERT INTO t VALUES (5, 5)", "INSERT INTO t VALUES (6, 6)"),
        ("UPDATE t SET v = 9 WHERE i = 2", "UPDATE t SET v = 9 WHERE i = 3"),
        ("DELETE FROM t WHERE i = 2", "DELETE FROM t WHERE i = 3"),
        ("DELETE FROM t WHERE i = 2", "SELECT * FROM t"),
    ],
)
def test_writes_to_other_rows_do_not_disturb_each_other(storage: Storage, first: str, second: str) -> None:
    race(storage, sql(first), sql(second))


def test_a_duplicate_key_that_nobody_else_wrote_is_the_authors_own_error(storage: Storage) -> None:
    with pytest.raises(duckdb.ConstraintException):
        storage.sql("INSERT INTO t VALUES (1, 1)")


def test_a_conflict_that_was_caught_still_dooms_the_transaction_as_a_conflict(storage: Storage) -> None:
    def stubborn(transaction: Transaction) -> None:
        with pytest.raises(StorageConflict):
            transaction.sql("UPDATE t SET v = 8 WHERE i = 2")

    with pytest.raises(StorageConflict):
        race(storage, sql("UPDATE t SET v = 9 WHERE i = 2"), stubborn)


# ------------------------------------------------------------------ state


def test_two_that_read_the_same_key_and_write_it_cannot_both_win(storage: Storage) -> None:
    def increment(_: Transaction) -> None:
        storage.state["a"] += 1

    one, two = storage.begin(), storage.begin()
    for each in (one, two):
        with each.active():
            increment(each)
    one.commit()
    with pytest.raises(StorageConflict):
        two.commit()
    with storage.transaction() as transaction:
        increment(transaction)
    assert storage.state["a"] == 3


WRITES: dict[str, tuple[Callable[[Storage], object], dict[str, object]]] = {
    "another key": (lambda each: each.state.update(b=each.state["a"]), {"a": 5}),
    "rows": (lambda each: each.sql("INSERT INTO other VALUES ($1, 0)", [each.state["a"]]), {"a": 5}),
    "the key that was missing": (lambda each: each.state.setdefault("c", "mine"), {"c": "theirs"}),
    "what all keys tell": (lambda each: each.state.update(count=len(each.state)), {"new": 1}),
}


@pytest.mark.parametrize("name", WRITES)
def test_what_was_read_counts_whatever_is_written(storage: Storage, name: str) -> None:
    write, others = WRITES[name]
    two = storage.begin()
    with two.active():
        write(storage)
    before = dict(storage.state)
    storage.state.update(others)
    with pytest.raises(StorageConflict):
        two.commit()
    assert storage.state == before | others


def test_a_key_that_was_deleted_and_made_again_is_not_the_one_that_was_read(storage: Storage) -> None:
    two = storage.begin()
    with two.active():
        storage.state["b"] = storage.state["a"]
    del storage.state["a"]
    with pytest.raises(StorageConflict):
        two.commit()
    three = storage.begin()
    with three.active():
        storage.state["b"] = storage.state.get("a", "none")
    storage.state["a"] = 1
    with pytest.raises(StorageConflict):
        three.commit()


def test_state_and_rows_are_of_the_same_moment(storage: Storage) -> None:
    two = storage.begin()
    with two.active():
        ((old,),) = storage.sql("SELECT v FROM t WHERE i = 1")
        with_both(storage, 7)
        storage.state["copy"] = [old, storage.state["a"]]
    with pytest.raises(StorageConflict):
        two.commit()


def with_both(storage: Storage, value: int) -> None:
    one = storage.begin()
    with one.active():
        storage.sql("UPDATE t SET v = $1 WHERE i = 1", [value])
        storage.state["a"] = value
    one.commit()


def test_transactions_on_different_keys_both_win(storage: Storage) -> None:
    one, two = storage.begin(), storage.begin()
    with one.active():
        storage.state["a"] += 1
    with two.active():
        storage.state["b"] += 2
    one.commit()
    two.commit()
    assert dict(storage.state) == {"a": 2, "b": 3}


def test_who_only_read_is_never_refused(storage: Storage) -> None:
    two = storage.begin()
    with two.active():
        assert storage.state["a"] == 1
    storage.state["a"] = 2
    two.commit()


def test_writes_in_no_transaction_are_never_overtaken_whichever_threads_they_come_from(storage: Storage) -> None:
    def write(number: int) -> None:
        storage.sql("UPDATE t SET v = v + 1 WHERE i = 2")
        storage.state["a"] = number
        storage.state.update(b=number, c=number)
        storage.state.setdefault("d", number)
        storage.state.pop("c", None)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(80)))
    assert storage.sql("SELECT v FROM t WHERE i = 2") == [(82,)]


def test_a_write_in_no_transaction_waits_for_no_open_one(storage: Storage) -> None:
    one = storage.begin()
    one.sql("UPDATE t SET v = 9 WHERE i = 2")
    with pytest.raises(StorageConflict):
        storage.sql("UPDATE t SET v = 8 WHERE i = 2")
    one.commit()
    storage.sql("UPDATE t SET v = 8 WHERE i = 2")


def test_what_an_open_transaction_is_in_the_way_of_is_tried_few_times(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries, once = list[int](), storage._run_alone  # noqa: SLF001
    monkeypatch.setattr(storage, "_run_alone", lambda *given: (tries.append(1), once(*given))[1])
    one = storage.begin()
    one.sql("UPDATE t SET v = 9 WHERE i = 2")
    with pytest.raises(StorageConflict):
        storage.sql("UPDATE t SET v = 8 WHERE i = 2")
    assert len(tries) == 1 + IN_VAIN_MAX
    one.rollback()


# ------------------------------------------------------------------ mail


def test_a_mail_that_two_transactions_handle_takes_effect_once(storage: Storage) -> None:
    one, two = storage.begin(), storage.begin()
    for number, each in enumerate((one, two)):
        each.record_inbox(["m"])
        each.sql("INSERT INTO other VALUES (7, $1)", [number])
    one.commit()
    with pytest.raises(StorageConflict):
        two.commit()
    assert storage.sql("SELECT v FROM other WHERE i = 7") == [(0,)]


def test_a_mail_that_was_handled_after_this_transaction_began_is_a_conflict_too(storage: Storage) -> None:
    two = storage.begin()
    two.sql("SELECT * FROM t")
    with storage.transaction() as one:
        one.record_inbox(["m"])
    two.record_inbox(["m"])
    two.add_outbox(b"x")
    with pytest.raises(StorageConflict):
        two.commit()
    assert storage.outbox() == []


def test_errors_name_the_agent(storage: Storage) -> None:
    with pytest.raises(StorageError, match="storage of census@m:T: another transaction was first") as conflict:
        race(storage, sql("DELETE FROM t"), sql("UPDATE t SET v = 0"))
    assert conflict.value.agent_id == "census@m:T"
