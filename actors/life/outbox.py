"""An agent's transactions, and the outbox: what a transaction asks of the runtime goes out after its commit, however often.

The rows of the outbox are written in the transaction itself. Killed before the commit, nothing was asked. Killed after it, the next life of
the agent finds the rows and asks again, under the same ids. A row goes when the supervisor has made what it asks for durable, or has
refused it for good. Of a run whose id is taken by other content its handler is told, by a mail of the agent to itself; of other refusals
the log and `on_error`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from perdure.actors.code.author_call import tried
from perdure.actors.life.host_options import pool_spec
from perdure.actors.life.life import Life
from perdure.actors.link.caller import TellContent
from perdure.actors.link.messages import Plain
from perdure.ledger import (
    BadRequest,
    ConflictingRequest,
    Forget,
    Overloaded,
    Request,
    Send,
    Tell,
    UnknownRun,
    digest_of,
    pack,
    unpack,
)
from perdure.ledger.storage.agent_storages import Transaction
from perdure.policies import condition_from, runs_of

REFUSED: Final = "\0refused"  # what an agent tells itself of a run that it asked for in a transaction

EARLY_MS: Final = 1_000  # until a run is asked for again whose sources are not accepted yet


class Outbox:
    """The transactions of one life of an agent, and what they leave to be said."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._sent = 0
        self._posted: dict[bytes, Request] = {}  # what rows since the last flush ask for, so that they need not be read
        self._unaccepted: dict[str, None] = {}  # runs that rows ask for, until they are accepted or refused
        self._is_known = False  # whether what an earlier life left has been found

    @property
    def is_empty(self) -> bool:
        return not self._life.has_storage or not self._life.storage.outbox()

    @contextmanager
    def transact(self) -> Iterator[Transaction]:
        # Inside another it joins that one.
        outermost = self._life.transaction is None
        with self._life.storage.transaction() as transaction:
            yield transaction
            self._life.check_open()
        if outermost:
            self._life.on_loop(self.flush)

    async def commit(self, transaction: Transaction) -> None:
        await self._life.written(transaction.commit)
        self.flush()

    def post(self, request: Request) -> None:
        # The author's start hook is called by mail, once it is accepted.
        transaction = self._life.transaction
        assert transaction is not None, "post is for open transactions"
        if self._life.overrides(
            "on_agent_tool_start"
        ):  # an option that costs mail, so only for those that have the hook
            request = request._replace(options={**request.options, "start_hook": True})
        body = pack(["Request", *request])
        self._posted[body] = request
        transaction.add_outbox(body)

    def post_tell(
        self, transaction: Transaction, mail_id: str, letter: TellContent, sender: str, *, is_new: bool
    ) -> None:
        transaction.add_outbox(pack(["tell", is_new, mail_id, sender, letter]))

    def post_send(self, transaction: Transaction, event: Send, *, is_new: bool) -> None:
        transaction.add_outbox(pack(["send", is_new, *event]))

    def post_forget(self, transaction: Transaction, agent_id: str) -> None:
        transaction.add_outbox(pack(["forget", agent_id]))

    def flush(self) -> None:
        """Say what the last commits left; the rows go when it is durable with the supervisor."""
        fresh = [(number, body) for number, body in self._life.storage.outbox() if number > self._sent]
        posted, self._posted = self._posted, {}
        requests: list[tuple[int, Request]] = []
        messages: list[tuple[int, Tell | Send | Forget]] = []
        for number, body in fresh:
            self._sent = number
            if body in posted:
                requests.append((number, posted[body]))
                continue
            kind, *fields = unpack(body)
            if kind == "Request":
                requests.append((number, Request(*fields)))
            else:
                messages.append((number, self._message_of(kind, fields)))
        if requests:
            self._life.spawn(self._say(requests))
        for number, message in messages:
            # asked for at once: before anything that the agent asks for from now on
            answer = self._life.services.supervisor.question(message)
            self._life.spawn(self._done(number, message, answer))
        self._is_known = True

    def _message_of(self, kind: str, fields: list[Plain]) -> Tell | Send | Forget:
        if kind == "forget":
            return Forget(*fields)
        # an earlier life may have had it posted already, so what was found is said without an epoch
        is_new, *fields = fields
        epoch = self._life.services.peer.epoch if self._is_known and is_new else 0
        if kind == "send":
            return Send(*fields)._replace(epoch=epoch)
        mail_id, sender, letter = fields
        recipient, method, body, home, standalone = TellContent(*letter)
        return Tell(mail_id, recipient, sender, method, body, home, epoch, standalone)

    async def _done(self, number: int, message: Tell | Send | Forget, answer: asyncio.Future[object]) -> None:
        life = self._life
        _, problem = await tried(life.services.supervisor.answer_when_free(answer, message))
        if isinstance(problem, BadRequest):
            life.trouble(_doing(message), problem)
        elif problem is not None:
            raise problem
        if not life.is_leaving:
            life.storage.forget_outbox([number])

    async def _refused(self, number: int, request: Request, refusal: BadRequest) -> None:
        # Its transaction is over. A death here finds the row, and tells the handler under the same id.
        life, options = self._life, request.options
        handler = options.get("on_finish") or options.get("on_give_up")
        problem: Exception | None = refusal
        if handler and isinstance(refusal, ConflictingRequest):
            body = [handler, request.run_id, request.agent_type, options.get("tool_call"), str(refusal)]
            home = pool_spec(type(life.agent), life.services.package)
            mail_id = digest_of(f"refused {life.agent_id} {number} {request.run_id}".encode())
            mail = Tell(mail_id, life.agent_id, life.agent_id, REFUSED, pack(body), home, 0)
            _, problem = await tried(life.services.supervisor.ask_when_free(mail))
        if problem is not None:
            life.trouble(f"asking for run {request.run_id!r}", problem)

    async def _say(self, rows: list[tuple[int, Request]]) -> None:
        # Just now the supervisor may have too much to do, so whatever it puts off is asked for again.
        life = self._life
        self._unaccepted.update(dict.fromkeys(request.run_id for _, request in rows))
        while rows:
            answers = await _answers(life.services.supervisor.begin_many([request for _, request in rows]))
            done, left, pause_ms = [], [], 0
            for (number, request), answer in zip(rows, answers, strict=True):
                if isinstance(answer, Overloaded) or self._is_early(request, answer):
                    left.append((number, request))
                    pause_ms = answer.retry_after_ms if isinstance(answer, Overloaded) else max(pause_ms, EARLY_MS)
                    continue
                done.append(number)
                self._unaccepted.pop(request.run_id, None)
                if isinstance(answer, BadRequest):
                    await self._refused(number, request, answer)
            if not life.is_leaving:
                life.storage.forget_outbox(done)
            rows = left
            await asyncio.sleep(pause_ms / 1000)

    def _is_early(self, request: Request, answer: BaseException | None) -> bool:
        # What it waits for was put off.
        if not (isinstance(answer, UnknownRun) and answer.field == "after"):
            return False
        return any(source in self._unaccepted for source in runs_of(condition_from(request.options["after"])))


def _doing(message: Tell | Send | Forget) -> str:
    match message:
        case Tell():
            return f"telling {message.recipient}"
        case Send():
            return f"sending event {message.name!r} to run {message.run_id}"
    return f"deleting {message.agent_id}"


async def _answers(asked: Sequence[asyncio.Future[object]]) -> list[BaseException | None]:
    # Thousands are answered together, so mostly there is one to wait for.
    try:
        for each in asked:
            if not each.done():
                await asyncio.wait({each})
    except asyncio.CancelledError:
        for each in asked:  # the rows stay, and the next life asks again
            each.cancel()
        raise
    return [None if each.cancelled() else each.exception() for each in asked]
