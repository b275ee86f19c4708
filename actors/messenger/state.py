"""What adapters of messengers want kept: subscriptions, locks, lists, a cache and queues, in an agent's storage.

    shelf = runtime.agent(ChatState, shard_of("telegram:42:7"))
    lock = await shelf.acquire_lock("telegram:42:7", ttl_ms=30_000)
    if lock is not None and await shelf.extend_lock(lock, ttl_ms=30_000): ...

One rule for times everywhere: `ttl_ms` is None for ever, or a number above 0. What has expired is never seen again,
whatever is added to it; a document that nobody looks at any more is deleted when the agent next wakes.

A lock has a *fence*, a number that rises with each holder. `check_lock` in the storage of the same agent, or the fence itself handed to
whatever is written to, is what keeps out a holder whose time ran out without its notice.
"""

from __future__ import annotations

from typing import Any, Final, cast

from perdure.actors.agent.agent import Agent
from perdure.actors.agent.exposing import exposed
from perdure.actors.life.documents import Documents
from perdure.actors.life.steps import plain
from perdure.ledger import BadRequest, TooLarge, check_id, check_number, check_whole, pack
from perdure.ledger.storage.cabinet import SHELF, Transaction
from perdure.policies import Json, JsonObject

VALUE_BYTES_MAX: Final = 1_000_000
ITEMS_MAX: Final = 10_000
FENCE: Final = "fence"
THREAD_KEYS: Final = ("thread-state:", "channel-state:", "msg-history:")
USER_KEYS: Final = "transcripts:user:"
DEDUPE_KEYS: Final = "dedupe:"
DEFAULT: Final = "default"


def shard_of(thread_id: str) -> str:
    """The name of the agent that keeps what belongs to a thread: of its chat, the first two parts of its id."""
    parts = thread_id.split(":")
    return ":".join(parts[:2]) if len(parts) > 1 and all(parts[:2]) else DEFAULT


def key_shard(key: str) -> str | None:
    """The same for a key of the cache or of a list; None if the key does not say where it belongs.

    Keys by which messages are known again are spread like their threads: `dedupe:<adapter>:<thread>`.
    """
    for prefix in THREAD_KEYS:
        if key.startswith(prefix):
            return shard_of(key.removeprefix(prefix))
    if key.startswith(DEDUPE_KEYS):
        adapter, _, rest = key.removeprefix(DEDUPE_KEYS).partition(":")
        return shard_of(f"{adapter}:{rest.removeprefix(f'{adapter}:')}")
    return f"user:{key.removeprefix(USER_KEYS)}" if key.startswith(USER_KEYS) else None


