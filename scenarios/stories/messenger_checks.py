"""The checks and figures of a messenger's exchanges.

Four records must agree: the acknowledged webhooks, the agents' rows, the requests to the model, and the chats that people see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.policies import Delivery
from perdure.scenarios.cast.clerk import FIRST_UPDATE, answer_of

POLICY = Delivery()
NOTE = f"{POLICY.repeated_text}\n\n"
Row = dict[str, Any]


@dataclass
class Seen:
    """What was seen of a story.

    Attributes:
        acknowledged: how often each message's webhook was acknowledged, by its number.
        chat_of: the chat of each message.
        rows: the replies of each chat.
        messages: the messages in the chats, in order.
        asked: the requests to the model, as text.
    """

    seed: int
    acknowledged: dict[int, int]
    chat_of: dict[int, int]
    rows: dict[int, list[Row]]
    messages: list[Row]
    asked: Sequence[str]
    told_twice: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)

    def wrong(self) -> Iterator[str]:
        answered: Counter[int] = Counter()
        for chat_id, rows in self.rows.items():
            here = {each["message_id"]: each for each in self.messages if each["chat_id"] == chat_id}
            recorded: dict[int, Row] = {}
            for row in rows:
                self.outcomes[row["outcome"] or row["status"]] += 1
                numbers = [int(key.rpartition(":")[2]) - FIRST_UPDATE for key in row["heard"]]
                answered.update(numbers)
                yield from self._wrong_reply(row, numbers, here)
                recorded |= {int(post["message_id"]): row for post in row["posts"] if post["message_id"]}
            yield from self._wrong_order(chat_id, rows, here)
            yield from self._wrong_orphans(chat_id, rows, here, recorded)
        for number in self.chat_of:
            if not self.acknowledged.get(number):
                yield f"message {number} was never acknowledged"
            elif answered[number] != 1:
                yield f"message {number} was acknowledged {self.acknowledged[number]} times and stands in {answered[number]} replies"
            if not any(f"[{number}]" in each for each in self.asked):
                yield f"message {number} never reached the model"

    def _wrong_reply(self, row: Row, numbers: list[int], here: dict[int, Row]) -> Iterator[str]:
        name = f"the reply to {numbers}"
        if row["status"] != "settled" or row["outcome"] != "answered":
            yield f"{name} is {row['status']} {row['outcome']} {row['problem']}"
            return
        shown = ""
        for post in row["posts"]:
            message = here.get(int(post["message_id"] or 0))
            if message is None or message["is_deleted"]:
                yield f"{name} has a message {post['message_id']!r} that does not stand in the chat"
                return
            shown += message["said"][-1][1].removeprefix(NOTE if post["is_repeated"] else "")
        answer = answer_of(numbers[-1], self.seed)
        if "".join(shown.split()) != "".join(answer.split()):
            yield f"{name} shows {shown[-80:]!r} ({len(shown)} characters) for an answer of {len(answer)}: {answer[-80:]!r}"

    def _wrong_order(self, chat_id: int, rows: list[Row], here: dict[int, Row]) -> Iterator[str]:
        # No answer begins before the previous one is whole.
        ended_ms = 0
        for row in rows:
            mine = [here[int(post["message_id"])] for post in row["posts"] if int(post["message_id"] or 0) in here]
            instants = [at_ms for message in mine for at_ms, _ in message["said"]]
            if instants and min(instants) < ended_ms:
                yield f"in chat {chat_id} reply {row['reply_id']} began before the one before it had ended"
            ended_ms = max([ended_ms, *instants])

    def _wrong_orphans(
        self, chat_id: int, rows: list[Row], here: dict[int, Row], recorded: dict[int, Row]
    ) -> Iterator[str]:
        # A message without a record was posted by a life that died before the reply. Its successor must say so.
        orphans = [each for each in here.values() if each["message_id"] not in recorded and not each["is_deleted"]]
        said_so = sum(post["is_repeated"] for row in rows for post in row["posts"])
        said_so += sum(each["said"][-1][1].startswith(NOTE) for each in orphans)
        self.told_twice += len(orphans)
        if len(orphans) > said_so:
            yield f"in chat {chat_id} {len(orphans)} messages stand twice, and {said_so} of them say so"


def figures_of(seen: Seen) -> dict[str, Any]:
    recovering = sum(any(POLICY.recovering_text in text for _, text in each["said"]) for each in seen.messages)
    rows = [row for rows in seen.rows.values() for row in rows]
    return {
        "messages": len(seen.chat_of),
        "answered": sum(len(row["heard"]) for row in rows if row["outcome"] == "answered"),
        "replies": dict(seen.outcomes),
        "posts": len(seen.messages),
        "edits": sum(len(message["said"]) - 1 for message in seen.messages),
        "shown_recovering": recovering,
        "seen_twice_and_told_so": seen.told_twice,
    }
