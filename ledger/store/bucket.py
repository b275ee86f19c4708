"""A bucket: the objects under a URL (`s3://…`, `gs://…`, `az://…`, or a directory), through obstore.

The library's own retries are off, because an answer that was lost must not become "it exists": what an answer means is for the rules of
`slots` to say. What says nothing (a timeout, a closed connection, 409, 429, 5xx) is `NoReply`, and the same request is sent again after
a pause. What no repetition mends (no such bucket, keys that may not write, a clock that is off) is an error, and only at the opening:
while a supervisor is at work somebody mends it, and until then it waits.

A request that takes longer than usual is sent a second time, and whichever answers first counts. That is safe, because the network may
double any request, and the rules bear it: both copies of a create have the same body, so either may take effect; the one that finds the
other says "exists", upon which the object is read, and is ours. A copy that takes effect late, in a slot that was deleted meanwhile, is
what the two looks of a beginning are for.
"""

from __future__ import annotations

import math
import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Final, TypeVar
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, ObjectStore, S3Store, from_url

from perdure.ledger.bucket_url import KEYS, checked_url
from perdure.ledger.errors import BadRequest, LedgerError
from perdure.ledger.slots import Answer, Create, Delete, Get, Names, Newest, NoReply, Request

T = TypeVar("T")

ANSWER_S: Final = 10.0
"""Seconds for one request; then it is sent again."""
SIGNED: Final = timedelta(hours=1)
"""For how long a signed URL is good."""
_CONNECT_S: Final = 3.0
_PAUSE_S, _PAUSE_MAX_S = 0.05, 2.0  # between two tries; it doubles
_USUAL, _USUAL_MIN = 200, 20  # as many of the last requests tell what is usual, and fewer tell nothing
_USUAL_MIN_S: Final = 0.05
_LONG_S: Final = 1e6
READS: Final = 32
"""So many objects are read at the same time."""
_DELETED: Final[dict[type, int]] = {S3Store: 1_000, AzureStore: 100}
"""So many objects are deleted with one request; elsewhere one, and as many requests at the same time as there are readers."""
_THREADS: Final = 2 * READS  # they are made as they are needed: for reads at the same time, and for what is late
_WORDS_MAX: Final = 500  # of what a client says

_UNKNOWN: Final = "it does not know the keys", "{keys}"
_UNSIGNED: Final = "the keys are wrong or have expired, or the clock of this machine is off", "{keys}, and the clock"
_NO_KEYS: Final = "no keys were found, and this machine has no role that gives any", "{keys}"
_NO_NAME: Final = "no bucket may have that name", "correct the address"
_NO_BUCKET: Final = "there is no such bucket", "create it, or correct the address"
_REGION: Final = "it is in another region", "set AWS_REGION"
_FINAL: Final = {
    ">AuthorizationHeaderMalformed<": _REGION,
    ">ContainerBeingDeleted<": _NO_BUCKET,
    ">ContainerNotFound<": _NO_BUCKET,
    ">ExpiredToken<": ("the keys have expired", "renew them"),
    ">InvalidAccessKeyId<": _UNKNOWN,
    ">InvalidBucketName<": _NO_NAME,
    ">InvalidResourceName<": _NO_NAME,
    ">NoSuchBucket<": _NO_BUCKET,
    ">NotImplemented<": (
        "it does not know `If-None-Match: *`, without which two supervisors would both commit there",
        "use a store that does",
    ),
    ">RequestTimeTooSkewed<": (
        "the clock of this machine differs from the bucket's by more than it allows",
        "set the clock",
    ),
    ">ResourceNotFound<": _NO_BUCKET,  # as Azure says to who has no keys, too
    ">SignatureDoesNotMatch<": _UNKNOWN,
    "Server failed to authenticate the request": _UNSIGNED,  # Azure's one sentence for all of it
    "invalid_grant": _UNSIGNED,  # Google's
    "incorrectly configured region": _REGION,
    "//169.254.169.254/": _NO_KEYS,
    "//metadata.google.internal/": _NO_KEYS,
}
"""What no repetition mends, by what an answer or obstore says: what happened, and what to do."""
_DENIED: Final[dict[type[Request], str]] = {
    Create: "create objects: it is read-only for them",
    Newest: "list objects",
    Names: "list objects",
    Delete: "delete objects",
}
_RIGHTS: Final = {
    "s3": "allow s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket",
    "gs": "allow storage.objects.get, .create, .delete and .list, as roles/storage.objectUser does",
    "az": "give them the role Storage Blob Data Contributor",
}
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"),
    "gs": ("GOOGLE_BASE_URL",),
    "az": ("AZURE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", "AZURITE_BLOB_STORAGE_URL"),
}
_CONFLICTS: Final = (">ContainerBeingDeleted<", ">ConditionalRequestConflict<", ">OperationAborted<")

