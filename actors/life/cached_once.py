"""A part that is made when it is first looked at, by whichever thread: once."""

from __future__ import annotations

from collections.abc import Callable
from threading import RLock
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")
_MAKING = RLock()  # not a plain lock: a part may look at other parts while it is made


class cached_once(Generic[T]):  # noqa: N801 - it stands where `property` would
    """Like `functools.cached_property`, which has had no lock since Python 3.12: two threads would make two."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, whole: None, owner: type) -> cached_once[T]: ...

    @overload
    def __get__(self, whole: object, owner: type) -> T: ...

    def __get__(self, whole: object, owner: type) -> cached_once[T] | T:
        if whole is None:
            return self
        kept = vars(whole)
        with _MAKING:
            if self._name not in kept:
                kept[self._name] = self._make(whole)
            part: T = kept[self._name]
            return part
