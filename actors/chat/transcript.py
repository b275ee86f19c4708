"""The transcript: the messages of a chat in order, in memory while the agent is awake, durable by the transaction that adds them."""

from __future__ import annotations

from typing import Any

from actors.chat.store import ChatStore, Message


class Transcript:
    """The messages of one chat agent. Positions rise for ever and are the keys of the stored messages.

    `uncertain` holds the evidence of the calls whose outcome is not known.
    """

    def __init__(self, store: ChatStore) -> None:
        self.uncertain: dict[str, dict[str, Any]] = {}
        self._positions: dict[str, int] = {}
        self._messages: dict[str, Message] = {}
        for position, message in store.messages():
            self.put(position, message)

    @property
    def messages(self) -> list[Message]:
        """All messages, oldest first. They are not to be changed in place."""
        return list(self._messages.values())

    @property
    def leaf(self) -> Message | None:
        """The newest message."""
        return next(reversed(self._messages.values()), None)

    @property
    def newest_user_id(self) -> str:
        """The id of the newest message of the user; empty if there is none."""
        return next((each["id"] for each in reversed(self._messages.values()) if each["role"] == "user"), "")

    def get(self, message_id: str) -> Message | None:
        """A message by its id."""
        return self._messages.get(message_id)

    def __contains__(self, message_id: str) -> bool:
        """Whether a message of this id is there."""
        return message_id in self._messages

    def placed(self, messages: list[Message]) -> list[tuple[int, Message]]:
        """Each message with its position: its own if it is there already, else the next free ones."""
        free = max(self._positions.values(), default=0)
        found = []
        for message in messages:
            position = self._positions.get(message["id"])
            if position is None:
                free += 1
                position = free
            found.append((position, message))
        return found

    def put(self, position: int, message: Message) -> None:
        """Take in what is durable."""
        self._positions[message["id"]] = position
        self._messages[message["id"]] = message
        for part in message["parts"]:
            call_id = part.get("toolCallId")
            if call_id is None:
                continue
            told = (part.get("resultProviderMetadata") or {}).get("perdure") or {}
            if told.get("outcome") == "unknown" and "runId" in told:
                self.uncertain[call_id] = told

    def positions(self) -> list[int]:
        """All positions in use."""
        return list(self._positions.values())

    def clear(self) -> None:
        """Forget everything."""
        self._positions.clear()
        self.uncertain.clear()
        self._messages.clear()

    def before(self, message_id: str) -> list[dict[str, Any]]:
        """The messages up to this one, without it; all of them if it is not there."""
        found: list[Message] = []
        for message in self._messages.values():
            if message["id"] == message_id:
                break
            found.append(message)
        return found
