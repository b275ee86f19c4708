"""The mail of one life of an agent: taken in, handled in groups and in order, and forgotten when the ledger will not send it again."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from perdure.actors.code.author_call import in_words, tried
from perdure.actors.life.handlers import Letter, handle
from perdure.actors.life.life import Life, Ready
from perdure.actors.life.outbox import Outbox
from perdure.actors.link.messages import InboxKept
from perdure.ledger import Handled, StorageError, StorageLost


class Mailbox:
    """What has come for an agent and is not handled yet."""

    def __init__(self, life: Life, outbox: Outbox, ready: Ready) -> None:
        self._life, self._outbox, self._ready = life, outbox, ready
        self._letters: dict[str, Letter] = {}
        self._handling = False
        self._at_work: list[Letter] = []
        self._handled: int | None = None  # mail that may be in the inbox; not known before the first

    @property
    def is_empty(self) -> bool:
        return not (self._letters or self._handling)

    def deliver(self, letters: list[Letter]) -> None:
        for letter in letters:
            self._letters.setdefault(letter.mail_id, letter)
        if not self._handling and self._letters:
            self._handling = True
            self._life.spawn(self._handle())

    def refuse(self, problem: Exception) -> None:
        """The agent could not come up: each try of that counts for the mail that waited for it, so that it is parked in the end. A storage
        that cannot be opened just now, because another life has it, does not count; one that has lost something parks it at once."""
        is_lost = isinstance(problem, StorageLost)
        if is_lost or not isinstance(problem, StorageError):
            self._say_failed(self._letters, f"the agent could not come up: {in_words(problem)}", park=is_lost)

    def failed(self, problem: BaseException) -> None:
        """The life ends by an unexpected error: that counts for the mail that was being handled, so that it pauses, and is parked in the
        end."""
        self._say_failed([letter.mail_id for letter in self._at_work], in_words(problem), park=False)

    def _say_failed(self, mail_ids: Iterable[str], why: str, *, park: bool) -> None:
        life, failed = self._life, [(mail_id, why, park) for mail_id in mail_ids]
        if failed:
            life.push(Handled(life.agent_id, life.incarnation, [], failed))
        for mail_id, _, _ in failed:
            self._letters.pop(mail_id, None)

    async def _handle(self) -> None:
        life = self._life
        _, problem = await tried(self._handle_all())
        self._handling = False
        if problem is not None and not life.is_leaving:
            life.trouble("handling mail", problem)
            if not isinstance(problem, StorageError):
                self.failed(problem)
            self._letters.clear()
        life.touch()

    async def _handle_all(self) -> None:
        life = self._life
        await self._ready()
        while self._letters and not life.is_leaving:
            group = self._at_work = [self._letters[key] for key in list(self._letters)[: life.limits.group_max]]
            done, failures = await handle(life, self._outbox, group)
            failed = [(each.mail_id, each.error, each.park) for each in failures]
            life.push_of_mail(Handled(life.agent_id, life.incarnation, done, failed))
            for letter in group:
                self._letters.pop(letter.mail_id, None)
            self._at_work = []
            self.count_handled(len(done))

    def count_handled(self, handled: int) -> None:
        """So many mails more are in the inbox: ask which may be forgotten, when they are many."""
        life = self._life
        if not life.has_storage:
            return
        self._handled = len(life.storage.inbox()) if self._handled is None else self._handled + handled
        if self._handled >= life.limits.inbox_max:
            self._handled = 0
            life.push_of_mail(InboxKept(life.agent_id, life.incarnation, list(life.storage.inbox())))

    def settled(self, mail_ids: list[str]) -> None:
        """The ledger will not send these to this life any more, and what it had sent it before has come in by now."""
        if not self._life.is_leaving:
            with suppress(StorageError):  # then they stay in the inbox, which costs only room
                self._life.storage.forget_inbox([each for each in mail_ids if each not in self._letters])
