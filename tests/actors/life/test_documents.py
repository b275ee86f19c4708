"""The typed documents in an agent's storage: what is read in a transaction, beside it and after it, and rows of other versions."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

import pytest

from perdure.actors.life.documents import Documents, RememberedDocuments, StoredRow
from perdure.actors.life.life import Life
from perdure.ledger import StorageConflict, unpack
from perdure.ledger.storage.agent_storages import AgentStorages, MemoryDisk, Storage, Transaction, bound_to
from perdure.ledger.storage.records import QUEUED, SHELF


class Word(StrEnum):
    NEW = "new"
    OLD = "old"


@dataclass
class Item(StoredRow):
    number: int
    word: Word = Word.NEW
    notes: list[str] = field(default_factory=list)


class OneLife:
    """What documents ask of a life."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    @property
    def has_storage(self) -> bool:
        return self.storage.exists

    @property
    def transaction(self) -> Transaction | None:
        return bound_to(self.storage)


@pytest.fixture
def life() -> Iterator[Life]:
    agent_storages = AgentStorages(MemoryDisk())
    yield cast("Life", OneLife(agent_storages.open("a@t:A", 1)))
    agent_storages.close()


@pytest.fixture(params=[False, True], ids=["read", "remembered"])
def items(request: pytest.FixtureRequest, life: Life) -> Documents[Item]:
    kind: Any = RememberedDocuments if request.param else Documents
    return cast("Documents[Item]", kind(life, QUEUED, Item.load, Item.body))


def kept(life: Life, items: Documents[Item], *numbers: int) -> None:
    with life.storage.transaction() as transaction:
        for number in numbers:
            items.put(transaction, f"k{number}", Item(number))


def test_an_agent_that_never_wrote_has_no_documents_and_asking_writes_nothing(
    life: Life, items: Documents[Item]
) -> None:
    assert (items.get("k1"), items.all(), items.some(["k1"]), items.keys(), items.versions()) == (None, {}, {}, [], {})
    assert not items.stands("k1")
    assert not life.has_storage


def test_a_transaction_sees_its_own_documents_and_nobody_else_does(life: Life, items: Documents[Item]) -> None:
    with life.storage.transaction() as transaction:
        items.put(transaction, "k1", Item(1))
        assert (items.get("k1"), items.stands("k1")) == (Item(1), True)
        assert list(items.all()) == list(items.some(["k1", "k2"])) == ["k1"]
        assert (items.keys(), items.version("k1")) == ([], 0), "these speak of what is committed"
        items.drop(transaction, "k1")
        assert (items.get("k1"), items.stands("k1"), items.all()) == (None, False, {})
        items.put(transaction, "k2", Item(2))
    assert items.all() == {"k2": Item(2)}


def test_what_is_rolled_back_was_never_there(life: Life, items: Documents[Item]) -> None:
    kept(life, items, 1)
    items.get("k1")
    transaction = life.storage.begin()
    with transaction.active():
        items.put(transaction, "k1", Item(7))
        assert items.get("k1") == Item(7)
    transaction.rollback()
    assert items.get("k1") == Item(1)


def test_a_new_version_is_read_by_whoever_remembers_the_old_one(life: Life, items: Documents[Item]) -> None:
    kept(life, items, 1, 2)
    assert [items.get("k1"), items.some(["k2"])["k2"]] == [Item(1), Item(2)]
    with life.storage.transaction() as transaction:
        transaction.put(QUEUED, "k1", Item(5).body())
        transaction.put(QUEUED, "k2", None)
    assert (items.get("k1"), items.get("k2")) == (Item(5), None)


def test_documents_are_in_the_order_of_their_keys_and_keys_in_that_of_their_commits(
    life: Life, items: Documents[Item]
) -> None:
    kept(life, items, 3)
    kept(life, items, 1, 2)
    assert list(items.all()) == ["k1", "k2", "k3"]
    assert list(items.all("k2")) == ["k2"]
    assert items.keys() == list(items.versions()) == ["k3", "k1", "k2"]


def test_of_two_transactions_that_change_what_both_have_read_the_later_one_is_in_conflict(
    life: Life, items: Documents[Item]
) -> None:
    kept(life, items, 1)
    first, second = life.storage.begin(), life.storage.begin()
    for transaction in (first, second):
        items.depend_on(transaction, "k1")
        items.put(transaction, "k1", Item(2))
    first.commit()
    with pytest.raises(StorageConflict):
        second.commit()


def test_only_what_is_worth_it_is_kept_in_memory(life: Life) -> None:
    items = RememberedDocuments(life, QUEUED, Item.load, Item.body, lambda item: item.number > 1)
    kept(life, items, 1, 2)
    assert items.get("k1") is not items.get("k1")
    assert items.get("k2") is items.get("k2")
    items.forget("k2")
    assert items.get("k2") == Item(2)


def test_plain_data_needs_no_codec(life: Life) -> None:
    shelf: Documents[list[int]] = Documents(life, SHELF)
    with life.storage.transaction() as transaction:
        shelf.put(transaction, "a", [1, 2])
    assert shelf.get("a") == [1, 2]


def test_a_row_is_stored_without_its_defaults_and_its_words_are_of_their_enum_again() -> None:
    assert unpack(Item(0).body()) == {"number": 0}
    assert unpack(Item(1, Word.OLD, ["x"]).body()) == {"number": 1, "word": "old", "notes": ["x"]}
    assert Item.load(Item(1, Word.OLD).body()).word is Word.OLD
    assert Item.load(Item(1).body()) == Item(1)


def test_each_row_has_a_default_list_of_its_own() -> None:
    one, other = (Item.load(Item(3).body()) for _ in range(2))
    one.notes.append("x")
    assert other.notes == []
