"""What a model is sent of a long conversation, kept from one request to the next.

A message of the transcript is never changed in place. So what was made of it counts as long as this very object stands in its place: after
an edit, a repair or a deletion another one does, and everything is made anew. The last message is written each time, because an answer
that is being played is another object for each request.

The library prepares each history for its model. What it does to a message depends on that message, its neighbours, and the head of the
history. So if it leaves the messages of a history as they are, it is next shown the head and what is new, and all of it only if it
changes anything there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from operator import is_
from typing import TYPE_CHECKING, Final

from perdure.actors.chat.convert import CONTINUE, HistoryWriter, assert_paired, called_ids, to_model
from perdure.policies import Message

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelMessage
    from pydantic_ai.models import Model, ModelRequestParameters

LONG: Final = 40
"""The number of messages from which a history is worth its memory."""
RECENT: Final = 20
"""The newest messages, which are prepared with each request: what the library does to these may depend on the end."""


class KeptHistory:
    """The history of one conversation, for its next request."""

    def __init__(self, worth: int = LONG) -> None:
        self._worth = worth
        self._messages: list[Message] = []
        self._writer: HistoryWriter | None = None
        self._model: Model | None = None
        self._untouched: list[ModelMessage] = []  # the library left these as they are
        self._call_ids: set[str] = set()  # of the calls in them, each of which has its result

    def count_new(self, messages: Sequence[Message]) -> int:
        return len(messages) - len(self._messages) if _begins(self._messages, messages) else len(messages)

    def prepared(
        self,
        messages: Sequence[Message],
        model: Model,
        parameters: ModelRequestParameters,
        last_word: str = CONTINUE,
    ) -> list[ModelMessage]:
        """The history of these messages, as it is sent. Raises as `to_model` and `assert_paired` do."""
        if len(messages) < self._worth:
            made = model.prepare_messages(to_model(messages, provider=model.system, last_word=last_word), parameters)
            assert_paired(made)
            return made
        history = self._written(messages, model.system).fork().finished(messages[-1:], last_word)
        known = self._untouched if self._model is model and _begins(self._untouched, history) else []
        shown = [*known[:1], *history[len(known) :]]
        made = model.prepare_messages(shown, parameters)
        if len(made) != len(shown) or not all(map(is_, made, shown)):
            made = model.prepare_messages(history, parameters) if known else made
            assert_paired(made)
            return made
        if not known:
            self._model, self._untouched, self._call_ids = model, [], set()
        assert_paired(history[len(known) :], self._call_ids)
        self._settle(history)
        return history

    def _written(self, messages: Sequence[Message], provider: str) -> HistoryWriter:
        # The last message is not written, because an answer that is being played is another object for each request.
        writer = self._writer
        if writer is None or writer.provider != provider or not _begins(self._messages, messages):
            writer, self._messages = HistoryWriter(provider), []
        self._writer = None  # until it is whole again
        for message in islice(messages, len(self._messages), max(0, len(messages) - 1)):
            writer.write(message)
            self._messages.append(message)
        self._writer = writer
        return writer

    def _settle(self, history: list[ModelMessage]) -> None:
        # The rest begins with an answer, lest a result be cut off from its call.
        end = max(0, len(history) - RECENT)
        while end > len(self._untouched) and history[end].kind != "response":
            end -= 1
        if end > len(self._untouched) and history[0].kind == "request":
            self._call_ids |= called_ids(history[len(self._untouched) : end])
            self._untouched = history[:end]


def _begins(first: Sequence[object], whole: Sequence[object]) -> bool:
    return len(first) < len(whole) and all(map(is_, first, whole))
