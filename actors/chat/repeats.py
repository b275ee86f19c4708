"""The repeat guard of one conversation: durable, and asked before every call (`policies.repeats` decides)."""

from __future__ import annotations

from typing import Any

from perdure.actors.chat.store import ChatStore
from perdure.actors.chat.tools import Tool
from perdure.policies import RepeatGuard, stop_text


class Repeats:
    """The calls whose outcome nobody knows, and which may not be made again blindly."""

    def __init__(self, store: ChatStore) -> None:
        self._store = store
        self._known: RepeatGuard | None = None

    @property
    def _guard(self) -> RepeatGuard:
        if self._known is None:
            self._known = RepeatGuard.of_rows(self._store.guard())
        return self._known

    def _keep(self, guard: RepeatGuard) -> None:
        if guard != self._guard:
            self._known = guard
            self._store.keep_guard(guard.as_rows())

    def stopped(self, tool: Tool, given: object) -> str | None:
        """What the model is told instead of the call's result, if the call would repeat a lost one; None if it may begin."""
        loss = self._guard.blocked(tool.name, given, tool.effect)
        if loss is None:
            return None
        self._keep(self._guard.stopped(loss))
        return stop_text(loss)

    def settled(self, part: dict[str, Any], tool: Tool) -> None:
        """A call is over, one way or another."""
        told = (part.get("resultProviderMetadata") or {}).get("perdure") or {}
        if told.get("outcome") == "unknown":
            self._keep(self._guard.lost(tool.name, part.get("input"), part["toolCallId"]))
        else:
            succeeded = part.get("state") == "output-available"
            self._keep(self._guard.settled(part["toolCallId"], tool.effect, succeeded=succeeded))

    def explained(self, call_id: str) -> None:
        """The result of a lost call has come."""
        self._keep(self._guard.settled(call_id, "once", succeeded=True))

    def approved(self, tool: Tool, given: object) -> None:
        """A person has allowed this very call."""
        self._keep(self._guard.approved(tool.name, given))

    def user_spoke(self) -> None:
        """A message of the user has come."""
        self._keep(self._guard.user_spoke())