_SILENCES: Final = (NoReply, BaseError, OSError, ValueError)
"""What obstore raises. Other exceptions are bugs, which no waiting mends."""


class BucketRefused(LedgerError):
    """The bucket cannot be used: it is not there, the keys are not for it, or it does not keep its promises."""


# For an answer to requests of one kind: since when, and how many had none.
@dataclass
class _Wait:
    since_s: float
    tries: int = 0


class Bucket:
    """The objects of one prefix. Every method blocks; any thread may call.

    Args:
        url: of the prefix.
        pause: waits between two tries.
        now_s: a steady clock.
        answer_s: seconds for one request.

    Attributes:
        trouble: why the last request had no answer, in words; empty if it had one.
    """

    def __init__(
        self,
        url: str,
        *,
        pause: Callable[[float], None] = time.sleep,
        now_s: Callable[[], float] = time.monotonic,
        answer_s: float = ANSWER_S,
    ) -> None:
        self.url = url
        self._scheme = url.partition(":")[0].lower()
        self.trouble = ""
        self._store = _store_at(url, answer_s)
        self._pause, self._now_s = pause, now_s
        self._waits: dict[int, dict[type[Request], _Wait]] = {}  # by thread
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="perdure-bucket")
        # Each of them waits for one of the threads.
        self._readers = ThreadPoolExecutor(READS, thread_name_prefix="perdure-reads")
        self._took_s: dict[type[Request], deque[float]] = {Create: deque(maxlen=_USUAL), Get: deque(maxlen=_USUAL)}

    def run(self, procedure: Generator[Request, Answer, T], *, tries_max: float = math.inf) -> T:
        """Do what a procedure asks for, however long the bucket takes to answer. With `tries_max`, raises `BucketRefused` when that many
        requests of a kind in a row had no answer, and at once for what no repetition mends."""
        # By kind, because where no object can be created they can mostly be read, which is no answer to what waits.
        waits = self._waits[threading.get_ident()] = {}
        try:
            request = procedure.send(None)
            while True:
                answer = self._patiently(request, waits, tries_max)
                request = procedure.throw(answer) if isinstance(answer, NoReply) else procedure.send(answer)
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            self._waits.pop(threading.get_ident(), None)

    def at_once(self, jobs: Sequence[Callable[[], T]]) -> list[T]:
        """What these return that read each one object, many at the same time. All have ended when this ends, however it does."""
        if len(jobs) == 1:  # one that is done at once with others may read by this, too
            return [jobs[0]()]
        begun = [self._readers.submit(job) for job in jobs]
        try:
            return [each.result() for each in begun]
        finally:
            for each in begun:
                each.cancel()
            wait(begun)

    def unanswered_s(self) -> float:
        """How long the request has waited that waits longest for an answer, since it was sent first; 0 if none does."""
        since_s = [each.since_s for waits in list(self._waits.values()) for each in list(waits.values())]
        return self._now_s() - min(since_s) if since_s else 0.0

    def signed(self, keys: Sequence[str]) -> list[str]:
        """URLs by which whoever has no keys may read these objects for an hour. Empty if the store signs none, or has no keys for it."""
        if not keys or not isinstance(self._store, S3Store | GCSStore | AzureStore):
            return []
        try:
            urls = list(obstore.sign(self._store, "GET", list(keys), SIGNED))
        except BaseError as problem:
            self.trouble = _words(problem)
            return []
        if isinstance(self._store, AzureStore) and any("%" in urlsplit(url).path for url in urls):
            return []  # obstore signs the encoded path, and Azure asks for the decoded one
        return urls

    def puts_s(self, count: int) -> list[float]:
        """How many seconds each of so many objects of 1 KB takes to be created, one after the other. They are deleted again."""
        keys, took_s = [f"put/{number:06}" for number in range(count)], []
        for key in keys:
            began_s = self._now_s()
            self.run(_asked(Create(key, bytes(1_000))))
            took_s.append(self._now_s() - began_s)
        self.run(_asked(Delete(tuple(keys))))
        return took_s

    def _patiently(self, request: Request, waits: dict[type[Request], _Wait], tries_max: float) -> Answer | NoReply:
        # Wait after a failure, longer after each in a row.
        waiting = waits.setdefault(type(request), _Wait(self._now_s()))
        try:
            answer = self._ask(request)
        except NoReply as silence:
            waiting.tries += 1
            refusal = self._refusal(request, silence.__cause__)
            if tries_max != math.inf and refusal:
                raise BucketRefused(self.url, *refusal) from silence
            if waiting.tries >= tries_max:
                why = f"it does not answer: {self.trouble}"
                raise BucketRefused(self.url, why, "check the address, the keys and the network") from silence
            # By chance, so that those who were refused together do not come together again.
            self._pause(random.uniform(0.5, 1) * min(_PAUSE_S * 2 ** (waiting.tries - 1), _PAUSE_MAX_S))
            return silence
        del waits[type(request)]
        self.trouble = ""
        return answer

    def _ask(self, request: Request) -> Answer:
        try:
            return self._answer(request)
        except _SILENCES as problem:
            self.trouble = _words(problem)
            raise NoReply(self.trouble) from problem

    def _refusal(self, request: Request, problem: BaseException | None) -> tuple[str, str] | None:
        # What no repetition mends: what happened, and what to do.
        words = str(problem)
        known = next((told for each, told in _FINAL.items() if each in words), None)
        if known is None and isinstance(problem, UnauthenticatedError):
            known = _UNSIGNED
        if known is not None:
            return known[0], known[1].format(keys=KEYS.get(self._scheme, ""))
        if isinstance(problem, PermissionDeniedError) or ">AccessDenied<" in words:
            what = _DENIED.get(type(request), "read objects")
            return f"access is denied: the keys may not {what}", _RIGHTS.get(self._scheme, "")
        if isinstance(problem, InvalidPathError | NotSupportedError):
            return _words(problem), "correct the address"
        return None

    def _answer(self, request: Request) -> Answer:
        match request:
            case Create(key, body):
                return self._soonest(Create, partial(self._create, key, body))
            case Get(keys):
                return self.at_once([partial(self._soonest, Get, partial(self._get, key)) for key in keys])
            case Newest(prefix):
                # Where all objects count one is enough to know of, and there may be millions, of somebody else.
                pages = islice(obstore.list(self._store, prefix), None if prefix else 1)
                return max((each["path"] for page in pages for each in page), default="")
            case Names(prefix, last):
                return list(self._names(prefix, last))
            case Delete(keys):
                size = _DELETED.get(type(self._store), 1)
                parts = [keys[at : at + size] for at in range(0, len(keys), size)]
                for group in [parts] if size == 1 else [[part] for part in parts]:
                    self.at_once([partial(self._delete, part) for part in group])
                return None

    def _create(self, key: str, body: bytes) -> bool:
        try:
            obstore.put(self._store, key, body, mode="create", use_multipart=False)
        except AlreadyExistsError as problem:
            if any(each in str(problem) for each in _CONFLICTS):  # S3's 409: of two at once, and maybe nothing is there
                raise
            return False
        return True

    def _delete(self, keys: Sequence[str]) -> None:
        # Where a missing object is an error, obstore leaves the requests that come after it.
        try:
            obstore.delete(self._store, list(keys))
        except FileNotFoundError as problem:
            if self._refusal(Delete(tuple(keys)), problem):
                raise

    def _names(self, prefix: str, last: str) -> Iterator[str]:
        for page in obstore.list(self._store, prefix):
            found = [each["path"] for each in page if each["path"] <= last]
            yield from found
            if page and not found and not isinstance(self._store, LocalStore | MemoryStore):
                return  # they are in order, and there may be very many

    def _get(self, key: str) -> bytes | None:
        try:
            return bytes(obstore.get(self._store, key).bytes())
        except FileNotFoundError as problem:
            if self._refusal(Get((key,)), problem):  # the bucket is not there, so nothing is known of the object
                raise
            return None

    # ---------------------------------------------------------------- what is late is asked a second time

    def _soonest(self, kind: type[Request], call: Callable[[], T]) -> T:
        # What a call returns, or a second copy of it if that is sooner.
        took_s = self._took_s[kind]
        first = self._threads.submit(_timed, call, took_s)
        if wait([first], _usual_s(list(took_s))).not_done:
            return _sooner(first, self._threads.submit(_timed, call, took_s))
        return first.result()


