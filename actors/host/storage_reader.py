"""Reading a storage from the bucket by plain requests, whose URLs are signed: into files, many blocks at the same time.

A request that has no answer is sent again after a pause. One that is refused is not: the URL has expired, or what it names was deleted.
"""

from __future__ import annotations

import logging
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http import HTTPStatus
from pathlib import Path
from threading import Event
from typing import Final

import httpx

from perdure.ledger import FetchedStorage, SignedBlock, SignedStorage, write_at

READS: Final = 4
"""So many requests are under way for one storage."""
PATIENCE_S: Final = 10.0
"""After so many seconds without an answer the supervisor is asked."""
_THREADS: Final = "perdure-storage"
_ANSWER_S: Final = 10.0
_PAUSE_S, _PAUSE_MAX_S = 0.05, 1.0  # between two tries; it doubles
_AGAIN: Final = {HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS}


def _is_told(record: logging.LogRecord) -> bool:
    # httpx logs each URL, and whoever has a signed one can read what it names
    return not (record.threadName or "").startswith(_THREADS)


logging.getLogger("httpx").addFilter(_is_told)


class Unread(Exception):
    """The storage could not be read.

    Attributes:
        may_have_moved: other URLs may help.
    """

    def __init__(self, why: str, *, may_have_moved: bool = False) -> None:
        super().__init__(why)
        self.may_have_moved = may_have_moved


class _Reader:
    """What reads one storage, on several threads."""

    def __init__(self, storage: SignedStorage, given_up: Event, client: httpx.Client, files: dict[str, int]) -> None:
        self._storage, self._given_up, self._client, self._files = storage, given_up, client, files
        self._has_failed = Event()

    def read_all(self) -> None:
        with ThreadPoolExecutor(READS, thread_name_prefix=_THREADS) as threads:
            begun = [threads.submit(self._read, blocks) for blocks in self._storage.ranges()]
            try:
                for each in begun:
                    each.result()
            finally:
                self._has_failed.set()  # or all have ended
                for each in begun:
                    each.cancel()

    def _read(self, blocks: list[SignedBlock]) -> None:
        first = blocks[0]
        content = self._asked(self._storage.urls[first.url], first.start, sum(each.size for each in blocks))
        for block in blocks:
            at = block.start - first.start
            body = content[at : at + block.size]
            if not block.fits(body):
                raise Unread("its bytes do not fit their digest")
            write_at(self._files[block.file], body, block.at)

    def _asked(self, url: str, start: int, size: int) -> bytes:
        tries, until_s = 0, time.monotonic() + PATIENCE_S
        while not (self._given_up.is_set() or self._has_failed.is_set()):
            try:
                answer = self._client.get(url, headers={"Range": f"bytes={start}-{start + size - 1}"})
            except httpx.TransportError as problem:
                why = f"{type(problem).__name__}: {problem}"
            else:
                if answer.status_code == HTTPStatus.PARTIAL_CONTENT:
                    return answer.content
                if answer.status_code == HTTPStatus.OK:  # of a server that knows no ranges
                    return answer.content[start : start + size]
                why = f"the answer is {answer.status_code}"
                if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR and answer.status_code not in _AGAIN:
                    raise Unread(why, may_have_moved=True)
            if time.monotonic() > until_s:
                raise Unread(why)
            tries += 1
            self._has_failed.wait(random.uniform(0.5, 1) * min(_PAUSE_S * 2 ** (tries - 1), _PAUSE_MAX_S))
        raise Unread("it is not needed any more")


def read_storage(storage: SignedStorage, place: Path, given_up: Event) -> FetchedStorage:
    """Read a storage into files, whose names begin with that of a place. Raises `Unread`, and leaves no file then."""
    names = dict.fromkeys([*storage.sizes, *(part.file for part in storage.tail)])
    made = FetchedStorage(storage.number, {name: place.with_name(place.name + name) for name in names})
    try:
        with ExitStack() as stack:
            opened = {name: stack.enter_context(path.open("wb")) for name, path in made.files.items()}
            files = {name: file.fileno() for name, file in opened.items()}
            client = stack.enter_context(httpx.Client(timeout=_ANSWER_S, follow_redirects=True))
            _Reader(storage, given_up, client, files).read_all()
            for name, size in storage.sizes.items():
                os.ftruncate(files[name], size)
            for part in storage.tail:
                write_at(files[part.file], part.content, part.start)
                os.ftruncate(files[part.file], part.size)
    except OSError as problem:
        made.discard()
        raise Unread(f"{type(problem).__name__}: {problem}") from problem
    except BaseException:
        made.discard()
        raise
    return made.whole()
