"""The storages of agents whose lives are about to begin on a host: what the supervisor says of them, and what is read of them elsewhere.

A large storage is read from the bucket into files, beside the loop: by plain requests, several at the same time, whose URLs the supervisor
has signed. What the supervisor says to its agent meanwhile waits, in its order, so the agent begins its life with its storage. If it cannot
be read (the URLs have expired, the objects were written anew since, the bucket is out of reach from here), the supervisor is asked again:
first where it is by now, and then to carry it itself. A storage that it cannot read either is lost, which it says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from http import HTTPStatus
from pathlib import Path
from threading import Event
from typing import Final

import httpx

from perdure.actors.life.host_services import HostServices
from perdure.actors.link.messages import HoldStorage, Message, Start, Stop, StorageUnread, Wake
from perdure.actors.tasks import Tasks
from perdure.actors.threads import lent
from perdure.ledger import (
    FetchedStorage,
    FilePatch,
    Patch,
    SignedBlock,
    SignedStorage,
    StorageImage,
    image_after,
    signed_of,
    write_at,
)

AT_ONCE: Final = 3  # storages that are read at the same time
log = logging.getLogger("perdure.host")


# What was said to the agent of a storage that is being read waits in `line`.
class _Arrival:
    def __init__(self) -> None:
        self.line: list[Message] = []
        self.is_unread = False  # it could not be read once
        self.given_up = Event()  # what reads it needs not go on

    def begins_after(self, incarnation: int) -> bool:
        return any(isinstance(each, Start | Wake) and each.incarnation > incarnation for each in self.line)


class ArrivingStorages:
    """Those of one host.

    Args:
        receive: does what the supervisor says.
    """

    def __init__(self, services: HostServices, tasks: Tasks, receive: Callable[[Message], None]) -> None:
        self._services, self._tasks, self._receive = services, tasks, receive
        self._arrivals: dict[str, _Arrival] = {}
        self._parts: dict[str, list[FilePatch]] = {}  # of what is said in several messages
        self._room = asyncio.Semaphore(AT_ONCE)

    def begin_session(self) -> None:
        # What was said in part is said anew.
        self._parts.clear()

    def hold(self, said: HoldStorage) -> None:
        parts = [*self._parts.pop(said.agent_id, ()), *(FilePatch(*each) for each in said.parts)]
        if said.more:
            self._parts[said.agent_id] = parts
        elif said.base is not None:
            arrival = self._arrivals.setdefault(said.agent_id, _Arrival())
            arrival.given_up.set()  # what an earlier message has named
            arrival.given_up = Event()
            self._tasks.start(self._read(said.agent_id, arrival, signed_of(said.base, parts)))
        else:
            image = image_after(None, [Patch(said.agent_id, 0, said.number, parts)]) if said.number else None
            self._arrived(said.agent_id, image, said.lost)

    def defers(self, message: Message) -> bool:
        # A command waits for the storage of its agent. One to stop ends the wait.
        if not self._arrivals:
            return False
        agent_id = getattr(message, "agent_id", "")
        arrival = self._arrivals.get(agent_id)
        if arrival is None or isinstance(message, HoldStorage):
            return False
        if not isinstance(message, Stop):
            arrival.line.append(message)
        elif arrival.begins_after(message.incarnation):
            return False
        else:
            self._end(agent_id, [message, *arrival.line])
        return True

    async def _read(self, agent_id: str, arrival: _Arrival, storage: SignedStorage) -> None:
        given_up = arrival.given_up
        try:
            async with self._room:
                read = partial(read_storage, storage, self._services.carried.new_place(), given_up)
                found = await self._services.world.threads.run(partial(_in_no_slot, read))
        except Unread as problem:
            if not given_up.is_set():
                log.warning("the storage of %s could not be read from the bucket: %s", agent_id, problem)
                inline = arrival.is_unread or not problem.may_have_moved
                arrival.is_unread = True
                self._services.peer.push(StorageUnread(agent_id, inline))
            return
        if given_up.is_set():
            found.discard()
        else:
            self._arrived(agent_id, found)

    def _arrived(self, agent_id: str, image: StorageImage | FetchedStorage | None, lost: str = "") -> None:
        self._services.carried.hold(agent_id, image, lost)
        arrival = self._arrivals.get(agent_id)
        if arrival is not None:
            self._end(agent_id, arrival.line)

    def _end(self, agent_id: str, line: list[Message]) -> None:
        self._arrivals.pop(agent_id).given_up.set()
        for message in line:
            self._receive(message)


def _in_no_slot(read: Callable[[], FetchedStorage]) -> FetchedStorage:
    with lent():  # it waits for the network the most
        return read()


# ---------------------------------------------------------------- reading


_READS: Final = 4  # requests that are under way for one storage
PATIENCE_S: Final = 10.0  # after so long without an answer the supervisor is asked
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


# Reads one storage, on several threads. A request that has no answer is sent again after a pause. One that is refused is not: the URL has
# expired, or what it names was deleted.
class _Reader:
    def __init__(self, storage: SignedStorage, given_up: Event, client: httpx.Client, files: dict[str, int]) -> None:
        self._storage, self._given_up, self._client, self._files = storage, given_up, client, files
        self._has_failed = Event()

    def read_all(self) -> None:
        with ThreadPoolExecutor(_READS, thread_name_prefix=_THREADS) as threads:
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