def _asked(request: Request) -> Generator[Request, Answer, Answer]:
    return (yield request)


def _sooner(first: Future[T], second: Future[T]) -> T:
    # An error is no end, unless both have one.
    return next((each for each in as_completed([first, second]) if each.exception() is None), first).result()


def _usual_s(took_s: list[float]) -> float:
    # In how many seconds 95 of 100 have their answer.
    if len(took_s) < _USUAL_MIN:
        return _LONG_S
    return max(_USUAL_MIN_S, sorted(took_s)[len(took_s) * 95 // 100])


def _timed(call: Callable[[], T], took_s: deque[float]) -> T:
    began_s = time.monotonic()
    result = call()
    took_s.append(time.monotonic() - began_s)
    return result


def _words(problem: BaseException) -> str:
    # Pages of obstore's own sources follow the first line.
    return f"{type(problem).__name__}: {problem}".partition("\n")[0][:_WORDS_MAX]


def _store_at(url: str, answer_s: float) -> ObjectStore:
    if not url.startswith(("memory:", "file:")):
        _check_endpoint(checked_url(url))
    try:
        if url.startswith("memory:"):
            return MemoryStore()
        if url.startswith("file:"):
            return LocalStore.from_url(url, mkdir=True)
        return from_url(
            url,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
            client_options={
                "timeout": timedelta(seconds=answer_s),
                "connect_timeout": timedelta(seconds=min(answer_s, _CONNECT_S)),
                "allow_http": True,  # whoever names an endpoint that is http:// means it; these options hide AWS_ALLOW_HTTP
            },
        )
    except BaseException as problem:  # for an option that it does not know obstore raises what is no `Exception`
        if isinstance(problem, KeyboardInterrupt | SystemExit):
            raise
        keys = KEYS.get(url.partition(":")[0].lower())
        hint = f"; correct it, or {keys}" if keys else ""
        raise BadRequest("data", f"{url!r} cannot be opened: {_words(problem)}{hint}") from problem


def _check_endpoint(url: str) -> None:
    for name in _ENDPOINTS.get(url.partition(":")[0], ()):
        if "://" not in (said := os.environ.get(name, "://")):  # obstore would panic, and not before the first request
            raise BadRequest("data", f"the variable {name} is {said!r:.200}; write http:// or https:// before it")
