"""Asking for a fiber: checked before anything is written, and accepted at most once under its id and its key.

A fiber names a method, for its body must be found again after a death. Asked for again with the same content it is the same fiber, in
whatever state it is; with other content that is a conflict.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

from perdure.actors.code.schema import fiber_shape
from perdure.actors.jobs.fiber import Fiber
from perdure.actors.jobs.fiber_store import FiberStore
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.life import Life
from perdure.actors.life.steps import plain
from perdure.ledger import BadRequest, ConflictingRequest, TooLarge, check_id, digest_of
from perdure.ledger.storage.cabinet import Transaction
from perdure.policies import FiberRetry


@dataclass(frozen=True, slots=True)
class FiberRequest:
    """A checked request. `fiber.fiber_id` is empty if any id will do."""

    fiber: Fiber
    body: bytes | None


class FiberRequests:
    """What is asked of the fibers of one agent."""

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
        """A request, or `BadRequest` naming what is wrong with it."""
        limits = self._life.limits
        for field, value in (("fiber_id", fiber_id), ("idempotency_key", idempotency_key)):
            if value is not None:
                check_id(field, value, limits.id_max)
        method = self._method("fn_name", fn_name)
        body = fiber_shape(getattr(type(self._life.agent), method))[1].encode("input", input, limits.input_bytes_max)
        fiber = Fiber(
            fiber_id=fiber_id or "",
            number=0,
            name=check_id("name", name, limits.id_max),
            fn_name=method,
            digest=digest_of(body),
            idempotency_key=idempotency_key or "",
            metadata=self._metadata(metadata),
            input_bytes=0 if input is None else len(body),
            retry=_retry(retry),
            on_recovered="" if on_recovered is None else self._method("on_recovered", on_recovered),
        )
        return FiberRequest(fiber, body if input is not None else None)

    def from_plain(self, given: Mapping[str, Any]) -> FiberRequest:
        """One request of many."""
        asked = dict(given)
        for field in ("name", "fn_name"):
            if field not in asked:
                raise BadRequest(field, "is missing")
        unknown = asked.keys() - _ARGUMENTS
        if unknown:
            raise BadRequest(min(unknown), "is no argument of start_fibers")
        return self.checked(asked.pop("name"), asked.pop("fn_name"), asked.pop("input", None), **asked)

    def _method(self, field: str, given: str | Callable[..., object]) -> str:
        """The name of a method of the agent, for a function cannot be found again after a death."""
        name = getattr(given, "__name__", "") if callable(given) else given
        kind = type(self._life.agent)
        if not isinstance(name, str) or name.startswith("__") or not callable(getattr(kind, name, None)):
            raise BadRequest(field, f"{kind.__name__} has no method {name or given!r}")
        if callable(given) and getattr(given, "__self__", None) is not self._life.agent:
            raise BadRequest(
                field, f"{given!r} is no method of this agent, so it could not be found again after a death"
            )
        return name

    def _metadata(self, given: Mapping[str, object] | None) -> dict[str, object] | None:
        if given is None:
            return None
        if not isinstance(given, Mapping):
            raise BadRequest("metadata", f"{given!r:.200} is no mapping")
        size, most = len(plain("metadata", dict(given))), self._life.limits.metadata_bytes_max
        if size > most:
            raise TooLarge("metadata", f"has {size} bytes; the limit metadata_bytes_max is {most}")
        return dict(given)

    def accept(self, asked: Iterable[FiberRequest]) -> list[tuple[Fiber, bool]]:
        """Accept all of these in one transaction, or join those that exist. With each, whether it is new."""
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
        )
        return self._store.put_new(transaction, fiber, asked.body), True

    def _known(self, asked: Fiber) -> Fiber | None:
        store = self._store
        by_id = store.find(asked.fiber_id) if asked.fiber_id else None
        if not asked.idempotency_key:
            return by_id
        key_id = store.id_of_key(asked.idempotency_key)
        if by_id is not None and by_id.fiber_id != key_id:
            raise ConflictingRequest(
                "idempotency_key", f"fiber {by_id.fiber_id!r} was not started under the key {asked.idempotency_key!r}"
            )
        if key_id is not None and asked.fiber_id not in ("", key_id):
            raise ConflictingRequest(
                "fiber_id", f"the key {asked.idempotency_key!r} stands for the fiber {key_id!r}, not {asked.fiber_id!r}"
            )
        return None if key_id is None else store.find(key_id)

    def named(self, asked: FiberRequest) -> FiberRequest:
        """The same with an id: code that is entered again after a death asks for the same fiber, though it gave no name to it."""
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
    """The same id or key with other content is somebody's mistake."""
    for field, what in (("name", "name"), ("fn_name", "fn_name"), ("digest", "input")):
        if getattr(known, field) != getattr(asked, field):
            said = "another input" if what == "input" else f"{what} {getattr(known, field)!r}"
            raise ConflictingRequest(
                what, f"fiber {known.fiber_id!r} was started with {said}; use another id or key, or repeat the request"
            )
