"""The durable mapping `agent.state`, over whatever can read and write its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol, Self

from perdure.ledger.errors import BadRequest
from perdure.ledger.storage.records import STATE, Records
from perdure.ledger.storage.transaction import Transaction
from perdure.ledger.values import pack_value, unpack_value


class StateStorage(Protocol):
    def current(self) -> Transaction | None: ...
    def brief(self) -> AbstractContextManager[Transaction]: ...
    def records(self) -> Records: ...


class State(MutableMapping[str, Any]):
    """The agent's durable mapping: string keys, and values that are plain data or of Python's own types (`ledger.values`).

    Inside `self.transaction()` it shows what is committed and, over it, what this transaction wrote, and all writes become
    durable together. Outside, every write is a durable transaction of its own, so a group belongs into one (`update` is one).

    A value that was read is a copy. To change it, change the copy and assign it again; `state["items"].append(item)` changes only the copy,
    and is lost:

        state["items"] = [*state.get("items", []), item]

    As with a `dict`, `state |= {…}` assigns into it, and `state | {…}` and `copy()` give new dictionaries.

    Where code of the agent runs in between (after an `await`, beside a thread), what depends on what was read belongs into a transaction:
    if another one changed the key meanwhile, its commit raises `StorageConflict`, so no update is lost. In SQL the values are visible as
    msgpack (`perdure.records`).
    """

    __slots__ = ("__weakref__", "_changed", "_storage", "_validate")

    def __init__(self, storage: StateStorage) -> None:
        self._storage = storage
        self._validate: Callable[[dict[str, Any]], None] | None = None
        self._changed: Callable[[], None] | None = None

    if not TYPE_CHECKING:  # type checkers would take every name

        def __setattr__(self, name: str, value: object) -> None:
            if name not in State.__slots__:
                raise AttributeError(f'the state has keys, and no attributes: write self.state["{name}"] = …')
            super().__setattr__(name, value)

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f'the state has keys, and no attributes: write self.state["{name}"]')

    def watch(self, validate: Callable[[dict[str, Any]], None] | None, changed: Callable[[], None] | None) -> None:
        """Call `validate` before each change with what the mapping would become, and `changed` after each commit that changed it."""
        self._validate, self._changed = validate, changed

    def __getitem__(self, key: str) -> Any:
        body = self._body(key)
        if body is None:
            raise KeyError(key)
        return unpack_value(body)

    def __contains__(self, key: object) -> bool:
        return self._body(key) is not None

    def __setitem__(self, key: str, value: Any) -> None:
        self._write({key: value})

    def __delitem__(self, key: str) -> None:
        if self._take(key) is None:
            raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def __repr__(self) -> str:
        return f"State({dict(self)!r})"

    def update(self, *others: Any, **more: Any) -> None:
        """Assign all, or nothing if one value cannot be stored."""
        self._write(dict(*others, **more))

    def replace(self, values: Mapping[str, Any]) -> None:
        """Assign all and remove every other key, in one transaction; nothing changes if one value cannot be stored."""
        if values is self:  # `agent.state |= {…}` ends with this
            return
        if not isinstance(values, Mapping):
            raise BadRequest("state", f"{values!r:.200} is {type(values).__name__}; the state of an agent is an object")
        bodies: dict[str, bytes | None] = {key: _encoded(key, value) for key, value in values.items()}
        self._ask({**dict.fromkeys(self._keys()), **bodies})
        with self._storage.brief() as transaction:
            for key, body in {**dict.fromkeys(self._keys()), **bodies}.items():
                if body != transaction.read_state(key):
                    self._put(transaction, key, body)

    def __ior__(self, other: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> Self:
        self.update(other)
        return self

    def __or__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**self, **other} if isinstance(other, Mapping) else NotImplemented

    def __ror__(self, other: Mapping[str, Any]) -> dict[str, Any]:
        return {**other, **self} if isinstance(other, Mapping) else NotImplemented

    def copy(self) -> dict[str, Any]:
        """All of it as a dictionary of its own."""
        return dict(self)

    def pop(self, key: str, *default: Any) -> Any:
        body = self._take(key)
        if body is not None:
            return unpack_value(body)
        if default:
            return default[0]
        raise KeyError(key)

    def setdefault(self, key: str, default: Any = None) -> Any:
        """Assign the default if the key is missing, and return a copy of the value. So `setdefault("items", []).append(item)` loses the
        item; say `state["items"] = [*state.get("items", []), item]`."""
        # To look and to assign is one transaction.
        fallback = _encoded(key, default)
        if self._body(key) is None:
            self._ask({key: fallback})
        with self._storage.brief() as transaction:
            body = transaction.read_state(key)
            if body is None:
                body = fallback
                self._put(transaction, key, body)
        return unpack_value(body)

    def clear(self) -> None:
        self._ask(dict.fromkeys(self._keys()))
        with self._storage.brief() as transaction:
            for key in self._keys():
                self._put(transaction, key, None)

    def _write(self, values: Mapping[str, Any]) -> None:
        bodies = {key: _encoded(key, value) for key, value in values.items()}
        if not bodies:
            return
        self._ask(bodies)
        with self._storage.brief() as transaction:
            for key, body in bodies.items():
                self._put(transaction, key, body)

    def _ask(self, bodies: Mapping[str, bytes | None]) -> None:
        # Before the transaction begins: a refusal inside would doom it.
        if self._validate is not None:
            after = {key: unpack_value(body) for key in self._keys() if (body := self._body(key)) is not None}
            for key, body in bodies.items():
                after.pop(key, None)
                if body is not None:
                    after[key] = unpack_value(body)
            self._validate(after)

    def _put(self, transaction: Transaction, key: str, body: bytes | None) -> None:
        transaction.put(STATE, key, body)
        if self._changed is not None:
            transaction.then(self._changed)

    def _take(self, key: str) -> bytes | None:
        # A missing key is no error here, because an error would doom the joined transaction.
        if self._validate is not None and self._body(key) is not None:
            self._ask({key: None})
        with self._storage.brief() as transaction:
            body = transaction.read_state(key)
            if body is not None:
                self._put(transaction, key, None)
        return body

    def _body(self, key: object) -> bytes | None:
        if not isinstance(key, str):
            raise BadRequest("state", f"the key {key!r} is not a string")
        transaction = self._storage.current()
        if transaction is not None:
            return transaction.read_state(key)
        return self._storage.records().state.get(key)

    def _keys(self) -> list[str]:
        transaction = self._storage.current()
        if transaction is not None:
            return transaction.state_keys()
        return list(self._storage.records().state)


def _encoded(key: object, value: object) -> bytes:
    if not isinstance(key, str):
        raise BadRequest("state", f"the key {key!r} is not a string")
    try:
        pack_value("state", key)
        return pack_value("state", value)
    except BadRequest as problem:
        raise BadRequest("state", f"the value of {key!r}: {problem.problem}") from problem
