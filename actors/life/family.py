"""An agent's relatives: the sub-agents that it has, and the way to them from outside.

A sub-agent is an agent like any other, whose address begins with its parent's. What makes it a child is a row in its parent's storage,
written before the child is first reached. Its storage, runs, alarms and mail end with it, and with any of its ancestors: that is decided by
the ledger, where the tombstone stands before anything is deleted, and no parent is needed to see it through. Children of a name that is
still being deleted begin when it is free.

A child knows its parent from its own address.

The child of a run of this agent is reached like a sub-agent, by the run's id, and is none: it is on record in the ledger. So a name of a
class that can be the child of a run is looked up there first, at the first call, before the name is put on record here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from functools import partial
from typing import NamedTuple

from perdure.actors.code.author_call import text_of
from perdure.actors.code.naming import NO_CLASS, load_type, type_name
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.class_options import check_class
from perdure.actors.life.dispatch import Dispatch
from perdure.actors.life.handle import Handle
from perdure.actors.life.host_options import pool_spec
from perdure.actors.life.life import Life
from perdure.actors.life.outbox import Outbox
from perdure.actors.link.caller import THROUGH, Address, AgentCaller, TellContent, standalone_of
from perdure.actors.link.direct_calls import split_route
from perdure.actors.link.messages import Abort
from perdure.actors.link.questions import sent_event
from perdure.ledger import (
    AgentForbidden,
    AgentUnreachable,
    BadRequest,
    Forget,
    Send,
    Standalone,
    check_id,
    check_text,
    digest_of,
    pack,
    parent_of,
    path_of,
    sub_agent_id,
    type_of,
    unpack,
)
from perdure.ledger.storage.records import SUB_AGENT

DEPTH_MAX = 32  # an address names all ancestors, so it grows with each


class SubAgentInfo(NamedTuple):
    """A sub-agent as its parent knows it. `agent_type` is the name of its class, `created_at_ms` when it was first asked for."""

    agent_type: str
    name: str
    created_at_ms: int


class NothingToAwait:
    def __await__(self) -> Iterator[None]:
        return iter(())


class Family:
    """The relatives of one life of an agent."""

    def __init__(self, life: Life, outbox: Outbox, dispatch: Dispatch) -> None:
        self._life, self._outbox, self._dispatch = life, outbox, dispatch
        # addresses that were asked for, and not yet called: sub-agents, or children of runs
        self._open: set[str] = set()
        self._of_runs: set[str] = set()
        home = partial(pool_spec, package=life.services.package)
        told = life.services.supervisor, life.dice, life.threads, life.limits, life.code_dir, home
        self._caller = AgentCaller(*told, sender=life.agent_id)
        self._outside_caller = AgentCaller(*told)

    # the children

    def child(self, agent_class: type, name: str) -> Handle:
        """A handle of a sub-agent, which is put on record if it is new: now, or with the open transaction. One that may be the child of a
        run is put on record when it is first called."""
        to = self._address(agent_class, name)
        if to.standalone is Standalone.ALWAYS or self._life.transaction is not None:
            self._put(*path_of(to.agent_id)[-1])
        else:
            self._open.add(to.agent_id)
        return self._handle(to)

    def _check(self, agent_class: type, name: str) -> None:
        check_class(agent_class)
        if not isinstance(agent_class, type) or not hasattr(agent_class, "_perdure_woken"):
            advice = "" if isinstance(agent_class, type) else f"; {NO_CLASS}"
            raise BadRequest("agent_class", f"{agent_class!r:.200} is no agent class{advice}")
        check_id("name", name, self._life.limits.id_max)

    def _address(self, agent_class: type, name: str) -> Address:
        self._check(agent_class, name)
        agent_type = type_name(agent_class, self._life.code_dir)
        if len(path_of(self._life.agent_id)) >= DEPTH_MAX:
            raise BadRequest("name", f"{self._life.agent_id} is {DEPTH_MAX} deep; its sub-agents can have none")
        return Address(agent_class, sub_agent_id(self._life.agent_id, agent_type, name), standalone_of(agent_class))

    def _put(self, agent_type: str, name: str) -> None:
        if not self.has(agent_type, name):
            created_at_ms = self._life.now_ms()
            with self._life.storage.transaction() as transaction:
                transaction.put(SUB_AGENT, _key(agent_type, name), pack(created_at_ms))

    def has(self, agent_type: str, name: str) -> bool:
        return self._has_records and self._life.storage.document(SUB_AGENT, _key(agent_type, name)) is not None

    async def is_child(self, agent_type: str, name: str) -> bool:
        return self.has(agent_type, name) or await self._dispatch.has(agent_type, name)

    async def _enter(self, child: str) -> None:
        if child not in self._open:
            return
        agent_type, name = path_of(child)[-1]
        if await self._dispatch.has(agent_type, name):
            self._of_runs.add(child)
        else:
            self._put(agent_type, name)
        self._open.discard(child)

    @property
    def _has_records(self) -> bool:
        return self._life.has_storage or self._life.transaction is not None

    def children(self, agent_class: type | str | None = None) -> list[SubAgentInfo]:
        check_class(agent_class)
        if not self._has_records:
            return []
        rows = self._life.storage.documents(SUB_AGENT)
        parts = [(*key.split("\0"), unpack(body)) for key, body in rows.items()]
        found = [SubAgentInfo(agent_type, name, created_at_ms) for agent_type, name, created_at_ms in parts]
        wanted = type_name(agent_class, self._life.code_dir) if isinstance(agent_class, type) else agent_class
        known = [each for each in found if wanted in (None, each.agent_type)]
        return sorted(known, key=lambda each: (each.created_at_ms, each.agent_type, each.name))

    async def abort(self, agent_class: type, name: str, reason: str) -> None:
        await self._life.ask(Abort(self._address(agent_class, name).agent_id, check_text("reason", reason)))

    def delete(self, agent_class: type, name: str) -> None:
        """Delete a sub-agent with all that descends from it: durable on return, or with the open transaction, and done soon after."""
        self._delete(self._address(agent_class, name).agent_id)

    def _delete(self, child: str) -> None:
        self._open.discard(child)
        with self._outbox.transact() as transaction:
            transaction.put(SUB_AGENT, _key(*path_of(child)[-1]), None)
            self._outbox.post_forget(transaction, child)

    async def destroy(self) -> None:
        # A parent does it, for it has the record, which goes in the same breath.
        agent = self._life.agent_id
        if self._life.is_of_run:
            raise BadRequest("agent", f"{agent} is the child of a run; it goes when its run is cleared")
        parent = parent_of(agent)
        if parent:
            await self._caller.send(parent, FORGET, pack(agent), None, repeatable=True)
        else:
            await self._life.ask(Forget(agent))

    # the parent

    def parent(self) -> Handle | None:
        parent = parent_of(self._life.agent_id)
        if not parent:
            return None
        parent_class = load_type(type_of(parent), self._life.code_dir)
        return self._handle(Address(parent_class, parent, standalone_of(parent_class)))

    # others

    def other(self, agent_class: type, name: str) -> Handle:
        # An agent that is no relative is reached as from outside.
        self._check(agent_class, name)
        to = Address.of(agent_class, name, self._life.code_dir)
        return Handle(to, self._call_other, self._tell_other)

    def _call_other(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        begin = self._outside_caller.followed(to, method, args, kwargs)
        if begin is not None:
            return self._life.bridge_stream(begin)
        return self._life.bridge(self._outside_caller.call(to, method, args, kwargs))

    def _tell_other(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        return self._tell(to, self._outside_caller.letter(to, method, args, kwargs), "")

    # calls and mail

    def _handle(self, to: Address) -> Handle:
        return Handle(to, self._call, self.tell)

    def _call(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        problem = self._missing(to)
        begin = self._caller.followed(to, method, args, kwargs)
        if begin is not None and problem is None:
            return self._life.bridge_stream(partial(self._followed, to, begin))
        return self._life.bridge(_refused(problem) if problem else self._called(to, method, args, kwargs))

    async def _called(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        await self._enter(to.agent_id)
        return await self._caller.call(to, method, args, kwargs)

    async def _followed(
        self, to: Address, begin: Callable[[], AsyncGenerator[object, None]]
    ) -> AsyncGenerator[object, None]:
        await self._enter(to.agent_id)
        async with aclosing(begin()) as events:
            async for event in events:
                yield event

    def _missing(self, to: Address) -> BadRequest | None:
        # What was deleted does not come back by a handle from before.
        is_known = to.agent_id in self._open or to.agent_id in self._of_runs
        if is_known or parent_of(to.agent_id) != self._life.agent_id or self.has(*path_of(to.agent_id)[-1]):
            return None
        return BadRequest("sub_agent", f"{to.agent_id} no longer exists; sub_agent() makes a new one")

    def tell(self, to: Address, method: str, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        """Tell a relative something: with the open transaction, or now. A run that is entered again tells it once all the same."""
        problem = self._missing(to)
        if problem is not None:
            raise problem
        return self._tell(to, self._caller.letter(to, method, args, kwargs), self._life.agent_id)

    def _tell(self, to: Address, letter: TellContent, sender: str) -> object:
        mail_id, is_new = self._mail_id(f"tell {to.agent_id} {letter.method}", letter.body)
        transaction = self._life.transaction
        if transaction is not None:
            if to.agent_id in self._open:
                self._put(*path_of(to.agent_id)[-1])
            self._outbox.post_tell(transaction, mail_id, letter, sender, is_new=is_new)
            return NothingToAwait()
        return self._life.bridge(self._tell_now(mail_id, letter, sender, is_new=is_new))

    def send(self, run_id: str, event: str, value: object, event_id: str | None = None) -> object:
        # Send an event to a run: with the open transaction, or now. A run that is entered again sends it once all the same.
        life = self._life
        sent, is_new = sent_event(run_id, event, value, event_id, "", life.limits, life.agent_id), False
        if event_id is None:
            mail_id, is_new = self._mail_id(f"send {run_id} {event}", sent.body)
            sent = sent._replace(mail_id=sent.mail_id + mail_id)
        if life.transaction is not None:
            self._outbox.post_send(life.transaction, sent, is_new=is_new)
            return NothingToAwait()
        return life.bridge(self._send_now(sent._replace(epoch=life.services.peer.epoch if is_new else 0)))

    async def _send_now(self, sent: Send) -> None:
        await self._life.services.supervisor.ask_when_free(sent)

    def _mail_id(self, what: str, body: bytes) -> tuple[str, bool]:
        # Tells besides whether the id is certainly new. A run or a fiber that is entered again gets the same id.
        activity = ACTIVITY.get()
        entered = None if activity is None else activity.run or activity.fiber
        if activity is None or entered is None:
            return self._life.dice.token(), True
        return activity.derive(what, digest_of(body)), entered.attempt == 1

    async def _tell_now(self, mail_id: str, letter: TellContent, sender: str, *, is_new: bool) -> None:
        await self._enter(letter.recipient)
        await self._caller.tell(mail_id, sender, letter, is_new=is_new)

    # from outside, and from below

    async def answer(self, method: str, body: bytes) -> bytes | None:
        # Answer what relatives and callers from outside ask of any agent; None if it is something else.
        if method == THROUGH:
            return await self._through(*unpack(body))
        if method == FORGET:
            self._delete(unpack(body))
            return pack(None)
        return None

    async def _through(self, way: list[list[str]], method: str, body: bytes, repeatable: bool) -> bytes:
        # Hand a call from outside on to a child, if the author lets it pass.
        (agent_type, name), *rest = way
        check_id("name", name, self._life.limits.id_max)
        agent = self._life.agent
        child = sub_agent_id(self._life.agent_id, agent_type, name)
        try:
            is_let_pass = await self._life.call_in_turn(agent.on_before_sub_agent, agent_type, name)
        except PermissionError as refusal:
            raise AgentForbidden(child, text_of(refusal) or "its parent has refused the call") from refusal
        if not is_let_pass:
            raise AgentUnreachable(child, "its parent has no such child, or lets no call pass (`on_before_sub_agent`)")
        agent_class = await self._life.threads.run(partial(load_type, agent_type, self._life.code_dir))
        if not await self.is_child(agent_type, name):
            self._put(agent_type, name)
        home = pool_spec(agent_class, self._life.services.package)
        if rest:
            method, body = THROUGH, pack([rest, method, body, repeatable])
        reply = await self._caller.send(child, method, body, home, standalone_of(agent_class), repeatable=repeatable)
        return split_route(reply)[0]


FORGET = "\0forget"  # answered before the agent has come up: it may be coming up with the help of its caller


async def _refused(problem: BadRequest) -> None:
    raise problem


def _key(agent_type: str, name: str) -> str:
    return f"{agent_type}\0{name}"
