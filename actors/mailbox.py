"""The mail of one life of an agent: taken in, handled in groups and in order, and forgotten when the ledger will not send it again."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from actors.author import tried
from actors.handlers import Letter, handle
from ledger import Handled, StorageError

if TYPE_CHECKING:
    from actors.tenant import Tenant


class Mailbox:
    """What has come for an agent and is not handled yet."""

    def __init__(self, tenant: Tenant) -> None:
        self._tenant = tenant
        self._letters: dict[str, Letter] = {}
        self._handling = False
        self._handled: int | None = None  # mail that may be in the inbox; not known before the first

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits, and nothing is being handled."""
        return not (self._letters or self._handling)

    def deliver(self, letters: list[Letter]) -> None:
        """Take mail in."""
        for letter in letters:
            self._letters.setdefault(letter.mail_id, letter)
        if not self._handling and self._letters:
            self._handling = True
            self._tenant.spawn(self._handle())

    async def _handle(self) -> None:
        tenant = self._tenant
        _, problem = await tried(self._handle_all())
        self._handling = False
        if problem is not None and not tenant.is_leaving:
            tenant.trouble("handling mail", problem)
            self._letters.clear()
        tenant.host.touch(tenant)

    async def _handle_all(self) -> None:
        tenant = self._tenant
        await tenant.ready()
        while self._letters and not tenant.is_leaving:
            group = [self._letters[key] for key in list(self._letters)[: tenant.limits.group_max]]
            done, failures = await handle(tenant, group)
            failed = [(each.mail_id, each.error, each.park) for each in failures]
            tenant.push(Handled(tenant.agent_id, tenant.incarnation, done, failed))
            for letter in group:
                self._letters.pop(letter.mail_id, None)
            self._weigh_inbox(len(done))

    def _weigh_inbox(self, handled: int) -> None:
        """Ask what of a long inbox may be forgotten."""
        tenant = self._tenant
        if not tenant.has_storage:
            return
        self._handled = len(tenant.storage.inbox()) if self._handled is None else self._handled + handled
        if self._handled >= tenant.limits.inbox_max:
            self._handled = 0
            tenant.host.peer.push(["inbox", tenant.agent_id, tenant.incarnation, list(tenant.storage.inbox())])

    def settled(self, mail_ids: list[str]) -> None:
        """The ledger will not send these to this life any more, and what it had sent it before has come in by now."""
        if not self._tenant.is_leaving:
            with suppress(StorageError):  # then they come back with the next life, and nobody asks for them
                self._tenant.storage.forget_inbox([each for each in mail_ids if each not in self._letters])
