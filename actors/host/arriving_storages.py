"""The storages of agents whose lives are about to begin on a host: what the supervisor says of them, and what is read of them elsewhere.

A large storage is read from the bucket, by URLs that the supervisor has signed, beside the loop. What the supervisor says to its agent
meanwhile waits, in its order, so the agent begins its life with its storage. If it cannot be read (the URLs have expired, the objects were
written anew since, the bucket is out of reach from here), the supervisor is asked again: first where it is by now, and then to carry it
itself. A storage that it cannot read either is lost, which it says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from threading import Event
from typing import Final

from perdure.actors.host.storage_reader import Unread, read_storage
from perdure.actors.life.host_services import HostServices
from perdure.actors.link.messages import HoldStorage, Message, Start, Stop, StorageUnread, Wake
from perdure.actors.tasks import Tasks
from perdure.actors.threads import lent
from perdure.ledger import FetchedStorage, FilePatch, Patch, SignedStorage, StorageImage, image_after, signed_of

AT_ONCE: Final = 3
"""So many storages are read at the same time."""
log = logging.getLogger("perdure.host")


class _Arrival:
    """A storage that is being read. What was said to its agent waits in `line`."""

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
        """What was said in part is said anew."""
        self._parts.clear()

    def hold(self, said: HoldStorage) -> None:
        """Take what the storage of an agent is, or why it is lost."""
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
        """Whether a command waits for the storage of its agent. One to stop ends the wait."""
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
