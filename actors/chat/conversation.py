"""One chat agent's conversation: requests made into turns, notifications, listing, deleting."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import cast

from perdure.actors.chat.chat_messages import (
    MESSAGES_MAX,
    METADATA_BYTES_MAX,
    RESERVED_METADATA,
    as_messages,
    checked_data,
    for_storage,
    trusted_with,
)
from perdure.actors.chat.client_answers import CHAT, OF_CHAT, check_may_say
from perdure.actors.chat.conversation_state import ChatAuthor, ConversationState
from perdure.actors.chat.feed import PER_ROW, Feed
from perdure.actors.chat.tools import client_tools
from perdure.actors.chat.turn import STEER, SteerReceipt, Turn, TurnSettings
from perdure.actors.chat.turns import AFTER_A_LOOK, Turns
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.activity import ACTIVITY
from perdure.actors.life.results import RunInfo
from perdure.actors.tasks import awaited
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import (
    BEGAN_BY,
    BadRequest,
    ConflictingRequest,
    check_id,
    check_number,
    check_text,
    check_whole,
    check_words,
    digest_of,
    pack,
)
from perdure.policies import (
    TURN_ENDED,
    Answerer,
    ChatRecovery,
    ContextOverflow,
    Event,
    JsonObject,
    Message,
    Role,
    TurnStatus,
)

TRIGGERS = frozenset({"chat", "save", "submission", "continue", "regenerate", STEER})
OPTIONS = frozenset(
    {"metadata", "client_tools", "chat_stream_stall_timeout_ms", "idempotency_key", "instead_of", "keep"}
)
NAMED = OPTIONS | {"request_id", "follow"}
"""What an author may write; these two are taken by the caller's side."""
STEERS_BY = frozenset({"metadata", "client_tools", "idempotency_key"})
ASKERS, STEERERS = ("user", "system"), ("user",)
STALL = "chat_stream_stall_timeout_ms"
LISTED_MAX, DELETED_MAX = 100, 500
LOOK_S = 0.5


