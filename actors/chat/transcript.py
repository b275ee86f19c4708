"""The transcript of a chat agent, in memory."""

from __future__ import annotations

from collections.abc import Iterable

from perdure.actors.chat.chat_messages import for_storage, is_current
from perdure.actors.chat.chat_store import ChatStore
from perdure.policies import Message, OurMetadata, Part


def told_of(part: Part) -> OurMetadata:
    return (part.get("resultProviderMetadata") or {}).get("perdure") or {}


class Transcript:
    """The messages of one chat agent, in memory. Positions rise for ever and are the keys of the stored messages.

    A position belongs to its message as soon as it was given out. If the transaction of the message fails, the position stays empty.
    `uncertain` holds the evidence of the calls whose outcome is not known.
    """

    def __init__(self, store: ChatStore) -> None:
        self.uncertain: dict[str, OurMetadata] = {}
        self._positions: dict[str, int] = {}
        self._last = 0
        self._messages: dict[str, Message] = {}
        self.put(store.messages())

    @property
    def messages(self) -> list[Message]:
        """All messages, oldest first. Do not change them in place."""
        return list(self._messages.values())

    @property
    def leaf(self) -> Message | None:
        return next((each for each in reversed(self._messages.values()) if is_current(each)), None)

    @property
    def newest_user_id(self) -> str:
        found = (each for each in reversed(self._messages.values()) if each["role"] == "user" and is_current(each))
        return next((each["id"] for each in found), "")

    def get(self, message_id: str) -> Message | None:
        return self._messages.get(message_id)

    def __contains__(self, message_id: str) -> bool:
        return message_id in self._messages

    def placed(self, messages: list[Message]) -> list[tuple[int, Message]]:
        """Each message as it is stored, with its position: its own, or the next free one."""
        for message in messages:
            self._positions.setdefault(message["id"], self._last + 1)
            self._last = max(self._last, self._positions[message["id"]])
        return [(self._positions[message["id"]], for_storage(message)) for message in messages]

    def put(self, placed: Iterable[tuple[int, Message]]) -> None:
        """Add messages that are durable, or are so with the next flush of their turn, each at its position."""
        has_late = False
        for position, message in placed:
            newest = next(reversed(self._messages), None)
            is_new = message["id"] not in self._messages
            has_late |= is_new and newest is not None and position < self._positions[newest]
            self._positions[message["id"]] = position
            self._last = max(self._last, position)
            self._messages[message["id"]] = message
            for part in message["parts"]:
                told = told_of(part)
                if "toolCallId" in part and told.get("outcome") == "unknown" and "runId" in told:
                    self.uncertain[part["toolCallId"]] = told
        if has_late:
            self._messages = dict(sorted(self._messages.items(), key=lambda each: self._positions[each[0]]))

    def since(self, message_id: str) -> list[Message]:
        """This message and all that follow it, without those that were replaced before."""
        ids = list(self._messages)
        found = ids[ids.index(message_id) :] if message_id in self._messages else []
        return [self._messages[each] for each in found if is_current(self._messages[each])]

    def position(self, message_id: str) -> int:
        return self._positions[message_id]

    def remove(self, message_ids: Iterable[str]) -> None:
        # Their positions are not given out again.
        for each in message_ids:
            self._messages.pop(each, None)
            self._positions.pop(each, None)

    def positions(self) -> list[int]:
        return list(self._positions.values())

    def clear(self) -> None:
        self._positions.clear()
        self.uncertain.clear()
        self._messages.clear()

    def before(self, message_id: str) -> list[Message]:
        found = self.messages
        return found[: list(self._messages).index(message_id)] if message_id in self._messages else found
