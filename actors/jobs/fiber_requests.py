"""Asking for fibers and waiting for them.

Requests are checked before anything is written, and accepted at most once under their id and their key. A fiber names a method, because
its body must be found again after a death. The same content is the same fiber, in whatever state it is; other content is a conflict.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any, TypedDict

from perdure.actors.code.author_call import name_of_method
from perdure.actors.code.signatures import check_options, check_takes, fiber_shape
from perdure.actors.jobs.fiber import Fiber, FiberInspection
from perdure.actors.jobs.fiber_context import CURRENT, FiberContext
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.life import Life
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import (
    AwaitedInsideHandler,
    BadRequest,
    ConflictingRequest,
    Kept,
    check_id,
    pack_value,
)
from perdure.ledger.storage.agent_storages import Transaction
from perdure.policies import INFINITY, UNSET, FiberResult, FiberRetry


class FiberOptions(TypedDict, total=False):
    """What may be said of a fiber beside its name, its method and its input.

    Attributes:
        retry: whether the body may be entered again, and how often.
        on_recovered: the method that is called after a death instead of `on_fiber_recovered`.
    """

    idempotency_key: str | None
    fiber_id: str | None
    metadata: Mapping[str, object] | None
    retry: FiberRetry | int | bool | None
    on_recovered: str | Callable[..., object] | None


# An empty `fiber.fiber_id` takes any id.
@dataclass(frozen=True, slots=True)
class FiberRequest:
    fiber: Fiber
    body: bytes | None


class FiberRequests:
    """Accepts the fibers of one agent."""

    def __init__(self, life: Life, store: FiberStore) -> None:
        self._life, self._store = life, store

    def checked(
        self,
        name: str,
        fn_name: str | Callable[..., object],
        input: object = None,
        *,
        idempotency_key: str | None = None,
        fiber_id: str | None = None,
        metadata: Mapping[str, object] | None = None,
        retry: FiberRetry | int | bool | None = None,
        on_recovered: str | Callable[..., object] | None = None,
    ) -> FiberRequest:
        """A request. Raises `BadRequest` naming the field that is wrong."""
        limits = self._life.limits
        for field, value in (("fiber_id", fiber_id), ("idempotency_key", idempotency_key)):
            if value is not None:
                check_id(field, value, limits.id_max)
        kind = type(self._life.agent)
        method = name_of_method(self._life.agent, "fn_name", fn_name)
        hook = "" if on_recovered is None else name_of_method(self._life.agent, "on_recovered", on_recovered)
        if hook:
            check_takes(kind, "on_recovered", hook, "fiber")
        body, digest = fiber_shape(kind, method).encode(input, limits.input_bytes_max)
        fiber = Fiber(
            fiber_id=fiber_id or "",
            number=0,
            name=check_id("name", name, limits.id_max),
            fn_name=method,
            digest=digest,
            idempotency_key=idempotency_key or "",
            metadata=self._metadata(metadata),
            input_bytes=0 if input is None else len(body),
            retry=_retry(retry),
            on_recovered=hook,
        )
        return FiberRequest(fiber, body if input is not None else None)

    def from_plain(self, given: Mapping[str, Any]) -> FiberRequest:
        asked = dict(given)
        for field in ("name", "fn_name"):
            if field not in asked:
                raise BadRequest(field, "is missing")
        check_options("start_fibers", asked, _ARGUMENTS)
        return self.checked(asked.pop("name"), asked.pop("fn_name"), asked.pop("input", None), **asked)

    def _metadata(self, given: Mapping[str, object] | None) -> Kept | None:
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise BadRequest("metadata", f"{given!r:.200} is no mapping")
        return Kept(pack_value("metadata", dict(given), self._life.limits.metadata_bytes_max))

    def accept(self, asked: Iterable[FiberRequest]) -> list[tuple[Fiber, bool]]:
        """Accept all of these in one transaction, or find those that exist. Returns each with whether it is new."""
        return self._store.change(lambda transaction: [self._accept(transaction, each) for each in asked])

    def _accept(self, transaction: Transaction, asked: FiberRequest) -> tuple[Fiber, bool]:
        known = self._known(asked.fiber)
        if known is not None:
            _refuse_conflict(known, asked.fiber)
            return known, False
        fiber = asked.fiber.but(
            fiber_id=asked.fiber.fiber_id or self._life.dice.token(),
            number=self._store.next_number(),
            created_at_ms=self._life.now_ms(),
            trace=carried_text(),
        )
        return self._store.put_new(transaction, fiber, asked.body), True

    def _known(self, asked: Fiber) -> Fiber | None:
        by_id = self._store.find(asked.fiber_id) if asked.fiber_id else None
        key = asked.idempotency_key
        if not key:
            return by_id
        key_id = self._store.id_of_key(key)
        if by_id is not None and by_id.fiber_id != key_id:
            raise ConflictingRequest("idempotency_key", f"fiber {by_id.fiber_id!r} was not started under key {key!r}")
        if key_id is not None and asked.fiber_id not in ("", key_id):
            raise ConflictingRequest("fiber_id", f"the key {key!r} is of fiber {key_id!r}, not {asked.fiber_id!r}")
        return None if key_id is None else self._store.find(key_id)

    def named(self, asked: FiberRequest) -> FiberRequest:
        # Code that is entered again after a death finds the same fiber.
        fiber, activity = asked.fiber, ACTIVITY.get()
        if fiber.fiber_id or fiber.idempotency_key or activity is None:
            return asked
        derived = activity.derive(f"fiber {self._life.agent_id} {fiber.name} {fiber.fn_name}", fiber.digest)
        return FiberRequest(fiber.but(fiber_id=derived), asked.body)


_ARGUMENTS = set(inspect.signature(FiberRequests.checked).parameters) - {"self"}


def _retry(given: object) -> list[int | None] | None:
    try:
        policy = FiberRetry.of(given)
    except ValueError as problem:
        raise BadRequest("retry", str(problem)) from None
    return None if policy is None else list(astuple(policy))


def _refuse_conflict(known: Fiber, asked: Fiber) -> None:
    for field, what in (("name", "name"), ("fn_name", "fn_name"), ("digest", "input")):
        if getattr(known, field) != getattr(asked, field):
            said = "another input" if what == "input" else f"{what} {getattr(known, field)!r}"
            words = f"fiber {known.fiber_id!r} was started with {said}; use another id or key, or repeat the request"
            raise ConflictingRequest(what, words)


def checked_result(life: Life, result: object) -> FiberResult | None:
    """The verdict of a hook, a body or a person. Raises `BadRequest` or `TooLarge` for anything else."""
    try:
        given = FiberResult.of(result)
    except ValueError as problem:
        raise BadRequest("result", str(problem)) from problem
    if given is None:
        return None
    limits = life.limits
    for field, most in (("snapshot", limits.stash_bytes_max), ("metadata", limits.metadata_bytes_max)):
        value = getattr(given, field)
        if value is not UNSET:
            pack_value(field, value, most)
    return given


class FiberWaiters:
    """Waits for fibers, in one life of their agent. The row is waited for, through recoveries and cancellations.

    Args:
        at_work: the code that is at fibers now.
        give_place: gives places to fibers that are due, or takes them back.
    """

    def __init__(
        self, life: Life, store: FiberStore, at_work: Mapping[str, FiberContext], give_place: Callable[[int], None]
    ) -> None:
        self._life, self._store, self._at_work, self._give_place = life, store, at_work, give_place
        self._waiting: dict[str, list[asyncio.Future[None]]] = {}

    def wake(self, fiber_id: str) -> None:
        for waiter in self._waiting.pop(fiber_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def settled(self, fiber_id: str, timeout_ms: float | None, *, accepted: bool = False) -> FiberInspection:
        """Wait until the fiber is over, or for so long, and show it.

        A fiber that waits for another lends its place. So the others can begin, however many wait.
        """
        if self._life.transaction is not None:
            words = "nobody can wait inside a transaction or a handler: the fiber begins with its commit"
            raise AwaitedInsideHandler("wait_for_completion", words)
        mine = CURRENT.get()
        is_lending = mine is not None and mine.is_managed and self._at_work.get(mine.id) is mine
        if is_lending:
            self._give_place(1)
        try:
            async with asyncio.timeout(None if timeout_ms is None or timeout_ms == INFINITY else timeout_ms / 1000):
                while not self._found(fiber_id).is_settled:
                    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                    self._waiting.setdefault(fiber_id, []).append(waiter)
                    await waiter
        except TimeoutError:
            pass
        finally:
            if is_lending:
                self._give_place(-1)
        return self._store.inspected(self._found(fiber_id), accepted=accepted)

    def _found(self, fiber_id: str) -> Fiber:
        fiber = self._store.find(fiber_id)
        if fiber is None:
            raise BadRequest("fiber_id", f"{fiber_id!r} is no fiber of {self._life.agent_id}, or was deleted")
        return fiber
