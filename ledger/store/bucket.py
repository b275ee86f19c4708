"""A bucket: the objects under a URL (`s3://…`, `gs://…`, `az://…`, or a directory), through obstore.

The library's own retries are off, because an answer that was lost must not become "it exists": what an answer means is for the rules of
`slots` to say. A request that may have taken effect is `NoAnswer`. Only what no repetition mends is an error, and only at the opening:
keys that expire while a supervisor is at work are renewed by somebody, and until then it waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import timedelta
from typing import Final, TypeVar

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from perdure.ledger.errors import BadRequest, LedgerError
from perdure.ledger.slots import Answer, Create, Delete, Get, Newest, NoAnswer, Request

T = TypeVar("T")

ANSWER_S: Final = 10.0
"""Seconds for one request; then it is asked again."""
_PAUSE_S, _PAUSE_MAX_S = 0.05, 2.0  # between two tries; it doubles
_AT_ONCE: Final = 8  # objects that are read at the same time
_WORDS_MAX: Final = 500  # of what a client says
_REFUSALS: Final = (
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)


class BucketRefused(LedgerError):
    """The bucket cannot be used: it is not there, the keys are not for it, or it does not keep its promises."""


class Bucket:
    """The objects of one prefix. Every method blocks; any thread may call.

    Args:
        url: of the prefix.
        pause: waits between two tries.

    Attributes:
        trouble: why the last request had no answer, in words; empty if it had one.
    """

    def __init__(self, url: str, *, pause: Callable[[float], None] = time.sleep) -> None:
        self.url = url
        self.trouble = ""
        self._store = _store_at(url)
        self._pause, self._silent = pause, 0
        self._readers = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="perdure-bucket")

    def run(self, procedure: Generator[Request, Answer, T], *, tries_max: float = math.inf) -> T:
        """Do what a procedure asks for, however long the bucket takes to answer. With `tries_max`, raises `BucketRefused` when that many
        requests in a row had no answer, and at once for what no repetition mends."""
        try:
            request = procedure.send(None)
            while True:
                answer = self._patiently(request, tries_max)
                request = procedure.throw(answer) if isinstance(answer, NoAnswer) else procedure.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result

    def _patiently(self, request: Request, tries_max: float) -> Answer | NoAnswer:
        """Ask once, and wait after a failure, longer after each in a row."""
        try:
            answer = self._ask(request)
        except NoAnswer as silence:
            self._silent += 1
            is_final = tries_max != math.inf and isinstance(silence.__cause__, _REFUSALS)
            if is_final or self._silent >= tries_max:
                raise BucketRefused(self.url, self.trouble, "check the address, the keys and the network") from silence
            self._pause(min(_PAUSE_S * 2 ** (self._silent - 1), _PAUSE_MAX_S))
            return silence
        self._silent, self.trouble = 0, ""
        return answer

    def _ask(self, request: Request) -> Answer:
        try:
            return self._answer(request)
        except Exception as problem:
            self.trouble = f"{type(problem).__name__}: {problem}".replace("\n", " ")[:_WORDS_MAX]
            raise NoAnswer(self.trouble) from problem

    def _answer(self, request: Request) -> Answer:
        match request:
            case Create(key, body):
                try:
                    obstore.put(self._store, key, body, mode="create", use_multipart=False)
                except AlreadyExistsError:  # also S3's 409, which says nothing of what is there
                    return False
                return True
            case Get((key,)):
                return [self._get(key)]
            case Get(keys):
                return list(self._readers.map(self._get, keys))
            case Newest(prefix):
                pages = obstore.list(self._store, prefix)
                return max((each["path"] for page in pages for each in page), default="")
            case Delete(keys):
                with suppress(FileNotFoundError):
                    obstore.delete(self._store, list(keys))
                return None

    def _get(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError:
            return None


def _store_at(url: str) -> ObjectStore:
    try:
        if url.startswith("memory:"):
            return MemoryStore()
        if url.startswith("file:"):
            return LocalStore.from_url(url, mkdir=True)
        return from_url(
            url,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
            client_options={"timeout": timedelta(seconds=ANSWER_S)},
        )
    except BaseException as problem:  # for an option that it does not know obstore raises what is no `Exception`
        if isinstance(problem, KeyboardInterrupt | SystemExit):
            raise
        raise BadRequest("data", f"{url!r} cannot be opened: {problem}") from problem