class ChatState(Agent):
    """The state of one shard. Every method is one transaction, durable on return, and none waits in the middle of it."""

    # subscriptions

    @exposed(repeatable=True)
    async def subscribe(self, thread_id: str) -> None:
        """Remember that messages of the thread are of interest."""
        self._shelf.put("subscription", thread_id, True)

    @exposed(repeatable=True)
    async def unsubscribe(self, thread_id: str) -> None:
        """Forget it."""
        self._shelf.put("subscription", thread_id, None)

    @exposed(repeatable=True)
    async def is_subscribed(self, thread_id: str) -> bool:
        """Whether they are."""
        return self._shelf.get("subscription", thread_id) is not None

    # locks

    @exposed
    async def acquire_lock(self, thread_id: str, ttl_ms: float) -> JsonObject | None:
        """The lock of a thread, `{thread_id, token, fence, expires_at_ms}`; None if somebody has it."""
        until_ms = self._shelf.until_ms(_ttl(ttl_ms, may_be_none=False))
        with self.transaction():
            if self._shelf.get("lock", thread_id) is not None:
                return None
            fence = int(cast("int | None", self._shelf.get(FENCE, thread_id)) or 0) + 1
            lock: JsonObject = {
                "thread_id": thread_id,
                "token": self._shelf.token(),
                "fence": fence,
                "expires_at_ms": until_ms,
            }
            self._shelf.put(FENCE, thread_id, fence)
            self._shelf.put("lock", thread_id, lock, until_ms)
        return lock

    @exposed(repeatable=True)
    async def extend_lock(self, lock: JsonObject, ttl_ms: float) -> bool:
        """Keep a lock for longer; False if it was lost. Whoever works for long calls this again and again."""
        until_ms = self._shelf.until_ms(_ttl(ttl_ms, may_be_none=False))
        with self.transaction():
            if not self._holds(lock):
                return False
            self._shelf.put("lock", _thread_of(lock), {**lock, "expires_at_ms": until_ms}, until_ms)
        return True

    @exposed(repeatable=True)
    async def check_lock(self, lock: JsonObject) -> bool:
        """Whether the lock is still held by whoever shows it."""
        return self._holds(lock)

    def _holds(self, lock: JsonObject) -> bool:
        known = cast("JsonObject | None", self._shelf.get("lock", _thread_of(lock)))
        return known is not None and (known["token"], known["fence"]) == (lock.get("token"), lock.get("fence"))

    @exposed(repeatable=True)
    async def release_lock(self, lock: JsonObject) -> None:
        """Give a lock back; nothing happens if it was lost."""
        with self.transaction():
            if self._holds(lock):
                self._shelf.put("lock", _thread_of(lock), None)

    @exposed(repeatable=True)
    async def force_release_lock(self, thread_id: str) -> None:
        """Take a lock from whoever has it. The next holder's fence is higher."""
        self._shelf.put("lock", thread_id, None)

    # queues

    @exposed
    async def enqueue_entry(self, thread_id: str, entry: Json, max_size: int, ttl_ms: float | None = None) -> int:
        """Add to a thread's queue, of which only the newest so many stay; how many there are now."""
        return self._shelf.append("queue", thread_id, entry, _size(max_size), _ttl(ttl_ms), is_whole=False)

    @exposed
    async def dequeue_entry(self, thread_id: str) -> Json:
        """Take the oldest entry, or None."""
        with self.transaction():
            items = self._shelf.items("queue", thread_id)
            self._shelf.put_items("queue", thread_id, items[1:])
        return items[0][0] if items else None

    @exposed(repeatable=True)
    async def queue_depth(self, thread_id: str) -> int:
        """How many entries there are."""
        return len(self._shelf.items("queue", thread_id))

    # lists

    @exposed
    async def append_to_list(
        self, key: str, value: Json, max_length: int | None = None, ttl_ms: float | None = None
    ) -> None:
        """Add to a list, of which only the newest so many stay.

        A `ttl_ms` holds for the whole list from now on; without one, what held before goes on.
        """
        most = ITEMS_MAX if max_length is None else _size(max_length)
        self._shelf.append("list", key, value, most, _ttl(ttl_ms), is_whole=True)

    @exposed(repeatable=True)
    async def get_list(self, key: str) -> list[Json]:
        """The values, oldest first."""
        return [value for value, _ in self._shelf.items("list", key)]

    # a cache

    @exposed(repeatable=True)
    async def get(self, key: str) -> Json:
        """A value, or None."""
        return self._shelf.get("cache", key)

    @exposed(repeatable=True)
    async def set(self, key: str, value: Json, ttl_ms: float | None = None) -> None:
        """Keep a value. None is no value; `delete` takes one away."""
        self._shelf.put("cache", key, _value(value), self._shelf.until_ms(_ttl(ttl_ms)))

    @exposed
    async def set_if_not_exists(self, key: str, value: Json, ttl_ms: float | None = None) -> bool:
        """Keep a value if there is none; whether that was so."""
        with self.transaction():
            if self._shelf.get("cache", key) is not None:
                return False
            self._shelf.put("cache", key, _value(value), self._shelf.until_ms(_ttl(ttl_ms)))
        return True

    @exposed(repeatable=True)
    async def delete(self, key: str) -> None:
        """Take a value away."""
        self._shelf.put("cache", key, None)

    def _perdure_woken(self) -> None:
        """The agent has come up: what expired meanwhile is deleted."""
        self._shelf.sweep()

    @property
    def _shelf(self) -> Shelf:
        return Shelf(self)


