"""What the supervisor carries where the machines share no directory: what hosts commit rides with the facts that speak of it, and a life
begins with what is durable. The code directory rides with it as if it were a storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from perdure.actors.link.messages import CodeFiles, CopyStorage
from perdure.actors.supervisor.sessions import PeerSession
from perdure.ledger import (
    CODE,
    MAIN,
    PACKAGE,
    AgentBeingDeleted,
    BadRequest,
    CarryingStore,
    Patch,
    Payload,
    Row,
    SignedStorage,
    StaleIncarnation,
    StorageImage,
    View,
    digest_of,
    is_cleared,
    is_of_copy,
    patch_of,
    put_code,
    whole,
)


class StorageCarrier:
    """The storages in one supervisor life.

    A patch counts if it comes from the last life that the agent was given, as what that life says does. A host says again what was not
    acknowledged; the number of a patch tells whether it is known already.
    """

    def __init__(self, view: View, store: CarryingStore) -> None:
        self._view, self.store = view, store
        self._numbers: dict[str, int] = {}  # of agents that are awake
        self._due: list[Patch] = []
        self._code: dict[str, str] = {}  # digests
        self._texts: dict[str, bytes] = {}  # of what is no package: Ray brings these to hosts
        self._new: list[tuple[PeerSession, dict[str, bytes]]] = []

    # Take up the code that is durable. It reads the store.
    def begin(self) -> None:
        image = self.store.storage(CODE)
        if image is not None:
            self._keep_code(image.files)

    # It becomes durable with the facts of this turn.
    def take(self, host_id: str, packed: Iterable[bytes]) -> None:
        for each in packed:
            patch = patch_of(each)
            life = self._view.agents.get(patch.agent_id)
            if life is None or life.host_id not in ("", host_id) or patch.incarnation not in (0, life.incarnation):
                continue  # a later life has the agent, and began without this
            known = self._known(patch.agent_id)
            if patch.number > known + 1:
                raise AssertionError(f"patch {patch.number} of {patch.agent_id} came after patch {known}")
            if patch.number == known + 1:
                self._numbers[patch.agent_id] = patch.number
                self._due.append(patch)

    def copy(self, host_id: str, asked: CopyStorage) -> None:
        """Take in a copy of an agent's storage for another one. It becomes durable with the facts of this turn, after what it is a copy of.
        Raises `BadRequest` if that one has a storage or is awake, and `StaleIncarnation`."""
        view, target = self._view, asked.target_id
        source, its_life = view.agents.get(asked.source_id), view.agents.get(target)
        if source is None or (source.host_id, source.incarnation) != (host_id, asked.incarnation):
            raise StaleIncarnation(
                asked.source_id, "this life of the agent was given up, so nothing that it kept is copied"
            )
        known = self._known(target)
        if is_of_copy(known, asked.number):
            return  # it was asked for before, of an earlier life of the supervisor
        if view.doomed_by(target) or is_cleared(view.runs, target):
            raise AgentBeingDeleted(target)
        if known or (its_life is not None and (its_life.host_id or its_life.unclean)):
            raise BadRequest("target_id", f"{target} has a storage already, or is awake")
        self._numbers[target] = asked.number
        self._due.append(Patch(target, 0, asked.number, [whole(MAIN, asked.content)]))
        view.touched[target] = None  # what is known of it here is let go of after the commit

    # Files of a peer's code directory. They become durable with the facts of this turn.
    def take_code(self, session: PeerSession, files: Mapping[str, bytes]) -> None:
        new = {name: content for name, content in files.items() if self._code.get(name) != digest_of(content)}
        if new:
            number = self._numbers[CODE] = self._known(CODE) + 1
            self._due.append(Patch(CODE, 0, number, [whole(name, content) for name, content in new.items()]))
            self._new.append((session, new))

    # Tell the others what is durable by now.
    def pass_on_code(self, sessions: Iterable[PeerSession]) -> None:
        for sender, files in self._new:
            texts = {name: content for name, content in files.items() if not name.endswith(PACKAGE)}
            self._texts |= texts
            for session in sessions if texts else ():
                if session is not sender:
                    session.say(CodeFiles(texts))
        self._new.clear()

    def greet(self, session: PeerSession) -> None:
        if self._texts:
            session.say(CodeFiles(self._texts))

    # Make these durable, and write the code among them into this machine's code directory.
    def append(self, rows: Sequence[Row], payloads: list[Payload], patches: Sequence[Patch]) -> None:
        self.store.append(rows, payloads, patches)
        for patch in patches:
            if patch.agent_id == CODE:
                self._keep_code({part.file: bytes(part.content) for part in patch.parts})

    def _keep_code(self, files: Mapping[str, bytes]) -> None:
        self._code |= {name: digest_of(content) for name, content in files.items()}
        self._texts |= {name: content for name, content in files.items() if not name.endswith(PACKAGE)}
        if self.store.cache_dir:
            put_code(Path(self.store.cache_dir) / CODE, files)

    def due(self) -> Sequence[Patch]:
        due, self._due = self._due, []
        return due

    def exists(self, agent_id: str) -> bool:
        return self._known(agent_id) > 0

    # As `exists`, from memory: False is sure.
    def may_exist(self, agent_id: str) -> bool:
        return agent_id in self._numbers or self.store.may_have_storage(agent_id)

    # What a life begins with. It reads the store, on the thread that does so.
    def begins(self, agent_id: str, inline_max: float) -> StorageImage | SignedStorage | None:
        found = self.store.storage_for_host(agent_id, inline_max)
        self._numbers[agent_id] = 0 if found is None else found.number
        return found

    # Delete the storages of an agent and its descendants, with what becomes durable next. None of them lives.
    def delete(self, agent_id: str) -> None:
        for each in self.store.storages_of(agent_id):
            self._numbers.pop(each, None)
            self._due.append(Patch(each, 0, 0))

    def ended(self, agents: Iterable[str]) -> None:
        for each in agents:
            life = self._view.agents.get(each)
            if life is None or not life.host_id:
                self._numbers.pop(each, None)

    def _known(self, agent_id: str) -> int:
        known = self._numbers.get(agent_id)
        if known is None:
            return self.store.patches_of(agent_id) if self.store.may_have_storage(agent_id) else 0
        return known
