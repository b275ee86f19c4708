"""State for adapters of messengers: subscriptions, locks, queues, lists and a cache, in an agent's storage.

    shelf = runtime.agent(ChatState, shard_of("telegram:42:7"))
    lock = await shelf.acquire_lock("telegram:42:7", ttl_ms=30_000)
    if lock is not None and await shelf.extend_lock(lock, ttl_ms=30_000): ...

`ttl_ms` is a number above 0, or None for ever. What has expired is never seen again; it is deleted when the agent next wakes.

A lock has a *fence*, a number that rises with each holder. Hand it to what you write to, or call `check_lock`: that keeps out a holder
whose time ran out unnoticed.
"""

from __future__ import annotations

from typing import Any, Final, cast

from perdure.actors.agent.agent import Agent
from perdure.actors.agent.exposing import exposed
from perdure.actors.life.documents import Documents
from perdure.ledger import BadRequest, check_id, check_number, check_whole, pack_value
from perdure.ledger.storage.records import SHELF
from perdure.policies import Json, JsonObject

VALUE_BYTES_MAX: Final = 1_000_000
ITEMS_MAX: Final = 10_000
LIST_BYTES_MAX: Final = 10_000_000
FENCE: Final = "fence"
THREAD_KEYS: Final = ("thread-state:", "channel-state:", "msg-history:")
USER_KEYS: Final = "transcripts:user:"
DEDUPE_KEYS: Final = "dedupe:"
DEFAULT: Final = "default"


def shard_of(thread_id: str) -> str:
    # The agent that keeps the state of a thread is named by the first two parts of the thread's id.
    parts = thread_id.split(":")
    return ":".join(parts[:2]) if len(parts) > 1 and all(parts[:2]) else DEFAULT


def key_shard(key: str) -> str | None:
    # None if the key names no thread. `dedupe:<adapter>:<thread>` goes with its thread.
    for prefix in THREAD_KEYS:
        if key.startswith(prefix):
            return shard_of(key.removeprefix(prefix))
    if key.startswith(DEDUPE_KEYS):
        adapter, _, rest = key.removeprefix(DEDUPE_KEYS).partition(":")
        return shard_of(f"{adapter}:{rest.removeprefix(f'{adapter}:')}")
    return f"user:{key.removeprefix(USER_KEYS)}" if key.startswith(USER_KEYS) else None