class Shelf:
    """Documents that may expire, in the storage of one agent: `[expires_at_ms, value]`, and for lists `[[value, expires_at_ms], …]`."""

    def __init__(self, agent: Agent) -> None:
        self._tenant = agent._perdure
        self._documents: Documents[Any] = Documents(self._tenant, SHELF, body=_packed)

    def token(self) -> str:
        """A new secret name."""
        return self._tenant.dice.token()

    def until_ms(self, ttl_ms: float | None) -> float | None:
        """When something expires that is kept from now on."""
        return None if ttl_ms is None else self._tenant.now_ms() + ttl_ms

    def get(self, kind: str, key: str) -> Json:
        """A value that has not expired, or None."""
        until_ms, value = self._documents.get(_key(kind, key)) or (None, None)
        return value if self._lives(until_ms) else None

    def put(self, kind: str, key: str, value: Json, until_ms: float | None = None) -> None:
        """Keep a value, or with None nothing."""
        with self._tenant.storage.transaction() as transaction:
            self._put(transaction, _key(kind, key), None if value is None else [until_ms, value])

    def items(self, kind: str, key: str) -> list[tuple[Json, float | None]]:
        """The items of a list that have not expired, oldest first."""
        found = self._documents.get(_key(kind, key)) or []
        return [(value, until_ms) for value, until_ms in found if self._lives(until_ms)]

    def put_items(self, kind: str, key: str, items: list[tuple[Json, float | None]]) -> None:
        """Keep these items instead."""
        with self._tenant.storage.transaction() as transaction:
            self._put(transaction, _key(kind, key), [list(each) for each in items] or None)

    def append(self, kind: str, key: str, value: Json, most: int, ttl_ms: float | None, *, is_whole: bool) -> int:
        """Add one item. Those that expired are gone before, so that nothing comes back with it."""
        with self._tenant.storage.transaction():
            items = self.items(kind, key)
            until_ms = self.until_ms(ttl_ms)
            if is_whole and ttl_ms is None and items:
                until_ms = items[-1][1]
            kept = [(each, until_ms if is_whole else own) for each, own in items]
            kept = [*kept, (_value(value), until_ms)][-most:]
            self.put_items(kind, key, kept)
        return len(kept)

    def sweep(self) -> None:
        """Delete what has expired."""
        with self._tenant.storage.transaction() as transaction:
            for key, value in self._documents.all().items():
                kind = key.partition("\0")[0]
                instants = [each[1] for each in value] if kind in ("list", "queue") else [value[0]]
                if not any(map(self._lives, instants)):
                    self._documents.drop(transaction, key)

    def _put(self, transaction: Transaction, key: str, value: list[object] | None) -> None:
        if value is None:
            self._documents.drop(transaction, key)
        else:
            self._documents.put(transaction, key, value)

    def _lives(self, until_ms: float | None) -> bool:
        return until_ms is None or until_ms > self._tenant.now_ms()


def _key(kind: str, key: str) -> str:
    return f"{kind}\0{check_id('key', key, 1024)}"


def _packed(value: object) -> bytes:
    body = pack(value)
    if len(body) > ITEMS_MAX * 1000:
        raise TooLarge("value", f"has {len(body)} bytes together with its list; the limit is {ITEMS_MAX * 1000}")
    return body


def _value(value: Json) -> Json:
    if value is None:
        raise BadRequest("value", "None stands for no value, so it cannot be kept")
    size = len(plain("value", value))
    if size > VALUE_BYTES_MAX:
        raise TooLarge("value", f"has {size} bytes encoded; the limit is {VALUE_BYTES_MAX}")
    return value


def _thread_of(lock: JsonObject) -> str:
    return check_id("lock.thread_id", lock.get("thread_id"), 1024)


def _ttl(ttl_ms: float | None, *, may_be_none: bool = True) -> float | None:
    if ttl_ms is None and may_be_none:
        return None
    return check_number("ttl_ms", ttl_ms, unit="milliseconds", is_finite=True, above=True)


def _size(size: int) -> int:
    return check_whole("max_length", size, most=ITEMS_MAX)
