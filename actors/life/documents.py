"""The documents that the parts of an agent keep in its storage: typed values, each under a kind and a key.

Reads see the open transaction. Writes are part of the transaction that is given. A document is never changed in place: a transaction that
has read one and writes another depends on what it read, so of two that change the same document the later one is a `StorageConflict`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import MISSING, fields
from enum import StrEnum
from functools import lru_cache
from typing import Generic, NamedTuple, Self, TypeVar, cast, get_type_hints

from perdure.actors.life.life import Life
from perdure.ledger import pack, unpack
from perdure.ledger.storage.agent_storages import Transaction

T = TypeVar("T")


class Documents(Generic[T]):
    """The documents of one kind.

    Args:
        load: makes a value of a stored body; by default plain data of msgpack.
        body: the reverse.
    """

    def __init__(
        self, life: Life, kind: str, load: Callable[[bytes], T] = unpack, body: Callable[[T], bytes] = pack
    ) -> None:
        self._life, self.kind, self._load, self._body = life, kind, load, body

    # reading

    def get(self, key: str) -> T | None:
        transaction = self._life.transaction
        if transaction is not None and transaction.has_put((self.kind, key)):
            body = transaction.own((self.kind, key))
        else:
            body = self._life.storage.bodies(self.kind, [key]).get(key) if self.version(key) else None
        return None if body is None else self._load(body)

    def some(self, keys: Iterable[str]) -> dict[str, T]:
        # They are read with one statement.
        wanted = list(keys)
        if not wanted or self._is_empty:
            return {}
        return {key: self._load(body) for key, body in self._life.storage.bodies(self.kind, wanted).items()}

    def all(self, prefix: str = "") -> dict[str, T]:
        if self._is_empty:
            return {}
        return {key: self._load(body) for key, body in self._life.storage.documents(self.kind, prefix).items()}

    def keys(self) -> list[str]:
        return self._life.storage.records().keys(self.kind) if self._life.has_storage else []

    def version(self, key: str) -> int:
        return self._life.storage.records().version((self.kind, key)) if self._life.has_storage else 0

    def versions(self) -> dict[str, int]:
        return self._life.storage.records().versions(self.kind) if self._life.has_storage else {}

    def stands(self, key: str) -> bool:
        transaction = self._life.transaction
        if transaction is not None and transaction.has_put((self.kind, key)):
            return transaction.own((self.kind, key)) is not None
        return self.version(key) > 0

    @property
    def _is_empty(self) -> bool:
        return not self._life.has_storage and self._life.transaction is None

    # writing

    def put(self, transaction: Transaction, key: str, value: T) -> None:
        transaction.put(self.kind, key, self._body(value))

    def drop(self, transaction: Transaction, key: str) -> None:
        if self.stands(key):
            transaction.put(self.kind, key, None)

    def depend_on(self, transaction: Transaction, key: str) -> None:
        # If another transaction changes this document first, that is a `StorageConflict`.
        transaction.depend_on((self.kind, key))


class RememberedDocuments(Documents[T]):
    """Documents of which some are kept in memory, under the version that was read: whatever was committed since is read anew.

    Args:
        keeps: whether a document is worth its memory; by default all are.
    """

    def __init__(
        self,
        life: Life,
        kind: str,
        load: Callable[[bytes], T],
        body: Callable[[T], bytes],
        keeps: Callable[[T], bool] = lambda _: True,
    ) -> None:
        super().__init__(life, kind, load, body)
        self._keeps = keeps
        self._known: dict[str, tuple[int, T]] = {}

    def get(self, key: str) -> T | None:
        transaction = self._life.transaction
        if transaction is not None and transaction.has_put((self.kind, key)):
            return super().get(key)
        version, known = self.version(key), self._known.get(key)
        if known is not None and known[0] == version:
            return known[1]
        body = self._life.storage.bodies(self.kind, [key]).get(key) if version else None
        value = None if body is None else self._load(body)
        if value is not None and self._keeps(value):
            # if it was written in between, the version does not fit, and it is read anew
            self._known[key] = (version, value)
        else:
            self._known.pop(key, None)
        return value

    def some(self, keys: Iterable[str]) -> dict[str, T]:
        if self._is_empty:
            return {}
        with self._life.storage.committing:
            found = super().some(keys)
            if self._life.transaction is None:
                for key, value in found.items():
                    self.remember(key, value)
        return found

    def remember(self, key: str, value: T) -> None:
        if self._keeps(value):
            self._known[key] = (self.version(key), value)
        else:
            self.forget(key)

    def forget(self, key: str) -> None:
        self._known.pop(key, None)


# A dataclass that is a document: a map of its fields, without those that have their defaults.
class StoredRow:
    def body(self) -> bytes:
        defaults = _layout(cast("Hashable", type(self))).defaults
        return pack({name: value for name, value in vars(self).items() if value != defaults[name]})

    @classmethod
    def load(cls, body: bytes) -> Self:
        known = unpack(body)
        for name, word in _layout(cast("Hashable", cls)).words:
            if name in known:
                known[name] = word(known[name])
        return cls(**known)


class _Layout(NamedTuple):
    defaults: dict[str, object]
    words: list[tuple[str, type[StrEnum]]]


_NEEDED = object()


@lru_cache(maxsize=64)
def _layout(row: type) -> _Layout:
    # The default of a field that has none equals nothing.
    defaults = {
        each.name: each.default_factory()
        if each.default_factory is not MISSING
        else _NEEDED if each.default is MISSING else each.default
        for each in fields(row)
    }  # fmt: skip
    hints = get_type_hints(row)
    words = [
        (name, hints[name]) for name in defaults if isinstance(hints[name], type) and issubclass(hints[name], StrEnum)
    ]
    return _Layout(defaults, words)