class ChatState(Agent):
    """The state of one shard. Every method is one transaction, durable on return."""

    # subscriptions

    @exposed(repeatable=True)
    async def subscribe(self, thread_id: str) -> None:
        """Subscribe to a thread."""
        self._put("subscription", thread_id, True)

    @exposed(repeatable=True)
    async def unsubscribe(self, thread_id: str) -> None:
        """Unsubscribe from a thread."""
        self._put("subscription", thread_id, None)

    @exposed(repeatable=True)
    async def is_subscribed(self, thread_id: str) -> bool:
        """Whether the thread is subscribed to."""
        return self._get("subscription", thread_id) is not None

    # locks

    @exposed
    async def acquire_lock(self, thread_id: str, ttl_ms: float) -> JsonObject | None:
        """The lock of a thread, `{thread_id, token, fence, expires_at_ms}`; None if somebody has it."""
        until_ms = self._until_ms(ttl_ms, may_be_none=False)
        with self.transaction():
            if self._get("lock", thread_id) is not None:
                return None
            fence = int(cast("int | None", self._get(FENCE, thread_id)) or 0) + 1
            token = self._perdure.dice.token()
            lock: JsonObject = {"thread_id": thread_id, "token": token, "fence": fence, "expires_at_ms": until_ms}
            self._put(FENCE, thread_id, fence)
            self._put("lock", thread_id, lock, until_ms)
        return lock

    @exposed(repeatable=True)
    async def extend_lock(self, lock: JsonObject, ttl_ms: float) -> bool:
        """Keep a lock for longer. Returns False if it was lost."""
        until_ms = self._until_ms(ttl_ms, may_be_none=False)
        with self.transaction():
            if not self._holds(lock):
                return False
            self._put("lock", _thread_of(lock), {**lock, "expires_at_ms": until_ms}, until_ms)
        return True

    @exposed(repeatable=True)
    async def check_lock(self, lock: JsonObject) -> bool:
        """Whether the lock is still held."""
        return self._holds(lock)

    def _holds(self, lock: JsonObject) -> bool:
        known = cast("JsonObject | None", self._get("lock", _thread_of(lock)))
        return known is not None and (known["token"], known["fence"]) == (lock.get("token"), lock.get("fence"))

    @exposed(repeatable=True)
    async def release_lock(self, lock: JsonObject) -> None:
        """Release a lock, unless it was lost."""
        with self.transaction():
            if self._holds(lock):
                self._put("lock", _thread_of(lock), None)

    @exposed(repeatable=True)
    async def force_release_lock(self, thread_id: str) -> None:
        """Release a lock whoever holds it. The next holder's fence is higher."""
        self._put("lock", thread_id, None)

    # queues

    @exposed
    async def enqueue_entry(self, thread_id: str, entry: Json, max_size: int, ttl_ms: float | None = None) -> int:
        """Add to a thread's queue, which keeps the newest `max_size` entries. Returns its length."""
        return self._append("queue", thread_id, entry, max_size, ttl_ms, is_whole=False)

    @exposed
    async def dequeue_entry(self, thread_id: str) -> Json:
        """Remove and return the oldest entry, or None."""
        with self.transaction():
            items = self._items("queue", thread_id)
            self._put_items("queue", thread_id, items[1:])
        return items[0][0] if items else None

    @exposed(repeatable=True)
    async def queue_depth(self, thread_id: str) -> int:
        """The length of a queue."""
        return len(self._items("queue", thread_id))

    # lists

    @exposed
    async def append_to_list(
        self, key: str, value: Json, max_length: int | None = None, ttl_ms: float | None = None
    ) -> None:
        """Add to a list, which keeps the newest `max_length` values. `ttl_ms` is for the whole list; None keeps the one before."""
        most = ITEMS_MAX if max_length is None else max_length
        self._append("list", key, value, most, ttl_ms, is_whole=True)

    @exposed(repeatable=True)
    async def get_list(self, key: str) -> list[Json]:
        """The values of a list, oldest first."""
        return [value for value, _ in self._items("list", key)]

    # a cache

    @exposed(repeatable=True)
    async def get(self, key: str) -> Json:
        """A value, or None."""
        return self._get("cache", key)

    @exposed(repeatable=True)
    async def set(self, key: str, value: Json, ttl_ms: float | None = None) -> None:
        """Keep a value, which is not None."""
        self._put("cache", key, _value(value), self._until_ms(ttl_ms))

    @exposed
    async def set_if_not_exists(self, key: str, value: Json, ttl_ms: float | None = None) -> bool:
        """Keep a value if there is none. Returns whether it was kept."""
        with self.transaction():
            if self._get("cache", key) is not None:
                return False
            self._put("cache", key, _value(value), self._until_ms(ttl_ms))
        return True

    @exposed(repeatable=True)
    async def delete(self, key: str) -> None:
        """Delete a value."""
        self._put("cache", key, None)

    # documents that may expire: `[expires_at_ms, value]`, and for lists `[[value, expires_at_ms], …]`

    def _perdure_woken(self) -> None:
        documents = self._documents  # what expired meanwhile is deleted
        with self.transaction(), self._perdure.storage.transaction() as transaction:
            for key, value in documents.all().items():
                kind = key.partition("\0")[0]
                instants = [each[1] for each in value] if kind in ("list", "queue") else [value[0]]
                if not any(map(self._lives, instants)):
                    documents.drop(transaction, key)

    @property
    def _documents(self) -> Documents[Any]:
        return Documents(self._perdure, SHELF, body=lambda value: pack_value("value", value, LIST_BYTES_MAX))

    def _lives(self, until_ms: float | None) -> bool:
        return until_ms is None or until_ms > self._perdure.now_ms()

    def _until_ms(self, ttl_ms: float | None, *, may_be_none: bool = True) -> float | None:
        if ttl_ms is None and may_be_none:
            return None
        return self._perdure.now_ms() + check_number("ttl_ms", ttl_ms, unit="milliseconds", is_finite=True, above=True)

    def _get(self, kind: str, key: str) -> Json:
        until_ms, value = self._documents.get(_key(kind, key)) or (None, None)
        return value if self._lives(until_ms) else None

    def _put(self, kind: str, key: str, value: Json, until_ms: float | None = None) -> None:
        # None deletes the value.
        self._write(_key(kind, key), None if value is None else [until_ms, value])

    def _write(self, key: str, document: list[object] | None) -> None:
        with self._perdure.storage.transaction() as transaction:
            if document is None:
                self._documents.drop(transaction, key)
            else:
                self._documents.put(transaction, key, document)

    def _items(self, kind: str, key: str) -> list[tuple[Json, float | None]]:
        found = self._documents.get(_key(kind, key)) or []
        return [(value, until_ms) for value, until_ms in found if self._lives(until_ms)]

    def _put_items(self, kind: str, key: str, items: list[tuple[Json, float | None]]) -> None:
        self._write(_key(kind, key), [list(each) for each in items] or None)

    def _append(self, kind: str, key: str, value: Json, most: int, ttl_ms: float | None, *, is_whole: bool) -> int:
        # Those that expired are deleted first, so that a new time does not bring them back.
        with self.transaction():
            items, until_ms = self._items(kind, key), self._until_ms(ttl_ms)
            if is_whole and ttl_ms is None and items:
                until_ms = items[-1][1]
            kept = [(each, until_ms if is_whole else own) for each, own in items]
            kept = [*kept, (_value(value), until_ms)][-check_whole("max_length", most, most=ITEMS_MAX) :]
            self._put_items(kind, key, kept)
        return len(kept)


def _key(kind: str, key: str) -> str:
    return f"{kind}\0{check_id('key', key, 1024)}"


def _value(value: Json) -> Json:
    if value is None:
        raise BadRequest("value", "None stands for no value, so it cannot be kept")
    pack_value("value", value, VALUE_BYTES_MAX)
    return value


def _thread_of(lock: JsonObject) -> str:
    return check_id("lock.thread_id", lock.get("thread_id"), 1024)
