"""What the model is sent of a conversation: all of it, or a summary in place of the older part.

The summary is a document of its own (`actors.chat.chat_store`), so the transcript stays whole for people. A change of a message that it
covers drops it in the same commit, and the model is sent everything again until the conversation is summarised anew.
"""

from __future__ import annotations

from perdure.actors.chat.chat_messages import is_current
from perdure.actors.chat.chat_store import ChatStore, TranscriptSummary
from perdure.actors.chat.transcript import Transcript
from perdure.policies import STEERED, SUMMARY_HEAD, Message, steps_of

SUMMARY_ID = "summary"


class ContextView:
    """The view of one conversation. What is made for a request is the same object for the next one, so it is written once
    (`kept_history`)."""

    def __init__(self, store: ChatStore, transcript: Transcript) -> None:
        self._store, self._transcript = store, transcript
        self._made: tuple[TranscriptSummary, Message] | None = None
        self._trimmed: tuple[Message, int, Message] | None = None

    @property
    def is_whole(self) -> bool:
        return self._store.summary() is None

    def uncovered(self, messages: list[Message]) -> list[Message]:
        current, summary = [each for each in messages if is_current(each)], self._store.summary()
        if summary is None:
            return current
        kept, after, position = (summary["within"], summary["asked"]), summary["after"], self._transcript.position
        return [each for each in current if each["id"] in kept or position(each["id"]) > after]

    def shown(self, messages: list[Message]) -> list[Message]:
        summary = self._store.summary()
        if summary is None:
            return messages
        shown = [self.trimmed(each) for each in messages]
        return [self._summary_message(summary), *(each for each in shown if each["parts"])]

    def check(self, own: Message) -> None:
        # `own` is the answer that is being given.
        summary = self._store.summary()
        if summary is None or not summary["within"]:
            return
        partly = own if own["id"] == summary["within"] else self._transcript.get(summary["within"])
        if partly is None or len(steps_of(partly["parts"])) < summary["steps"]:
            self._store.forget_summary()

    def covered_steps(self, message: Message) -> int:
        summary = self._store.summary()
        return 0 if summary is None or message["id"] != summary["within"] else summary["steps"]

    def trimmed(self, message: Message) -> Message:
        """A message without the steps that the summary covers. What people said in them stays, as the question does. The very same object
        if there are none."""
        known, steps = self._trimmed, self.covered_steps(message)
        if not steps:
            return message
        if known is None or known[0] is not message or known[1] != steps:
            found = steps_of(message["parts"])
            steered = [part for step in found[:steps] for part in step if part["type"] == STEERED]
            kept = [*steered, *(part for step in found[steps:] for part in step)]
            known = self._trimmed = (message, steps, {**message, "parts": kept})
        return known[2]

    def _summary_message(self, summary: TranscriptSummary) -> Message:
        if self._made is None or self._made[0] is not summary:
            said: Message = {
                "id": SUMMARY_ID,
                "role": "user",
                "parts": [{"type": "text", "text": SUMMARY_HEAD + summary["text"]}],
            }
            self._made = (summary, said)
        return self._made[1]
