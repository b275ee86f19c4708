"""What an agent and its host can rely on while nothing dies: the same on a disk of files and on a simulated one."""

from __future__ import annotations

import asyncio
import contextvars
import operator
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.ledger.errors import BadRequest, StaleIncarnation, StorageError
from perdure.ledger.storage.agent_storages import AgentStorages, Disk, FileDisk, MemoryDisk, Storage
from tests.ledger.travelling_disk import TravellingDisk

AGENT = "census@scenarios.fan_out:Census"


@pytest.fixture(params=["files", "memory", "carried"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    made: Disk
    if request.param == "memory":
        made = MemoryDisk()
    else:
        made = {"files": FileDisk, "carried": TravellingDisk}[request.param](tmp_path / "storage")
    yield made
    made.close()


@pytest.fixture
def agent_storages(disk: Disk) -> Iterator[AgentStorages]:
    made = AgentStorages(disk)
    yield made
    made.close()


@pytest.fixture
def storage(agent_storages: AgentStorages) -> Storage:
    return agent_storages.open(AGENT, 1)


def reopened(disk: Disk, agent_storages: AgentStorages, incarnation: int = 1) -> Storage:
    """The same agent in another process."""
    agent_storages.close()
    return AgentStorages(disk).open(AGENT, incarnation)


# ------------------------------------------------------------------ existing


@pytest.mark.parametrize(
    "read",
    [
        lambda s: s.sql("SELECT 1"),
        lambda s: s.sql("SELECT 1; SELECT 2"),
        lambda s: s.sql("SELECT 'update, insert, delete'"),
        lambda s: s.sql("  -- nothing\n"),
        lambda s: s.state.get("a"),
        lambda s: dict(s.state),
        lambda s: s.state.pop("a", None),
        lambda s: s.state.update({}),
        lambda s: s.known_inbox(["m"]),
        lambda s: s.inbox(),
        lambda s: s.outbox(),
        lambda s: s.result("r"),
        lambda s: s.steps("r"),
        lambda s: s.forget_inbox(["m"]),
        lambda s: s.forget_outbox([1]),
        lambda s: s.checkpoint(),
        lambda s: s.close(),
    ],
)
def test_who_only_reads_has_no_storage(
    disk: Disk, agent_storages: AgentStorages, storage: Storage, read: Callable[[Storage], object]
) -> None:
    read(storage)
    assert not storage.exists
    assert not agent_storages.exists(AGENT)
    assert not isinstance(disk, FileDisk) or not disk.directory.exists()


def test_a_transaction_that_only_reads_creates_no_storage(agent_storages: AgentStorages, storage: Storage) -> None:
    with storage.transaction():
        assert storage.sql("SELECT 1 + 1") == [(2,)]
        assert storage.state.get("a") is None
    assert not agent_storages.exists(AGENT)


@pytest.mark.shows(sub_agents="B31 B33")
def test_the_first_write_creates_it(agent_storages: AgentStorages, storage: Storage) -> None:
    storage.state["a"] = 1
    assert storage.exists
    assert agent_storages.exists(AGENT)


def test_reading_a_table_that_does_not_exist_says_so_with_and_without_a_storage(storage: Storage) -> None:
    with pytest.raises(duckdb.CatalogException):
        storage.sql("SELECT * FROM nowhere")
    storage.state["a"] = 1
    with pytest.raises(duckdb.CatalogException):
        storage.sql("SELECT * FROM nowhere")


def test_what_was_written_is_there_in_the_next_life(
    disk: Disk, agent_storages: AgentStorages, storage: Storage
) -> None:
    storage.sql("CREATE TABLE t (i INTEGER PRIMARY KEY, s VARCHAR)")
    storage.sql("INSERT INTO t VALUES ($1, $2)", [1, "één"])
    storage.state["a"] = {"deep": [1, 2.5, b"x", None, True]}
    with storage.transaction() as transaction:
        transaction.save_result("r", b"result")
        transaction.save_step("r", "fetch", b"step")
        transaction.record_inbox(["m1", "m2"])
        transaction.add_outbox(b"out")
    again = reopened(disk, agent_storages, 2)
    assert again.sql("SELECT * FROM t") == [(1, "één")]
    assert dict(again.state) == {"a": {"deep": [1, 2.5, b"x", None, True]}}
    assert again.result("r") == b"result"
    assert again.steps("r") == {"fetch": b"step"}
    assert again.known_inbox(["m1", "m2", "m3"]) == {"m1", "m2"}
    assert [body for _, body in again.outbox()] == [b"out"]


def test_agents_share_a_process_but_no_names(agent_storages: AgentStorages, storage: Storage) -> None:
    other = agent_storages.open("other@m:T", 1)
    for each in (storage, other):
        each.sql("CREATE TABLE t AS SELECT $1 AS owner", [each.agent_id])
        each.state["owner"] = each.agent_id
    assert storage.sql("SELECT owner FROM t") == [(AGENT,)]
    assert other.sql("SELECT owner FROM t") == [("other@m:T",)]
    assert (storage.state["owner"], other.state["owner"]) == (AGENT, "other@m:T")


def test_a_transaction_of_one_agent_does_not_hold_the_writes_of_another(
    agent_storages: AgentStorages, storage: Storage
) -> None:
    other = agent_storages.open("other@m:T", 1)
    with suppress(ZeroDivisionError), storage.transaction():
        storage.state["a"] = 1
        other.state["a"] = 2
        raise ZeroDivisionError
    assert dict(storage.state) == {}
    assert dict(other.state) == {"a": 2}


# ------------------------------------------------------------------ SQL


def test_sql_takes_parameters_by_position_and_by_name(storage: Storage) -> None:
    assert storage.sql("SELECT ?, ?", [1, "b"]) == storage.sql("SELECT $1, $2", [1, "b"]) == [(1, "b")]
    assert storage.sql("SELECT $a + $b", {"a": 1, "b": 2}) == [(3,)]


def test_a_text_of_several_statements_is_one_transaction(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER PRIMARY KEY); INSERT INTO t VALUES (1)")
    with pytest.raises(duckdb.ConstraintException):
        storage.sql("INSERT INTO t VALUES (2); INSERT INTO t VALUES (1)")
    assert storage.sql("INSERT INTO t VALUES (3); SELECT count(*) FROM t") == [(2,)]


def test_a_write_inside_a_select_is_durable(disk: Disk, agent_storages: AgentStorages, storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")
    storage.sql("WITH w AS (INSERT INTO t VALUES (7) RETURNING i) SELECT * FROM w")
    assert reopened(disk, agent_storages).sql("SELECT i FROM t") == [(7,)]


NOT_FOR_AGENTS = {
    "transactions": ("BEGIN", "COMMIT", "ROLLBACK", "ABORT", "SELECT 1; COMMIT", "start transaction"),
    "another cursor": (
        *(
            "USE memory",
            "USE perdure",
            "SET threads = 3",
            "RESET threads",
            "SET VARIABLE x = 1",
            "SET SCHEMA 'perdure'",
        ),
        *("PREPARE p AS SELECT 1", "EXECUTE p", "DEALLOCATE p", "PRAGMA threads=1", "PRAGMA enable_profiling"),
        *("CREATE TEMP TABLE x(a INTEGER)", "create or replace temporary view x AS SELECT 1", "CREATE TEMP SEQUENCE s"),
        *("-- why\nCREATE /* and */ Temp MACRO m(a) AS a", "CREATE TEMP TYPE y AS ENUM ('a')"),
        *("SELECT 1; CREATE TEMP TABLE x AS SELECT 2", "EXPLAIN ANALYZE CREATE TEMP TABLE x AS SELECT 2"),
    ),
    "one database, its own": ("ATTACH 'x.db' AS x", "DETACH x", "COPY FROM DATABASE a TO b"),
    "gone when its process ends": ("CREATE TABLE temp.x(a INTEGER)", "CREATE TABLE memory.main.x(a INTEGER)"),
    "the schema perdure": (
        *("DROP SCHEMA perdure", 'drop schema IF EXISTS "Perdure" CASCADE', "DROP TABLE perdure.records"),
        *(
            "ALTER TABLE perdure.meta ADD COLUMN a INTEGER",
            'DELETE FROM "perdure"."records"',
            "TRUNCATE perdure.records",
        ),
        *(
            "UPDATE perdure . meta SET clock = 0",
            "INSERT INTO perdure.meta VALUES ('a', 1, 1, 1)",
            "DROP SCHEMA main.perdure",
        ),
        *("INSERT OR REPLACE INTO perdure.meta VALUES ('a', 1, 1, 1)", "CREATE TABLE perdure.mine(a INTEGER)"),
        *(
            "CREATE OR REPLACE VIEW perdure.meta AS SELECT 1",
            "CREATE INDEX i ON perdure.records(key)",
            "CREATE SCHEMA perdure",
        ),
        *(
            "COMMENT ON TABLE perdure.meta IS 'x'",
            "COPY perdure.records FROM 'x.csv'",
            "DROP VIEW IF EXISTS perdure.meta",
        ),
        *(
            "WITH w AS (DELETE FROM perdure.records RETURNING *) SELECT * FROM w",
            "SELECT 1; /* x */ DROP SCHEMA perdure",
        ),
        *("MERGE INTO perdure.meta USING (SELECT 1 AS a) ON a = clock WHEN MATCHED THEN DELETE",),
        *("EXPLAIN ANALYZE DELETE FROM perdure.records",),
    ),
    "must open in processes": ("INSTALL httpfs", "LOAD httpfs", "UPDATE EXTENSIONS"),
    "Perdure makes the checkpoints": (
        "CHECKPOINT",
        "FORCE CHECKPOINT",
        "SELECT * FROM checkpoint()",
        "CALL force_checkpoint()",
    ),
    "would hold for them": (
        "CREATE SECRET s (TYPE s3)",
        "create or replace persistent secret s (TYPE s3)",
        "DROP SECRET s",
    ),
    "copy a storage": ("EXPORT DATABASE 'x'", "IMPORT DATABASE 'x'"),
}


@pytest.mark.parametrize(
    ("reason", "text"), [(reason, text) for reason, texts in NOT_FOR_AGENTS.items() for text in texts]
)
def test_statements_that_are_not_for_an_agent_are_refused_before_anything_runs(
    storage: Storage, reason: str, text: str
) -> None:
    with storage.transaction():
        storage.state["kept"] = 1
        with pytest.raises(BadRequest, match=f"is not for an agent: .*{reason}") as refusal:
            storage.sql(text)
        assert refusal.value.field == "sql"
    assert storage.state["kept"] == 1


@pytest.mark.parametrize(
    "text",
    [
        *(
            "CREATE VIEW v AS SELECT * FROM perdure.records",
            "CREATE TABLE temp(temporary INTEGER)",
            "PRAGMA table_info('t')",
        ),
        *(
            "CREATE TABLE perdure(secret INTEGER)",
            "INSERT INTO t SELECT count(*) FROM perdure.records",
            "CREATE SCHEMA mine",
        ),
        *("CREATE TABLE records(meta INTEGER)", "INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", "VACUUM", "ANALYZE"),
        *("SELECT 'DROP SCHEMA perdure; CREATE TEMP TABLE x'", "CREATE MACRO twice(a) AS 2 * a", "CREATE SEQUENCE s"),
        *("CREATE VIEW v AS SELECT * FROM t JOIN perdure.records ON perdure.records.number = t.i", "SHOW TABLES"),
        *(
            "EXPLAIN SELECT * FROM perdure.records",
            "CREATE TYPE mood AS ENUM ('ä', 'temp')",
            "DROP TABLE IF EXISTS temporary",
        ),
        *("CREATE TABLE main.x(i INTEGER)", "CALL duckdb_tables()"),
    ],
)
def test_statements_that_only_look_like_those_are_run(storage: Storage, text: str) -> None:
    storage.sql("CREATE TABLE t (i INTEGER PRIMARY KEY)")
    storage.sql(text)


@pytest.mark.parametrize("text", ["INSERT INTO t VALUES ({}, {})", "SELECT {}, {} FROM t"])
def test_a_parameter_that_duckdb_does_not_take_is_refused_by_its_place(storage: Storage, text: str) -> None:
    storage.sql("CREATE TABLE t (i INTEGER, x VARCHAR)")
    for value in ({1, 2}, object(), 2**128, "\ud800", [1, object()], {"a": {1}}, Path("x"), 1 + 2j):
        with pytest.raises(BadRequest, match=f"DuckDB does not take this {type(value).__name__}: ") as refusal:
            storage.sql(text.format("$1", "$2"), [1, value])
        assert refusal.value.field == "parameters[1]"
        with pytest.raises(BadRequest) as refusal:
            storage.sql(text.format("$one", "$two"), {"one": 1, "two": value})
        assert refusal.value.field == "parameters['two']"
    assert storage.sql("SELECT count(*) FROM t") == [(0,)]


def test_parameters_are_a_list_or_a_dictionary(storage: Storage) -> None:
    with pytest.raises(BadRequest, match="parameters: are a list or a dictionary, not str"):
        storage.sql("SELECT $1", "x")


def test_other_errors_of_parameters_are_duckdb_s_own(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")
    with pytest.raises(duckdb.InvalidInputException, match="Values were not provided"):
        storage.sql("INSERT INTO t VALUES ($1)")


# ------------------------------------------------------------------ transactions


def test_a_transaction_that_raises_leaves_nothing(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")
    storage.state.update(kept=1, gone=2)

    def fail() -> None:
        with storage.transaction() as transaction:
            storage.sql("INSERT INTO t VALUES (1)")
            storage.state["kept"] = 5
            del storage.state["gone"]
            transaction.save_result("r", b"x")
            transaction.record_inbox(["m"])
            transaction.add_outbox(b"x")
            assert (storage.sql("SELECT i FROM t"), dict(storage.state)) == ([(1,)], {"kept": 5})
            assert storage.result("r") == b"x"
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert storage.sql("SELECT i FROM t") == []
    assert dict(storage.state) == {"kept": 1, "gone": 2}
    assert (storage.result("r"), storage.inbox(), storage.outbox()) == (None, {}, [])


def test_a_transaction_inside_another_joins_it(storage: Storage) -> None:
    with suppress(ZeroDivisionError), storage.transaction() as outer:
        with storage.transaction() as inner:
            assert inner is outer
            storage.state["a"] = 1
        assert storage.state["a"] == 1
        raise ZeroDivisionError
    assert dict(storage.state) == {}


def test_a_nested_block_that_failed_takes_the_outer_one_with_it(storage: Storage) -> None:
    def outer() -> None:
        with storage.transaction():
            storage.state["a"] = 1
            with suppress(ZeroDivisionError), storage.transaction():
                storage.state["b"] = 2
                raise ZeroDivisionError

    with pytest.raises(StorageError, match="a nested transaction failed"):
        outer()
    assert dict(storage.state) == {}


def test_a_failed_statement_that_was_caught_does_not_end_in_an_empty_success(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER PRIMARY KEY)")

    def careless() -> None:
        with storage.transaction():
            storage.sql("INSERT INTO t VALUES (1)")
            with suppress(duckdb.ConstraintException):
                storage.sql("INSERT INTO t VALUES (1)")

    with pytest.raises(StorageError, match="a statement of this transaction failed"):
        careless()
    assert storage.sql("SELECT * FROM t") == []


def test_a_missing_key_is_no_failure_of_the_transaction(storage: Storage) -> None:
    with storage.transaction():
        storage.state["a"] = 1
        with pytest.raises(KeyError):
            del storage.state["b"]
        with pytest.raises(KeyError):
            storage.state.pop("b")
        assert storage.state.pop("b", "default") == "default"
    assert dict(storage.state) == {"a": 1}


def test_the_explicit_form_binds_nothing_until_it_is_active(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")
    transaction = storage.begin()
    transaction.sql("INSERT INTO t VALUES (1)")
    assert storage.sql("SELECT * FROM t") == []
    with transaction.active():
        assert storage.sql("SELECT * FROM t") == [(1,)]
        storage.state["a"] = 1
    assert "a" not in storage.state
    transaction.commit()
    assert (storage.sql("SELECT * FROM t"), storage.state["a"]) == ([(1,)], 1)
    with pytest.raises(StorageError, match="has ended"):
        transaction.commit()
    transaction.rollback()
    assert storage.state["a"] == 1


def test_what_follows_a_rollback_inside_the_block_does_not_become_durable_by_itself(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")
    with storage.transaction() as transaction:
        storage.sql("INSERT INTO t VALUES (1)")
        transaction.rollback()
        with pytest.raises(StorageError, match="has ended"):
            storage.sql("INSERT INTO t VALUES (2)")
    assert storage.sql("SELECT * FROM t") == []


def test_tasks_that_interleave_have_a_transaction_each(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")

    async def write(number: int, others: asyncio.Barrier) -> None:
        with storage.transaction():
            storage.sql("INSERT INTO t VALUES ($1)", [number])
            storage.state[f"k{number}"] = number
            await others.wait()
            assert storage.sql("SELECT i FROM t") == [(number,)]
            await others.wait()
            if number == 2:
                raise ZeroDivisionError

    async def all_three() -> None:
        barrier = asyncio.Barrier(3)
        ends = await asyncio.gather(*(write(n, barrier) for n in range(3)), return_exceptions=True)
        assert [type(end) for end in ends] == [type(None), type(None), ZeroDivisionError]

    asyncio.run(all_three())
    assert storage.sql("SELECT i FROM t ORDER BY i") == [(0,), (1,)]
    assert dict(storage.state) == {"k0": 0, "k1": 1}


def test_a_task_that_outlives_the_transaction_it_was_born_in_works_on_its_own(storage: Storage) -> None:
    async def main() -> None:
        left = asyncio.Event()

        async def straggler() -> None:
            await left.wait()
            storage.state["late"] = 1

        with suppress(ZeroDivisionError), storage.transaction():
            storage.state["early"] = 1
            task = asyncio.create_task(straggler())
            raise ZeroDivisionError
        left.set()
        await task

    asyncio.run(main())
    assert dict(storage.state) == {"late": 1}


def test_a_worker_thread_with_the_context_of_a_transaction_writes_into_it(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")

    def work() -> None:
        storage.sql("INSERT INTO t VALUES (1)")
        storage.state["a"] = 1

    async def main() -> None:
        with suppress(ZeroDivisionError), storage.transaction():
            await asyncio.to_thread(work)
            assert storage.sql("SELECT i FROM t") == [(1,)]
            raise ZeroDivisionError

    asyncio.run(main())
    assert (storage.sql("SELECT i FROM t"), dict(storage.state)) == ([], {})


def test_threads_write_beside_each_other(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER)")
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(10):
                storage.sql("INSERT INTO t VALUES ($1)", [number * 100 + step])
                storage.state[f"{number}/{step}"] = step
                with storage.transaction() as transaction:
                    storage.sql("SELECT count(*) FROM t")
                    transaction.record_inbox([f"{number}/{step}"])
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=contextvars.copy_context().run, args=(work, n)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert storage.sql("SELECT count(DISTINCT i) FROM t") == [(40,)]
    assert (len(storage.state), len(storage.inbox())) == (40, 40)


# ------------------------------------------------------------------ state


def test_a_value_that_was_read_is_a_copy(storage: Storage) -> None:
    mine = {"list": [1]}
    storage.state["a"] = mine
    mine["list"].append(2)
    storage.state["a"]["list"].append(3)
    assert storage.state["a"] == {"list": [1]}
    with storage.transaction():
        storage.state["a"]["list"].append(4)
        assert storage.state["a"] == {"list": [1]}


def test_the_operators_of_a_dictionary_merge(storage: Storage) -> None:
    state = same = storage.state
    state |= {"a": 1}
    state |= [("b", 2)]
    assert state is same
    state.replace(state)
    assert state | {"b": 3, "c": 4} == {"a": 1, "b": 3, "c": 4}
    assert {"b": 3, "c": 4} | state == {"a": 1, "b": 2, "c": 4}
    merged, copied = state | {}, state.copy()
    merged["a"] = copied["a"] = 5
    assert (type(merged), type(copied), dict(storage.state)) == (dict, dict, {"a": 1, "b": 2})
    with pytest.raises(TypeError, match="unsupported operand"):
        state | [("c", 3)]


@pytest.mark.parametrize("value", [object(), [int], 1 << 20_000, "\ud800", lambda: None], ids=range(5))
def test_what_cannot_be_stored_is_refused_with_the_key(storage: Storage, value: object) -> None:
    with pytest.raises(BadRequest, match="'bad'") as refusal:
        storage.state.update(good=1, bad=value)
    assert refusal.value.field == "state"
    assert dict(storage.state) == {}


def test_a_key_is_a_string(storage: Storage) -> None:
    with pytest.raises(BadRequest, match="not a string"):
        storage.state[1] = 1  # type: ignore[index]
    with pytest.raises(BadRequest, match="not a string"):
        _ = 1 in storage.state


KEYS = st.sampled_from(["a", "b", "c", "π/…"])
STEPS = st.one_of(
    st.tuples(st.just("set"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("pop"), KEYS),
    st.tuples(st.just("setdefault"), KEYS, st.integers(0, 9)),
    st.tuples(st.just("merge"), st.dictionaries(KEYS, st.integers(0, 9), max_size=2)),
    st.tuples(st.just("clear")),
)
BLOCKS = st.tuples(st.sampled_from(["alone", "commit", "rollback", "crash", "close"]), st.lists(STEPS, max_size=5))


def step(state: MutableMapping[str, Any], what: str, *arguments: Any) -> None:
    if what == "set":
        state[arguments[0]] = arguments[1]
    elif what == "pop":
        state.pop(arguments[0], None)
    elif what == "setdefault":
        state.setdefault(*arguments)
    elif what == "merge":
        operator.ior(state, arguments[0])
    else:
        state.clear()


@pytest.mark.shows(fibers="F49", sub_agents="B34 B52 B53")
@settings(max_examples=50)
@given(st.lists(BLOCKS, max_size=8))
def test_state_is_a_dictionary_that_survives(blocks: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
    disk = MemoryDisk()
    agent_storages = AgentStorages(disk)
    storage, model = agent_storages.open(AGENT, 1), dict[str, int]()
    for end, steps in blocks:
        draft = dict(model)
        transaction = None if end == "alone" else storage.begin()
        with transaction.active() if transaction else nullcontext():
            for each in steps:
                step(storage.state, *each)
                step(draft, *each)
                assert dict(storage.state) == draft
        if transaction is not None and end == "commit":
            transaction.commit()
        model = draft if end in ("alone", "commit") else model
        if transaction is not None and end == "rollback":
            transaction.rollback()
        if end in ("crash", "close"):
            getattr(agent_storages, end)()
            agent_storages = AgentStorages(disk)
            storage = agent_storages.open(AGENT, 1)
        assert dict(storage.state) == model
    disk.close()


# ------------------------------------------------------------------ the host's records


def test_outbox_numbers_rise_for_ever(disk: Disk, agent_storages: AgentStorages, storage: Storage) -> None:
    def send(to: Storage) -> int:
        with to.transaction() as transaction:
            transaction.add_outbox(b"a")
            transaction.add_outbox(b"b")
        first, second = to.outbox()[-2:]
        assert (first[1], second[1], first[0] < second[0]) == (b"a", b"b", True)
        return second[0]

    one = send(storage)
    storage.forget_outbox([number for number, _ in storage.outbox()])
    two = send(storage)
    assert [number > one for number, _ in storage.outbox()] == [True, True]
    storage.forget_outbox([number for number, _ in storage.outbox()])
    again = reopened(disk, agent_storages)
    assert again.outbox() == []
    assert send(again) > two > one


def test_a_mail_that_was_forgotten_is_unknown_and_stays_so(
    disk: Disk, agent_storages: AgentStorages, storage: Storage
) -> None:
    with storage.transaction() as transaction:
        transaction.record_inbox(["m1", "m2"])
        transaction.record_inbox(["m1"])
    with storage.transaction() as transaction:
        transaction.record_inbox(["m1"])
    storage.forget_inbox(["m1", "never seen"])
    assert list(storage.inbox()) == ["m2"]
    assert list(reopened(disk, agent_storages).inbox()) == ["m2"]


def test_steps_and_results_are_kept_by_run_and_the_last_one_counts(storage: Storage) -> None:
    with storage.transaction() as transaction:
        transaction.save_step("r", "a", b"1")
        transaction.save_step("r", "b", b"2")
        transaction.save_step("r1", "a", b"other")
        transaction.save_result("r", b"first")
    with storage.transaction() as transaction:
        transaction.save_step("r", "a", b"3")
        transaction.save_step("r", "c", b"4")
        transaction.save_result("r", b"second")
        assert storage.steps("r") == {"a": b"3", "b": b"2", "c": b"4"}
        assert storage.result("r") == b"second"
    assert storage.steps("r") == {"a": b"3", "b": b"2", "c": b"4"}
    assert (storage.steps("r1"), storage.result("r1")) == ({"a": b"other"}, None)


def test_garbage_is_swept_while_the_agent_lives(storage: Storage) -> None:
    for group in range(12):
        mails = [f"{group}/{n}" for n in range(256)]
        with storage.transaction() as transaction:
            transaction.record_inbox(mails)
            storage.state["group"] = group
        storage.forget_inbox(mails)
    ((rows,),) = storage.sql("SELECT count(*) FROM perdure.records")
    assert rows < 2048
    assert storage.state["group"] == 11


# ------------------------------------------------------------------ lives


@pytest.mark.shows(chat_recovery="W-14")
def test_a_higher_incarnation_takes_over_and_the_old_handle_refuses(
    agent_storages: AgentStorages, storage: Storage
) -> None:
    storage.state["a"] = 1
    assert agent_storages.open(AGENT, 1) is storage
    heir = agent_storages.open(AGENT, 2)
    with pytest.raises(StaleIncarnation):
        storage.state["a"] = 2
    with pytest.raises(StaleIncarnation):
        agent_storages.open(AGENT, 1)
    assert heir.state["a"] == 1


@pytest.mark.shows(chat_recovery="W-49")
def test_a_lower_incarnation_is_refused_after_the_higher_one_has_left(
    disk: Disk, agent_storages: AgentStorages
) -> None:
    agent_storages.open(AGENT, 7).state["a"] = 1
    agent_storages.close()
    late = AgentStorages(disk)
    with pytest.raises(StaleIncarnation, match="incarnation 7"):
        late.open(AGENT, 6)
    assert late.open(AGENT, 8).state["a"] == 1


def test_after_close_every_method_refuses(storage: Storage) -> None:
    storage.state["a"] = 1
    transaction = storage.begin()
    transaction.sql("CREATE TABLE t (i INTEGER)")
    storage.close()
    storage.close()
    calls = [
        lambda: storage.sql("SELECT 1"),
        lambda: storage.sql("CREATE TABLE t (i INTEGER)"),
        lambda: storage.state["a"],
        lambda: storage.state.update(a=2),
        lambda: list(storage.state),
        storage.begin,
        storage.checkpoint,
        storage.inbox,
        storage.outbox,
        lambda: storage.known_inbox(["m"]),
        lambda: storage.forget_inbox(["m"]),
        lambda: storage.forget_outbox([1]),
        lambda: storage.result("r"),
        lambda: storage.steps("r"),
        lambda: storage.save_result("r", b""),
        lambda: storage.snapshot(Path("nowhere.db")),
        lambda: transaction.sql("SELECT 1"),
        lambda: transaction.add_outbox(b""),
        transaction.commit,
    ]
    for call in calls:
        with pytest.raises(StaleIncarnation):
            call()


@pytest.mark.shows(sub_agents="B26")
def test_a_forgotten_storage_is_gone_for_good(disk: Disk, agent_storages: AgentStorages, storage: Storage) -> None:
    storage.state["a"] = 1
    agent_storages.forget(AGENT)
    agent_storages.forget(AGENT)
    with pytest.raises(StaleIncarnation):
        _ = storage.state["a"]
    assert not agent_storages.exists(AGENT)
    assert not isinstance(disk, FileDisk) or list(disk.directory.rglob("*.db*")) == []
    assert dict(agent_storages.open(AGENT, 1).state) == {}


# ------------------------------------------------------------------ copies


def test_a_snapshot_brings_everything_back(
    disk: Disk, agent_storages: AgentStorages, storage: Storage, tmp_path: Path
) -> None:
    fill(storage)
    with storage.transaction():
        storage.sql("INSERT INTO t VALUES (9, 'not committed')")
        storage.snapshot(tmp_path / "snapshot.db")
    storage.state["a"] = "later"
    agent_storages.forget(AGENT)
    agent_storages.restore(AGENT, tmp_path / "snapshot.db")
    again = agent_storages.open(AGENT, 4)
    assert again.sql("SELECT * FROM t") == [(1, "one")]
    assert (again.state["a"], list(again.inbox()), again.result("r")) == ("A", ["m"], b"result")
    with pytest.raises(StaleIncarnation):
        reopened(disk, agent_storages, 3)


def test_a_fork_has_the_tables_and_the_state_but_not_the_runs_and_the_mail(
    agent_storages: AgentStorages, storage: Storage
) -> None:
    fill(storage)
    give_copy(agent_storages, "twin@m:T")
    storage.state["a"] = "mine"
    twin = agent_storages.open("twin@m:T", 1)
    assert twin.sql("SELECT * FROM t") == [(1, "one")]
    assert (twin.state["a"], storage.state["a"]) == ("A", "mine")
    assert (twin.inbox(), twin.outbox(), twin.result("r"), twin.steps("r")) == ({}, [], None, {})
    with pytest.raises(duckdb.ConstraintException):
        twin.sql("INSERT INTO t VALUES (1, 'again')")
    storage.close()
    give_copy(agent_storages, "second twin@m:T")
    assert agent_storages.open("second twin@m:T", 1).state["a"] == "mine"


def test_a_copy_never_replaces_a_storage(agent_storages: AgentStorages, storage: Storage, tmp_path: Path) -> None:
    fill(storage)
    storage.snapshot(tmp_path / "snapshot.db")
    awake = agent_storages.open("awake@m:T", 1)
    for target in (AGENT, awake.agent_id):
        with pytest.raises(BadRequest, match="target_id"):
            agent_storages.fork(AGENT, target)
        with pytest.raises(BadRequest, match="agent_id"):
            agent_storages.restore(target, tmp_path / "snapshot.db")
    with pytest.raises(BadRequest, match="never wrote"):
        agent_storages.fork("nobody@m:T", "twin@m:T")
    with pytest.raises(BadRequest, match="never wrote"):
        awake.snapshot(tmp_path / "empty.db")
    with pytest.raises(BadRequest, match="exists"):
        storage.snapshot(tmp_path / "snapshot.db")
    with pytest.raises(BadRequest, match="does not exist"):
        agent_storages.restore("twin@m:T", tmp_path / "missing.db")


def test_a_file_that_is_no_snapshot_is_refused_and_leaves_nothing(
    agent_storages: AgentStorages, tmp_path: Path
) -> None:
    (tmp_path / "garbage.db").write_bytes(b"garbage" * 9999)
    foreign = duckdb.connect(str(tmp_path / "foreign.db"))
    foreign.execute("CREATE TABLE t (i INTEGER)")
    foreign.close()
    for name in ("garbage.db", "foreign.db"):
        with pytest.raises(StorageError):
            agent_storages.restore(AGENT, tmp_path / name)
        assert not agent_storages.exists(AGENT)
    assert dict(agent_storages.open(AGENT, 1).state) == {}


def give_copy(agent_storages: AgentStorages, target: str) -> None:
    """As an agent does it on this disk."""
    disk = agent_storages.disk
    if not isinstance(disk, TravellingDisk):
        agent_storages.fork(AGENT, target)
        return
    place = disk.new_place()
    agent_storages.copy_out(AGENT, target, place)
    disk.plant(target, disk.taken(AGENT, place))
    assert not list(place.parent.iterdir())


def fill(storage: Storage) -> None:
    storage.sql("CREATE TABLE t (i INTEGER PRIMARY KEY, s VARCHAR)")
    with storage.transaction() as transaction:
        storage.sql("INSERT INTO t VALUES (1, 'one')")
        storage.state["a"] = "A"
        transaction.record_inbox(["m"])
        transaction.add_outbox(b"out")
        transaction.save_result("r", b"result")
        transaction.save_step("r", "s", b"step")
