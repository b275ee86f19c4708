"""The transcript: the messages of a chat in order, in memory while the agent is awake, durable by the transaction that adds them."""

from __future__ import annotations

from perdure.actors.chat.messages import for_storage
from perdure.actors.chat.store import ChatStore
from perdure.policies import Message, OurMetadata


class Transcript:
    """The messages of one chat agent. Positions rise for ever and are the keys of the stored messages. A position that was given out
    belongs to its message from then on, also while the transaction that writes it is still open; if that fails, it stays empty.

    `uncertain` holds the evidence of the calls whose outcome is not known.
    """

    def __init__(self, store: ChatStore) -> None:
        self.uncertain: dict[str, OurMetadata] = {}
        self._positions: dict[str, int] = {}
        self._last = 0
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
        """Each message as it is kept, with its position: its own if it has one already, else the next free ones."""
        for message in messages:
            self._positions.setdefault(message["id"], self._last + 1)
            self._last = max(self._last, self._positions[message["id"]])
        return [(self._positions[message["id"]], for_storage(message)) for message in messages]

    def put(self, position: int, message: Message) -> None:
        """Add a message that is durable."""
        newest = next(reversed(self._messages), None)
        is_late = message["id"] not in self._messages and newest is not None and position < self._positions[newest]
        self._positions[message["id"]] = position
        self._last = max(self._last, position)
        self._messages[message["id"]] = message
        if is_late:
            self._messages = dict(sorted(self._messages.items(), key=lambda each: self._positions[each[0]]))
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

    def before(self, message_id: str) -> list[Message]:
        """The messages up to this one, without it; all of them if it is not there."""
        found: list[Message] = []
        for message in self._messages.values():
            if message["id"] == message_id:
                break
            found.append(message)
        return found