class Conversation:
    """One chat agent's conversation, in one life of it."""

    def __init__(self, agent: ChatAuthor, tenant: Tenant, restart: Callable[[], None]) -> None:
        self.agent, self.tenant = agent, tenant
        self.state = ConversationState(agent, tenant)
        self.turns = Turns(self.state, restart)
        self.feed = Feed(self.state)
        self.local_caller = LocalCaller(self)

    # requests

    def accept_request(
        self, trigger: str, messages: object, request_id: object, options: Mapping[str, object]
    ) -> dict[str, object]:
        # `BadRequest` names the field; then nothing was written.
        if trigger not in TRIGGERS:
            raise BadRequest("trigger", f"{trigger!r:.200} is not one of {', '.join(sorted(TRIGGERS))}")
        turn = self.request(trigger, messages, request_id, options)
        if trigger == STEER:
            return {**self._steered(self.turns.accept(turn), turn)}
        if self.turns.drops(turn):
            words = "A turn was under way, and this agent takes no messages meanwhile."
            dropped = {"status": TurnStatus.SKIPPED, "reason": "dropped", "error": words, "accepted": False}
            return {**self._told(turn), **dropped}
        accepted = self.turns.accept(turn)
        return {**self._told(accepted), "accepted": accepted is turn}

    def _steered(self, accepted: Turn, asked: Turn) -> SteerReceipt:
        ids = [each["id"] for each in accepted.messages] or self.state.store.asked_with(accepted.request_id)
        return {
            "request_id": accepted.request_id,
            "message_id": ids[0],
            "steered": self.turns.steered_by(accepted) or None,
            "accepted": accepted is asked,
        }

    def request(self, trigger: str, messages: object, request_id: object, options: Mapping[str, object]) -> Turn:
        """The turn for a request, not accepted yet. An agent whose class has bounds that are none takes no turn."""
        ChatRecovery.of(self.agent.chat_recovery)
        ContextOverflow.of(self.agent.context_overflow)
        # A gateway says who asks, beside the options of authors. The same content is the same turn, whoever asks again.
        unknown = options.keys() - (STEERS_BY if trigger == STEER else OPTIONS) - {BEGAN_BY}
        if unknown:
            named = STEERS_BY | {"request_id"} if trigger == STEER else NAMED
            raise BadRequest(min(unknown), f"is not an option; there are {', '.join(sorted(named))}")
        if trigger == STEER and isinstance(messages, list | tuple):
            raise BadRequest("message", f"is a list of {len(messages)}; steer by one text or message at a time")
        limit, given = self.tenant.limits.id_max, options.get("idempotency_key")
        key = check_id("idempotency_key", given, limit) if given else ""
        if request_id is None and key:
            request_id = f"key-{digest_of(key.encode())}"
        request_id = check_id("request_id", request_id, limit)
        added: list[Message] = []
        if trigger not in AFTER_A_LOOK:
            numbered = (f"{request_id}-{number}" for number in count())
            field, roles = ("message", STEERERS) if trigger == STEER else ("messages", ASKERS)
            added = as_messages(messages, new_id=numbered.__next__, roles=roles, field=field)
            if not added:
                raise BadRequest("messages", "is empty; at least one message is needed")
        self._check_roles(added)
        if self.turns.views.find(request_id) is None:
            self._check_known(added, request_id, options)
            self._check_replaced(trigger, options)
        metadata = checked_data("metadata", options.get("metadata"), METADATA_BYTES_MAX)
        told = {name: options[name] for name in ("client_tools", STALL, "instead_of", "keep") if name in options}
        check_number(STALL, told.get(STALL, 0), unit="milliseconds", is_finite=True)
        client_tools(told.get("client_tools", ()))
        return Turn(
            request_id,
            0,
            trigger,
            f"{request_id}-answer",
            # the same content is the same turn, whether chat, save or submit asks for it
            digest=digest_of(
                pack([trigger if trigger == "regenerate" else trigger == "continue", added, metadata, told])
            ),
            messages=added,
            options=cast("TurnSettings", told),
            metadata=metadata,
            idempotency_key=key,
            trace=carried_text(),
            began_by=check_text(BEGAN_BY, options.get(BEGAN_BY, "")),
        )

    def _check_roles(self, messages: Sequence[Message]) -> None:
        for at, each in enumerate(messages):
            known = self.state.transcript.get(each["id"])
            if known is not None and known["role"] != each["role"]:
                raise BadRequest(f"messages[{at}].id", f"{each['id']} is a message of the {known['role']}")

    def _check_known(self, messages: Sequence[Message], request_id: str, options: Mapping[str, object]) -> None:
        # A message that comes with the id of another one is that one.
        replaced = None if options.get("keep") else options.get("instead_of")
        for at, each in enumerate(messages):
            if each["id"] == replaced:
                continue
            known = self.state.transcript.get(each["id"])
            if known is not None and not each["id"].startswith(f"{request_id}-") and known != for_storage(each):
                words = f"{each['id']} is a message with other content; replace it by `instead_of` or add_messages"
                raise ConflictingRequest(f"messages[{at}].id", words)

    def _check_replaced(self, trigger: str, options: Mapping[str, object]) -> None:
        instead_of, keep = options.get("instead_of"), options.get("keep", False)
        if not isinstance(keep, bool):
            raise BadRequest("keep", f"{keep!r:.200} is neither True nor False")
        if instead_of is None:
            if keep and trigger != "regenerate":
                raise BadRequest("keep", "says what becomes of what is replaced; `instead_of` is missing")
            return
        wanted = "assistant" if trigger == "regenerate" else "user"
        known = self.state.transcript.get(instead_of) if isinstance(instead_of, str) else None
        if trigger == "continue" or known is None or known["role"] != wanted:
            raise BadRequest("instead_of", f"{instead_of!r:.200} is not the id of a message of the {wanted}")

    def delete_messages(self, message_ids: object, *, is_trusted: bool = True) -> int:
        if not isinstance(message_ids, list | tuple) or not all(isinstance(each, str) for each in message_ids):
            raise BadRequest("message_ids", f"{message_ids!r:.200} is not a list of ids")
        busy, instructions = self._busy(), set() if is_trusted else self._of_system()
        for at, each in enumerate(message_ids):
            if each in busy:
                raise BadRequest(f"message_ids[{at}]", f"{each} belongs to a turn under way; cancel that first")
            if each in instructions:
                words = f"{each} is a message of the system; to delete it needs the scope 'admin'"
                raise BadRequest(f"message_ids[{at}]", words)
        found = [each for each in dict.fromkeys(message_ids) if each in self.state.transcript]
        self._write([], found)
        return len(found)

    def replace_messages(self, messages: Sequence[Message], *, is_trusted: bool) -> None:
        messages, busy = self._with_ours(messages), self._busy()
        fixed = busy if is_trusted else busy | self._sent_back(messages, busy) | self._of_system()
        kept = {each["id"] for each in messages} | fixed
        gone = [each["id"] for each in self.state.transcript.messages if each["id"] not in kept]
        changed = [
            each for each in messages if each["id"] not in fixed and each != self.state.transcript.get(each["id"])
        ]
        self._write(changed, gone)

    def _with_ours(self, messages: Sequence[Message]) -> list[Message]:
        self._check_roles(messages)
        return [self._come_back(each) for each in messages]

    def _come_back(self, message: Message) -> Message:
        # It lacks what the conversation alone says of it: that another one has replaced it, too.
        held = (self.state.transcript.get(message["id"]) or message).get("metadata", {})
        ours = {key: held[key] for key in RESERVED_METADATA & held.keys()}
        return {**message, "metadata": {**message.get("metadata", {}), **ours}} if ours else message

    def _sent_back(self, messages: Sequence[Message], busy: set[str]) -> set[str]:
        # What the conversation holds of what not everybody is trusted with. Who is not has it from there, and sends nothing else of that.
        waiting = [each for turn in self.state.open.values() for each in turn.messages]
        held = {each["id"]: for_storage(each)["parts"] for each in (*self.state.transcript.messages, *waiting)}
        told = [(at, each, trusted_with(each)) for at, each in enumerate(messages) if each["id"] not in busy]
        sent = [each for each in told if each[2]]
        for at, each, what in sent:
            if for_storage(each)["parts"] != held.get(each["id"]):
                words = f"{what} may be sent back as the conversation holds it; another one needs the scope 'admin'"
                raise BadRequest(f"messages[{at}]", words)
        return {each["id"] for _, each, _ in sent}

    def _write(self, messages: Sequence[Message], gone: Sequence[str]) -> None:
        transcript = self.state.transcript
        placed = transcript.placed(list(messages))
        removed = [(transcript.position(each), None) for each in gone]

        def then() -> None:
            transcript.remove(gone)
            transcript.put(placed)
            self.turns.history.changed(each["id"] for each in messages)

        if removed or placed:
            self.state.store.write(messages=[*removed, *placed], then=lambda: self.tenant.on_loop(then))

    def _of_system(self) -> set[str]:
        return {each["id"] for each in self.state.transcript.messages if each["role"] == "system"}

    def _busy(self) -> set[str]:
        return {each for turn in self.state.open.values() for each in (turn.message_id, turn.user_message_id)}

    def standing(self, request_id: str) -> dict[str, object]:
        """How the conversation stands, for a follower of its feed: the number to go on from, the ids and roles of all messages,
        the open turns, the newest ended one and how long ago that was, the turn of a request, and one to be resumed, or None for each."""
        store, known = self.state.store, self.turns.views.find(request_id) if request_id else None
        over = (turn for turn in store.turns() if turn.is_over and not turn.was_read)
        last = max(over, key=lambda turn: turn.ended_at_ms, default=None)

        return {
            "next": store.next_row * PER_ROW,
            "messages": [[each["id"], each["role"]] for each in self.state.transcript.messages],
            "turns": [
                self._standing_of(each) for each in sorted(self.state.open.values(), key=lambda turn: turn.number)
            ],
            "last": self._standing_of(last),
            "last_ms_ago": None if last is None else self.tenant.now_ms() - last.ended_at_ms,
            "known": self._standing_of(known),
            "resumable": self._standing_of(self._resumable()),
        }

    def _resumable(self) -> Turn | None:
        """The turn whose stream is told to a client that comes back: the one that is played, or comes next; else the one that wrote the
        newest message, for a while after it has ended or begun to wait for a person. A client that has lost its line in it cannot know."""
        steered_by = self.turns.steered_by
        opened = [each for each in self.state.open.values() if not steered_by(each)]
        under_way = [each for each in opened if each.status is not TurnStatus.PARKED]
        if under_way:
            return min(under_way, key=lambda turn: turn.number)
        leaf, store = self.state.transcript.leaf, self.state.store
        known = {turn.request_id: turn for turn in store.turns()} | self.state.open
        played = (turn for turn in known.values() if not steered_by(turn))
        newest = max(played, key=lambda turn: turn.number, default=None)
        if leaf is None or newest is None or not newest.attempt:
            return None
        since_ms = self.tenant.now_ms() - (newest.parked_at_ms or newest.ended_at_ms)
        is_shown = newest.message_id == leaf["id"] or (
            newest.status is TurnStatus.ERROR and leaf["id"] in store.asked_with(newest.request_id)
        )
        return newest if is_shown and since_ms < self.tenant.limits.stream_kept_ms else None

    def _standing_of(self, turn: Turn | None) -> dict[str, object] | None:
        if turn is None:
            return None
        events = self.state.streams[turn.request_id].events if turn.request_id in self.state.streams else []
        last = events[turn.events - 1]["type"] if 0 < turn.events <= len(events) else ""
        is_recovering = turn.status is TurnStatus.RUNNING and (
            turn.request_id not in self.state.ours or last in ("data-attempt", "data-interrupted")
        )
        waiting = [each["id"] for each in turn.messages]
        return {
            **self._told(turn),
            "waiting": turn.messages,
            "message_ids": waiting or self.state.store.asked_with(turn.request_id),
            "is_continuation": bool(turn.continues),
            "is_recovering": is_recovering,
            "waits_for": self.turns.answers.waited_for(turn),
        }

    def unnested(self, method: str, *, is_waiting: bool = True) -> Conversation:
        # Inside a turn of this agent or a transaction a turn could never begin.
        activity, playing = ACTIVITY.get(), self.turns.playing
        work = () if activity is None else (activity.origin, activity.within)
        if playing is not None and playing.live.activity in work:
            words = "a turn cannot wait for another turn of its own agent, nor for its own end"
            raise BadRequest(method, f"{words}; use submit_messages or add_messages")
        if is_waiting and self.tenant.transaction is not None:
            words = "a turn begins when the transaction of a handler is committed, so nothing in it can wait for one"
            raise BadRequest(method, f"{words}; use submit_messages")
        return self

    def answer(self, event: Event, who: Answerer = OF_CHAT, channel: str = CHAT) -> bool:
        # An answer to an imported call begins a turn, which continues its message.
        answers, call_id = self.turns.answers, event["toolCallId"]
        if answers.answer(event, who, channel):
            return True
        part = next((part for part in answers.imported() if part["toolCallId"] == call_id), None)
        if part is None:
            return False
        check_may_say(event, part, who)
        request_id = f"answer-{digest_of(call_id.encode())}-{self.state.tenant.dice.token()}"
        began_by = "" if who.is_operator else who.name
        turn = Turn(request_id, 0, "continue", f"{request_id}-answer", options={"answer": event}, began_by=began_by)
        self.turns.accept(turn)
        return True

    # notifications

    def notify(self, run: RunInfo, text: str) -> None:
        # Once, however often the mail comes.
        if not text.strip():
            return
        request_id = f"notify-{digest_of(run.delivery_id.encode())}"
        message = _told_by(run, f"{request_id}-0", "user", text)
        turn = Turn(request_id, 0, "notification", f"{request_id}-answer", messages=[message])
        self.turns.accept(turn)

    def narrate(self, run: RunInfo, text: str) -> None:
        if text.strip():
            message_id = f"narrate-{digest_of(run.delivery_id.encode())}"
            self.add([_told_by(run, message_id, "assistant", text)])

    def add(self, messages: Sequence[Message]) -> int:
        self._write(self._with_ours(messages), [])
        return len(messages)

    # waiting, looking, forgetting

    async def stable(self, timeout_ms: float | None) -> bool:
        # Waits until no turn is open and no imported call waits for the client. False if that takes longer.
        try:
            async with asyncio.timeout(None if timeout_ms is None else max(0.0, timeout_ms) / 1000):
                while self.state.open or self.turns.answers.imported():
                    await (self._any_end() if self.state.open else asyncio.sleep(LOOK_S))
        except TimeoutError:
            return not (self.state.open or self.turns.answers.imported())
        return True

    async def _any_end(self) -> None:
        waiting = [awaited(self.turns.ended(request_id)) for request_id in self.state.open]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                if each.done():
                    each.result()
        finally:
            for each in waiting:
                each.cancel()

    def messages(self, limit: int | None, before: str | None) -> list[Message]:
        transcript = self.state.transcript
        if before is not None and before not in transcript:
            raise BadRequest("before", f"{before!r:.200} is not the id of a message")
        found = transcript.messages if before is None else transcript.before(before)
        return found if limit is None else found[-_limit(limit, MESSAGES_MAX) :]

    def inspect(self, request_id: str) -> dict[str, object] | None:
        turn = self.turns.views.find(request_id)
        return None if turn is None else self._told(turn)

    def _told(self, turn: Turn) -> dict[str, object]:
        names = ("request_id", "status", "trigger", "idempotency_key", "metadata", "error", "reason", "attempt")
        instants = ("accepted_at_ms", "started_at_ms", "ended_at_ms", "progress_at_ms")
        counts = ("events", "parked_events", "message_id", "base", "work")
        told = {name: getattr(turn, name) for name in (*names, *instants, *counts)}
        beside = {"incident": turn.incident, "cancelled": turn.cancelled}
        return {**told, **beside, "steers": self.turns.steered_by(turn)}

    def list(self, status: object, limit: int) -> list[dict[str, object]]:
        """The newest turns of these statuses, in the order of their acceptance."""
        wanted, most = _statuses(status), _limit(limit, LISTED_MAX)
        found = {turn.request_id: turn for turn in self.state.store.turns()} | self.state.open
        chosen = [turn for turn in found.values() if wanted is None or turn.status in wanted]
        chosen.sort(key=lambda turn: turn.number)
        return [self._told(turn) for turn in chosen[-most:]]

    def delete(self, status: object, ended_before: int | None, limit: int) -> int:
        # The oldest first.
        wanted, most = TURN_ENDED if status is None else _statuses(status), _limit(limit, DELETED_MAX)
        before = float("inf") if ended_before is None else ended_before
        found = [
            turn.request_id
            for turn in self.state.store.turns()
            if turn.is_over and turn.status in (wanted or ()) and turn.ended_at_ms < before
        ]
        if found:
            self.state.store.drop(found[:most])
            self.turns.views.forget()
        return len(found[:most])

    async def clear(self) -> None:
        while self.state.open:
            for request_id in list(self.state.open):
                await self.turns.cancel(request_id, "the conversation was cleared")
            if self.state.open:
                await self._any_end()
        self.turns.forget()


# The caller of an agent that follows its own turns.
class LocalCaller:
    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self.threads = conversation.tenant.threads

    def token(self) -> str:
        return self._conversation.state.tenant.dice.token()

    async def call(self, method: str, *args: object, **kwargs: object) -> object:
        return await getattr(self._conversation.agent, method)(*args, **kwargs)

    @property
    def idle_s(self) -> float:
        return self._conversation.tenant.limits.idle_ms / 1000

    async def is_awake(self) -> bool:
        return True


def _told_by(run: RunInfo, message_id: str, role: Role, text: str) -> Message:
    source = run.source or "detached-agent-tool"
    metadata: JsonObject = {"source": source, "runId": run.run_id, "agentType": run.agent_type}
    return {"id": message_id, "role": role, "parts": [{"type": "text", "text": text}], "metadata": metadata}


def _statuses(given: object) -> frozenset[str] | None:
    return None if given is None else check_words("status", given, TurnStatus)


def _limit(given: object, most: int) -> int:
    return min(check_whole("limit", given), most)
