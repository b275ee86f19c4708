"""Questions to people in a thread: a message with a button for each answer, and what the press of a button does.

A question is a reply of its own (`replies`), delivered and edited like all others. It asks whether a call of a turn may be made, or what a
run asks people. The key of a button names the question and the place of the answer; what they mean is on record here alone.

    press, a webhook ──► accepted, in one commit ──► decided, once ──► the presser is told, and the message shows the outcome

Presses of one question are decided in the order in which they were accepted. An approval is decided in the commit that answers the turn,
an answer to a run by the ledger, which knows a repeated one by its id. So a death changes neither who was first nor what counts.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple, Protocol, cast
from weakref import WeakValueDictionary

from perdure.actors.chat.chat_agent import ChatAgent
from perdure.actors.chat.client_answers import NO_ANSWER_IN_TIME
from perdure.actors.chat.turns import Turns
from perdure.actors.code.author_call import without_middle
from perdure.actors.host.tenant import Tenant
from perdure.actors.life.asks import Answering
from perdure.actors.link.questions import about_ask, question_of
from perdure.actors.messenger.adapter import Button, ButtonAdapter, Messenger
from perdure.actors.messenger.messenger_events import OURS, MessengerEvent, short
from perdure.actors.messenger.replies import AskedInThread, Replies, ReplyRow, heard_key
from perdure.actors.ports import KillPoint
from perdure.actors.telemetry.telemetry import carried_text
from perdure.ledger import APPROVAL, AskRow, BadRequest, UnknownAsk, digest_of
from perdure.policies import Answerer, Json, JsonObject, Part, ReplyEvent

QUESTION, PRESS = "question", "press"
CHANNEL: Final = "messenger"
CHOICES_MAX: Final = 8
LABEL_CHARS_MAX: Final = 60
SHOWN_CHARS_MAX: Final = 2_000  # of arguments
NAME_CHARS_MAX: Final = 100
UNKNOWN: Final = "This question is not known here any more."
NOT_YOU: Final = "You may not answer this."
NO_BUTTONS: Final = "This messenger has no buttons. It is answered elsewhere: see `perdure asks`."
NO_LONGER: Final = "No longer asked."


class Choice(NamedTuple):
    label: str
    value: Json


YES_OR_NO: Final = (Choice("Yes", True), Choice("No", False))
APPROVE_OR_DENY: Final = (Choice("Approve", True), Choice("Deny", False))


class KeepsReplies(Protocol):
    # `deliveries.Deliveries`, which imports this module.

    def messenger(self, messenger_id: str) -> Messenger: ...

    def groups_of(self, messenger_id: str, thread_id: str) -> list[str]: ...

    def next_number(self) -> int: ...

    def keep(self, row: ReplyRow, event: MessengerEvent | None = None) -> None: ...


class ThreadQuestions:
    """The questions of one agent to the people of its threads, in one life of it."""

    def __init__(self, agent: ChatAgent, tenant: Tenant, replies: Replies, keeper: KeepsReplies) -> None:
        self._agent, self._tenant, self._replies, self._keeper = agent, tenant, replies, keeper
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def turns(self) -> Turns:  # after a failure of the storage they are other objects
        return self._agent._perdure_conversation.turns

    def _find(self, reply_id: str) -> ReplyRow | None:
        return self._replies.open.get(reply_id) or self._replies.rows.get(reply_id)

    # asking

    def review(self, reply: ReplyRow, *, is_parked: bool) -> None:
        # Each call that needs approval is asked for once. Questions that were answered elsewhere are closed.
        wanted = {str(ask["ask_id"]): ask for ask in self.turns.answers.approvals(reply.request_id)}
        for ask_id, ask in wanted.items() if is_parked else ():
            if ask_id not in reply.approvals:
                asked = self._asked(ask, self._keeper.groups_of(reply.messenger_id, reply.thread_id))
                asked |= {"call_id": ask["call_id"] or "", "request_id": reply.request_id}
                with self._tenant.outbox.transact():
                    row = self._post(reply.messenger_id, reply.thread_id, asked, ask_text(ask), APPROVE_OR_DENY)
                    self._replies.change(reply, approvals={**reply.approvals, ask_id: row.reply_id})
        for ask_id, question_id in reply.approvals.items():
            question = self._find(question_id) if ask_id not in wanted else None
            if question is not None and question.asked is not None and question.is_asking:
                self._close(question, self._elsewhere(question.asked))

    def has_open(self, reply: ReplyRow) -> bool:
        asked = (self._find(each) for each in reply.approvals.values())
        return any(each is not None and each.is_asking for each in asked)

    def ask(self, ask: AskRow, messenger_id: str, thread_id: str, groups: Collection[str]) -> None:
        # The post is part of the open transaction. `groups` are those as which the thread may answer.
        choices = choices_of(ask["schema"])
        self._post(messenger_id, thread_id, self._asked(ask, groups), ask_text(ask, is_choice=bool(choices)), choices)

    @staticmethod
    def _asked(ask: AskRow, groups: Collection[str]) -> AskedInThread:
        return AskedInThread(kind=ask["kind"], ask_id=ask["ask_id"], digest=ask["digest"], groups=sorted(groups))

    def _post(
        self, messenger_id: str, thread_id: str, asked: AskedInThread, text: str, choices: Sequence[Choice]
    ) -> ReplyRow:
        has_buttons = isinstance(self._keeper.messenger(messenger_id).adapter, ButtonAdapter)
        words = text if has_buttons or not choices else f"{text}\n\n{NO_BUTTONS}"
        asked |= {"text": text, "values": [each.value for each in choices], "labels": [each.label for each in choices]}
        number = self._keeper.next_number()
        key = f"messenger:{messenger_id}:{QUESTION}:{number}"
        row = ReplyRow(number, messenger_id, thread_id, key, kind=QUESTION, words=words, asked=asked)
        row.buttons = asked["labels"] if has_buttons else []
        row.opened_at_ms, row.trace = self._tenant.now_ms(), carried_text()
        self._keeper.keep(row)
        return row

    # presses

    def press(self, event: MessengerEvent, refusal: str) -> JsonObject:
        """Accept the press of a button, as part of the open transaction. With a refusal it counts for nothing, and that is told."""
        known = self._replies.heard(event)
        if known is not None:
            return {"accepted": False, "reply": known["reply"], "why": "heard before"}
        assert event.action is not None, "a press is an action"
        question_id, _, place = event.action.value.partition(":")
        question = self._find(question_id)
        is_here = question is not None and question.is_of(event.messenger_id, event.thread_id)
        is_place = place.isascii() and place.isdigit() and len(place) < LABEL_CHARS_MAX
        if not (is_here and is_place and question is not None and question.has_place(int(place))):
            refusal = refusal or UNKNOWN
        number = self._keeper.next_number()
        row = ReplyRow(number, event.messenger_id, event.thread_id, event.key, kind=PRESS, words=refusal or None)
        row.press = {
            "press_id": event.action.press_id,
            "question": question_id,
            "place": 0 if refusal else int(place),
            "author": event.author.id,
            "name": _one_line(event.author.label),
            "who": short(f"{event.provider}:{_one_line(event.author.label)} ({event.author.id})"),
        }
        row.heard = [heard_key(event)]
        row.opened_at_ms, row.trace = self._tenant.now_ms(), carried_text()
        self._keeper.keep(row, event)
        self._replies.emit("messenger:accepted", row, {"key": event.key, "joined": False})
        return {"accepted": True, "reply": row.reply_id}

    async def decide(self, press: ReplyRow) -> None:
        # Presses of its question that were accepted before it are decided first. Afterwards its words say what came of it.
        assert press.press is not None, "this is for presses"
        question_id = press.press["question"]
        lock = self._locks.setdefault(question_id, asyncio.Lock())
        async with lock:
            presses = [
                each for each in self._replies.open.values() if each.press and each.press["question"] == question_id
            ]
            for each in sorted(presses, key=lambda row: row.number):
                if each.number <= press.number and each.words is None and each.cancelled is None:
                    await self._decide(each, question_id)

    async def _decide(self, press: ReplyRow, question_id: str) -> None:
        question = self._find(question_id)
        if question is None or question.asked is None or press.press is None:
            self._replies.change(press, words=UNKNOWN)
        elif not question.is_asking:
            self._replies.change(press, words=f"Answered already. {question.asked.get('outcome', NO_LONGER)}")
        elif question.asked["kind"] == APPROVAL:
            self._approve(question, question.asked, press)
        else:
            await self._answer(question, question.asked, press)

    def _answering(self, asked: AskedInThread, press: ReplyRow) -> Answering:
        assert press.press is not None, "this is for presses"
        known = asked.get("people", {}).get(press.press["author"])  # a new name makes nobody somebody else
        by = Answerer(known or press.press["who"], asked["groups"])
        answer_id = digest_of(f"press {self._tenant.agent_id} {press.reply_id}".encode())
        value = asked["values"][press.press["place"]]
        return Answering(asked["ask_id"], value, by, CHANNEL, answer_id, digest=asked["digest"])

    def _approve(self, question: ReplyRow, asked: AskedInThread, press: ReplyRow) -> None:
        # Answer, outcome and words are one commit, so whoever is told to have been first was it.
        given = self._answering(asked, press)
        self._tenant.faults.at(KillPoint.BEFORE_EFFECT, "messenger answer")
        with self._tenant.outbox.transact():
            try:
                row: AskRow | None = self.turns.answers.decided(asked["ask_id"], given.said(self._tenant.limits))
                self._note(question, asked, press, _came_to(row, asked, None), row)
            except BadRequest as refusal:
                is_open = any(
                    each["ask_id"] == asked["ask_id"] for each in self.turns.answers.approvals(asked["request_id"])
                )
                outcome = "" if is_open else self._elsewhere(asked)
                words = refusal.problem if is_open else f"Answered already. {outcome}"
                self._note(question, asked, press, (words, outcome), None)
        self._tenant.faults.at(KillPoint.AFTER_EFFECT, "messenger answer")

    async def _answer(self, question: ReplyRow, asked: AskedInThread, press: ReplyRow) -> None:
        services, refusal = self._tenant.services, None
        row: AskRow | None = None
        given = self._answering(asked, press)
        await services.until_durable()
        self._tenant.faults.at(KillPoint.BEFORE_EFFECT, "messenger answer")
        try:
            row = cast("AskRow", await given.give(services.supervisor, self._tenant.limits))
        except BadRequest as problem:
            refusal = problem
        self._tenant.faults.at(KillPoint.AFTER_EFFECT, "messenger answer")
        row = await self._row_of(asked["ask_id"]) if row is None else row
        with self._tenant.outbox.transact():
            voted = row if refusal is None else None
            self._note(question, asked, press, _came_to(row, asked, refusal), voted)

    def _note(
        self,
        question: ReplyRow,
        asked: AskedInThread,
        press: ReplyRow,
        came_to: tuple[str, str],
        voted: AskRow | None,
    ) -> None:
        # Keeps the words for the presser, and the outcome, or the votes so far if the question is still open.
        words, outcome = came_to
        self._replies.change(press, words=words)
        if outcome:
            self._close(question, outcome)
        elif voted is not None and press.press is not None:
            people = {press.press["author"]: press.press["who"], **asked.get("people", {})}
            now: AskedInThread = {**asked, "people": people}
            self._revise(question, f"{asked['text']}\n\n{_votes(voted, asked)}", question.buttons, now)

    async def _row_of(self, ask_id: str) -> AskRow | None:
        try:
            return cast("AskRow", await self._tenant.services.supervisor.ask(question_of(*about_ask(ask_id))))
        except UnknownAsk:
            return None

    def _elsewhere(self, asked: AskedInThread) -> str:
        # What a call came to that was answered by another way.
        turn = self.turns.views.find(asked["request_id"])
        message = None if turn is None else self.turns.views.result_of(turn).message
        parts: Sequence[Part] = [] if message is None else message["parts"]
        part = next((each for each in parts if each.get("toolCallId") == asked["call_id"]), None)
        approval = {} if part is None else part.get("approval", {})
        if "approved" not in approval:
            return NO_LONGER
        if approval.get("reason") == NO_ANSWER_IN_TIME:
            return NO_ANSWER_IN_TIME
        who = approval.get("by", {}).get("who")
        return _sentence(_decided(approved=approval["approved"], by=f"by {who}" if who else "elsewhere"))

    # what is shown afterwards

    def _close(self, question: ReplyRow, outcome: str) -> None:
        assert question.asked is not None, "this is for questions"
        closed: AskedInThread = {**question.asked, "outcome": outcome}
        self._revise(question, f"{question.asked['text']}\n\n**{outcome}**", [], closed)

    def _revise(self, question: ReplyRow, words: str, buttons: list[str], asked: AskedInThread) -> None:
        status = question.next(ReplyEvent.REVISED)
        if status is None:  # whoever delivers it shows the new words after the old ones
            self._replies.change(question, words=words, buttons=buttons, asked=asked)
            return
        again = replace(question, status=status, words=words, buttons=buttons, asked=asked, round=question.round + 1)
        again.outcome = again.problem = ""
        again.tries = again.busy = again.settled_at_ms = 0
        again.ready_at_ms = self._tenant.now_ms()
        self._keeper.keep(again)


def buttons_of(row: ReplyRow) -> list[Button]:
    return [Button(label, f"{OURS}:{row.reply_id}:{place}") for place, label in enumerate(row.buttons)]


# ---------------------------------------------------------------- words


def choices_of(schema: Mapping[str, Any]) -> list[Choice]:
    # Empty if there are too many answers, or no list of them.
    if schema.get("type") == "boolean" and "enum" not in schema and "const" not in schema:
        return [*YES_OR_NO]
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    if len(values) > CHOICES_MAX or not all(isinstance(each, str | int | float | bool | None) for each in values):
        return []
    return [Choice(_label(each), each) for each in values]


def _label(value: object) -> str:
    text = _one_line(value if isinstance(value, str) else json.dumps(value), LABEL_CHARS_MAX)
    return text or "(nothing)"


def _one_line(text: str, most: int = NAME_CHARS_MAX) -> str:
    line = " ".join(text.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def ask_text(ask: AskRow, *, is_choice: bool = True) -> str:
    said = [str(ask["question"])]
    if ask["args"]:
        said.append(_as_code(ask["args"]))
    if ask["note"]:
        said.append(without_middle(str(ask["note"]), SHOWN_CHARS_MAX))
    if ask["expires_at_ms"]:
        until = datetime.fromtimestamp(ask["expires_at_ms"] / 1000, UTC)
        said.append(f"Until {until:%Y-%m-%d %H:%M} UTC.")
    if not is_choice:
        said.append(f"Answer it by `perdure answer {ask['ask_id']} ANSWER`, or where questions are answered.")
    return "\n".join(said)


def _as_code(value: object) -> str:
    text = without_middle(json.dumps(value, ensure_ascii=False, indent=1, default=str), SHOWN_CHARS_MAX)
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _came_to(row: AskRow | None, asked: AskedInThread, refusal: BadRequest | None) -> tuple[str, str]:
    # What the presser is told, and the outcome; that is empty while the question is open.
    if row is None:
        return UNKNOWN, NO_LONGER
    if row["status"] == "answered":
        outcome = _sentence(_said(row["answers"][-1], asked))
        return (outcome if refusal is None else f"Answered already. {outcome}"), outcome
    if row["status"] != "open":
        outcome = "It has expired." if row["status"] == "expired" else NO_LONGER
        return outcome, outcome
    if row["digest"] != asked["digest"]:  # a run has asked something else in its place
        outcome = "It was asked anew, with other words."
        return outcome, outcome
    return (_votes(row, asked) if refusal is None else refusal.problem), ""


def _votes(row: AskRow, asked: AskedInThread) -> str:
    latest = {each["who"]: each for each in row["answers"]}
    said = ", ".join(_said(each, asked) for each in latest.values())
    return f"{row['people']} people are asked to say the same. So far: {_sentence(said)}"


def _said(answer: Mapping[str, object], asked: AskedInThread) -> str:
    labels = [label for label, value in zip(asked["labels"], asked["values"], strict=True) if value == answer["value"]]
    if asked["kind"] == APPROVAL:
        return _decided(approved=answer["value"] is True, by=f"by {answer['who']}")
    return f"{labels[0] if labels else _label(answer['value'])}, said by {answer['who']}"


def _decided(*, approved: bool, by: str) -> str:
    return f"{'Approved' if approved else 'Denied'} {by}"


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
