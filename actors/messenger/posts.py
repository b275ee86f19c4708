"""The visible messages of one reply, brought to the intended text whatever became of earlier requests.

Each request to the provider lies between two commits: before it, what is intended and that a post is on its way; after it, the id and
what is acknowledged. So a life that takes over finds one of these:

    nothing                        nothing was sent
    a post on its way, no id       it was sent or not: `policies.after_unknown` decides
    an id                          the message can be edited, as often as it takes

While an answer streams, `show` makes one try for each message. `finish` tries until every message is acknowledged, or the reply is parked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from perdure.actors.code.author_call import in_words, tried
from perdure.actors.messenger.adapter import Messenger, ProviderRefused, ProviderSilent, ProviderTrouble
from perdure.actors.messenger.replies import Replies, digest
from perdure.actors.messenger.reply_rows import PostRow, ReplyRow
from perdure.actors.ports import KillPoint
from perdure.actors.retries import until
from perdure.policies import Next, after_failure, after_unknown, length_of, pause_ms, sendable, split

CALL_S = 30.0
POSTS_MAX = 200
T = TypeVar("T")
_ENDS = (Next.DONE, Next.PARK)


class DeliveryParked(Exception):
    """The reply cannot be delivered; a person decides what becomes of it."""


class Posts:
    """The messages of one reply, in one life of its agent."""

    def __init__(self, replies: Replies, reply: ReplyRow, messenger: Messenger) -> None:
        self._replies, self._reply, self._messenger = replies, reply, messenger
        self._adapter, self._policy = messenger.adapter, messenger.delivery
        self._limits = self._adapter.limits(reply.thread_id)
        self.rows = replies.posts(reply)
        self._quiet_until_s = 0.0

    @property
    def pace_s(self) -> float:
        """The least time between two edits, in seconds."""
        own_ms = self._policy.edit_every_ms
        return max(0, self._limits.edit_every_ms if own_ms is None else own_ms) / 1000

    def pieces(self, text: str) -> list[str]:
        """A text as messages, each with room for `repeated_text` above it."""
        room = length_of(self._policy.repeated_text, self._limits.counting) + 2
        found = split(sendable(text), self._limits.text_max - room, self._limits.counting)
        return [each.shown for each in found if each.shown.strip()][:POSTS_MAX]

    async def show(self, text: str) -> None:
        """Bring the messages to this text, with one request for each, up to the first that fails."""
        if asyncio.get_running_loop().time() < self._quiet_until_s:
            return
        for index, piece in enumerate(self.pieces(text)):
            if await self._make(index, piece) is not Next.DONE:
                return

    async def finish(self, text: str) -> None:
        """Make the messages say exactly this. Raises `DeliveryParked` if that is impossible."""
        pieces = self.pieces(text)
        for index, piece in enumerate(pieces):
            if await self._repeated(partial(self._make, index, piece)) is Next.PARK:
                raise DeliveryParked(self._reply.problem)
        for index in sorted(each for each in self.rows if each >= len(pieces)):
            await self._take_away(index)

    async def _repeated(self, request: Callable[[], Awaitable[Next]]) -> Next:
        """Repeat a request, after the pause that each failure set, until it is done or to be parked."""
        time_s = asyncio.get_running_loop().time
        return await until(_ENDS.__contains__, request, lambda: max(0.0, self._quiet_until_s - time_s()))

    async def _make(self, index: int, text: str) -> Next:
        """Bring one message to this text, with at most one request."""
        row = self.rows.get(index) or PostRow(index)
        if row.is_sent and not row.message_id:
            if after_unknown(self._policy) is Next.PARK:
                self._reply.problem = "a message was sent, and nobody knows whether it arrived; the policy leaves it"
                return Next.PARK
            row.is_sent, row.is_repeated = False, self._policy.unknown == "edit-or-apologise"
            self._replies.tell("messenger:post:unknown", self._reply, {"index": index})
        if row.is_repeated:
            text = f"{self._policy.repeated_text}\n\n{text}"
        wanted = digest(text)
        if row.message_id and row.acknowledged == wanted:
            return Next.DONE
        row.intended, row.is_sent = wanted, not row.message_id
        self.rows[index] = row
        self._replies.keep_post(self._reply, row)
        return await (self._edit(row, text) if row.message_id else self._post(row, text))

    async def _post(self, row: PostRow, text: str) -> Next:
        message_id, trouble = await self._asked("post", lambda: self._adapter.post(self._reply.thread_id, text))
        if trouble is not None:
            what = self._after(trouble, is_edit=False)
            if trouble.trouble is not ProviderSilent.trouble:
                row.is_sent = False
                self._replies.keep_post(self._reply, row)
            return Next.AGAIN if what is Next.REPEAT else what
        row.message_id, row.acknowledged, row.is_sent = str(message_id), row.intended, False
        self._replies.keep_post(self._reply, row)
        self._replies.tell("messenger:posted", self._reply, {"index": row.index, "messageId": row.message_id})
        return Next.DONE

    async def _edit(self, row: PostRow, text: str) -> Next:
        where = self._reply.thread_id, row.message_id
        _, trouble = await self._asked("edit", lambda: self._adapter.edit(*where, text))
        what = Next.DONE if trouble is None else self._after(trouble, is_edit=True)
        if what is Next.DONE:
            row.acknowledged = row.intended
        elif what is Next.ANEW:
            row.message_id = row.acknowledged = ""
        else:
            return what
        self._replies.keep_post(self._reply, row)
        return Next.DONE if what is Next.DONE else Next.AGAIN

    async def _take_away(self, index: int) -> None:
        """Delete a message beyond the end of the text. An earlier attempt had a longer one."""
        message_id = self.rows[index].message_id
        if message_id:
            await self._repeated(partial(self._delete, message_id))  # one that cannot be deleted stays
        del self.rows[index]
        self._replies.forget_post(self._reply, index)

    async def _delete(self, message_id: str) -> Next:
        where = self._reply.thread_id, message_id
        _, trouble = await self._asked("delete", lambda: self._adapter.delete(*where))
        what = Next.DONE if trouble is None else self._after(trouble, is_edit=True)
        return Next.DONE if what is Next.ANEW else what  # it is gone

    async def _asked(self, what: str, request: Callable[[], Awaitable[T]]) -> tuple[T | None, ProviderTrouble | None]:
        """Make one request. Errors other than `ProviderTrouble` are bugs of the adapter, and are not repeated."""
        self._replies.tenant.faults.at(KillPoint.BEFORE_EFFECT, f"messenger {what}")
        begun_ms = self._replies.tenant.now_ms()
        try:
            async with asyncio.timeout(CALL_S):
                answer, problem = await tried(request())
        except TimeoutError:
            answer, problem = None, ProviderSilent(f"no reply within {CALL_S:.0f} s")
        self._replies.tenant.faults.at(KillPoint.AFTER_EFFECT, f"messenger {what}")
        self._replies.spans.asked(self._reply, what, begun_ms, _word(problem))
        if problem is None:
            self._reply.tries = self._reply.busy = 0  # they count what fails in a row
        if problem is None or isinstance(problem, ProviderTrouble):
            return answer, problem
        return None, ProviderRefused(f"the adapter failed: {in_words(problem)}")

    def _after(self, trouble: ProviderTrouble, *, is_edit: bool) -> Next:
        """What follows a failure. The count is made durable, and the pause is set."""
        reply = self._reply
        is_busy = trouble.trouble is trouble.trouble.BUSY
        reply.busy, reply.tries = reply.busy + is_busy, reply.tries + (not is_busy)
        what = after_failure(trouble.trouble, self._policy, is_edit=is_edit, tries=reply.tries, busy=reply.busy)
        if what is Next.DONE:
            return what
        reply.problem = str(trouble)
        self._replies.keep(reply)
        pause = pause_ms(self._policy, reply.tries, trouble.retry_after_ms, self._replies.tenant.dice.roll())
        self._quiet_until_s = asyncio.get_running_loop().time() + pause / 1000
        told = {"trouble": str(trouble.trouble), "error": str(trouble), "pauseMs": pause}
        self._replies.tell("messenger:post:failed", reply, told)
        return what


def _word(problem: Exception | None) -> str:
    """What went wrong with a request, in a word."""
    if isinstance(problem, ProviderTrouble):
        return str(problem.trouble)
    return "" if problem is None else type(problem).__name__
