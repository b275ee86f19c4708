"""Decisions about questions to people, and what is told of them.

A question belongs to a run, and stands in its record. The run asks it again in each attempt that comes to the same place, by its number and
the digest of what it says: the same one is open, or answered, already; another one takes its place, and what was answered to the former
counts for nothing. An answer reaches the run as an event does (`folds`), once. A question ends with its run.

A call of a chat that waits for a person, or for its client, is such a question too. Its chat decides about the answer, by the same rules
(`checked_answer`), in the commit by which the turn goes on. The ledger knows which of them are open (`CallsAsked`), so that there is one
list, and where an answer is to go.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from functools import cache
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from re import Pattern
from typing import Any, Final, NamedTuple, TypedDict, get_args
from zoneinfo import ZoneInfo

from perdure.ledger.activation import Activation
from perdure.ledger.codec import pack, unpack
from perdure.ledger.errors import (
    AlreadyAnswered,
    AnswerForbidden,
    AnswerRefused,
    AskClosed,
    AskRefused,
    BadRequest,
    UnknownAsk,
)
from perdure.ledger.facts import AskAnswered, AskEscalated, AskLapsed, AskOpened, AskWithdrawn, Fact
from perdure.ledger.ids import digest_of, root_of, type_of
from perdure.ledger.run import AskRecord, GivenAnswer, Run, run_of
from perdure.ledger.status import AskStatus
from perdure.ledger.stimulus import AnswerAsk, OpenAsk, WithdrawAsk
from perdure.ledger.transitions import permits
from perdure.ledger.values import pack_value, unpack_value
from perdure.ledger.view import View
from perdure.ledger.wording import lasting
from perdure.policies import Answerer, Limits, Vote, answer_refusal, is_decided, with_vote

NO: Final = pack(False)
YES_OR_NO: Final = pack({"type": "boolean"})
"""The schema of an answer that is yes or no."""
ALARM_OF_ASKS: Final = "\0asks "
"""As `ALARM_OF_RUN`, before the id of a run whose questions go on to others, or expire."""
_UNREAD: Final = "its run has not read that yet, and asks again if it does not fit; `perdure asks` lists it then"
_CALL: Final = "call-"
_CLOSED_CALLS_MAX: Final = 1_000
QUESTION_TYPE: Final = "perdure.asks:Question"
"""The type of the runs by which agents ask people outside of their own runs."""
BEGAN_BY: Final = "began_by"
"""The option of a run that names who began it, where that is known."""


QUESTION: Final = "question"
APPROVAL: Final = "approval"
CLIENT_TOOL: Final = "client-tool"
"""The kinds of what people are asked: a question of a run; whether a call may be made; what a call has come to that a client makes."""


# For whoever looks at the question. `args` are the arguments as they were changed.
class AnswerRow(TypedDict):
    who: str
    channel: str
    at_ms: int
    value: object
    args: dict[str, object] | None


class EscalationRow(TypedDict):
    to: str
    at_ms: int


class AskRow(TypedDict):
    """A question for whoever is to answer it, as plain data. `agent` is who asks; `to` are those who may answer by now, `later` those to
    whom it goes on."""

    ask_id: str
    run_id: str | None
    agent: str
    agent_type: str
    kind: str
    tool: str | None
    call_id: str | None
    status: str
    question: str
    schema: dict[str, object]
    args: dict[str, object] | None
    to: list[str]
    later: list[EscalationRow]
    people: int
    self_answer: bool
    began_by: str | None
    opened_at_ms: int
    expires_at_ms: int | None
    otherwise: object
    note: str | None
    digest: str
    closed_at_ms: int | None
    answers: list[AnswerRow]


# A call of a chat that waits: for an approval, or for what it came to. `run_id` is the run that its turn answers, or empty.
class AskedCall(NamedTuple):
    call_id: str
    kind: str
    tool: str
    run_id: str
    ask: AskRecord

    def body(self) -> bytes:
        return pack([*self[:-1], [*self.ask]])

    @classmethod
    def load(cls, body: bytes) -> AskedCall:
        call_id, kind, tool, run_id, ask = unpack(body)
        return cls(call_id, kind, tool, run_id, AskRecord.from_plain(ask))


def ask_id(run_id: str, number: int) -> str:
    return f"{run_id}:{number}"


def call_ask_id(turn_origin: str, key: str) -> str:
    # `key` is the question's in its turn.
    return f"{_CALL}{digest_of(pack([turn_origin, key]))}"


def is_call_ask(asked: object) -> bool:
    return isinstance(asked, str) and asked.startswith(_CALL) and ":" not in asked


def asked_call(view: View, key: str) -> AskedCall:
    return AskedCall.load((view.agents[view.asked_calls[key]].calls or {})[key])


def named_ask(asked: object) -> tuple[str, int]:
    """The run and the number of a question, by its id. Raises `UnknownAsk` for what is no id of one."""
    run_id, _, number = asked.rpartition(":") if isinstance(asked, str) else ("", "", "")
    if not run_id or not number.isascii() or not number.isdigit() or len(number) > len(str(2**53)):
        raise UnknownAsk(
            "ask_id", f"{asked!r:.200} is no id of a question; one is the id of its run, a colon and a number"
        )
    return run_id, int(number)


def note_asks(view: View, run: Run) -> None:
    key, view.asks_stand = ALARM_OF_ASKS + run.run_id, None
    if view.asks.pop(run.run_id, 0) is None:
        view.alarms.disarm(key)
    due_ms = min((ask.next_at_ms for ask in run.open_asks), default=None)
    if due_ms is not None:
        view.asks[run.run_id] = None
        if not math.isinf(due_ms):
            view.alarms.arm(key, due_ms)
    view.settle(run)


def note_calls(view: View, activation: Activation, calls: dict[str, bytes]) -> None:
    # These calls wait for people, and no others of this chat.
    agent, view.asks_stand = activation.agent_id, None
    for ask_id in activation.calls or ():
        del view.asked_calls[ask_id]
        if ask_id not in calls:
            view.closed_calls[ask_id] = agent
    while len(view.closed_calls) > _CLOSED_CALLS_MAX:
        del view.closed_calls[next(iter(view.closed_calls))]
    activation.calls = calls or None
    view.asked_calls.update(dict.fromkeys(calls, agent))
    view.dirty_agents[agent] = None


# ---------------------------------------------------------------- decisions


def open_ask(view: View, run: Run | None, said: OpenAsk, limits: Limits) -> Iterator[Fact]:
    """A run asks people something, or comes to a question again. `run` is the run if its present life says so. Refused if it has too many
    open questions."""
    if run is None or not permits(run.status, AskOpened):
        return
    known = run.ask(said.number)
    if known is not None and known.digest == said.digest and not _is_to_be_asked_again(view, run, known, said):
        return
    others = sum(ask.is_open for ask in run.asks if ask is not known)
    if others >= limits.asks_max or len(view.events.get(run.run_id, ())) >= limits.events_max:
        words = f"run {run.run_id!r} has {others} open questions (asks_max is {limits.asks_max}), or too many events that it has not taken"
        raise AskRefused("question", f"{words}; this one was not asked")
    first_ms = min((at_ms for _, at_ms in said.to), default=0)
    level = sum(at_ms <= first_ms for _, at_ms in said.to)
    began_by = next((str(each.options[BEGAN_BY]) for each in _lineage(view, run) if each.options.get(BEGAN_BY)), "")
    yield AskOpened(
        run.run_id, said.number, said.digest, said.question, said.schema, said.args, said.to, level, said.people,
        said.self_answer, began_by, said.expires_at_ms, said.otherwise, said.note,
    )  # fmt: skip


def _is_to_be_asked_again(view: View, run: Run, known: AskRecord, said: OpenAsk) -> bool:
    mail_id = run.answer_mail(known)
    # What the run has taken it remembers: one that asks again has not taken it, or could do nothing with it.
    return known.status is AskStatus.WITHDRAWN or (
        not known.is_open and (said.refuses == mail_id or mail_id not in view.mail)
    )


def _lineage(view: View, run: Run) -> Iterator[Run]:
    # A run and all that led to it, as far as they are in memory: what waits for a result is.
    seen: set[str] = set()
    found: Run | None = run
    while found is not None and found.run_id not in seen:
        seen.add(found.run_id)
        yield found
        found = run_of(view.runs, root_of(found.parent))


def withdraw_ask(run: Run | None, said: WithdrawAsk) -> Iterator[Fact]:
    known = None if run is None else run.ask(said.number)
    if run is not None and known is not None and known.is_open and known.digest == said.digest:
        yield AskWithdrawn(run.run_id, known.number)


def answer_ask(view: View, said: AnswerAsk, at_ms: int) -> Iterator[Fact]:
    """Somebody answers a question. The first answer that counts closes it. Refused before anything is changed: for a question that is
    unknown or closed, or has changed since it was shown; from one who may not answer; and if it does not fit."""
    run = view.runs.get(said.run_id)
    ask = None if run is None or run.cleared else run.ask(said.number)
    if run is None or ask is None:
        raise UnknownAsk(
            "ask_id", f"no question {ask_id(said.run_id, said.number)!r} is known; `perdure asks` lists the open ones"
        )
    if ask.has_answer(said.answer_id):
        return  # it is told again
    gone = f"its run has ended ({run.status})" if run.has_ended else "its run waits for the answer no more"
    is_read = run.answer_mail(ask) not in view.mail
    edited, closes = checked_answer(ask, ask_id(run.run_id, ask.number), said, at_ms, gone, is_read=is_read)
    yield AskAnswered(
        run.run_id, ask.number, said.answer_id, ask.digest, said.who, said.channel, said.value, edited, closes
    )


def checked_answer(
    ask: AskRecord,
    named: str,
    said: AnswerAsk,
    at_ms: int,
    gone: str,
    fits: Callable[[object], None] | None = None,
    *,
    is_read: bool = True,
) -> tuple[bytes | None, bool]:
    """The arguments as somebody has changed them, if at all, and whether this answer closes the question. Refused, typed, if it does not
    count. `gone` says why the question was withdrawn, if it was; `fits` checks changed arguments. With `is_read` false the type of the one
    that counts may yet refuse it, which opens the question again."""
    _check_open(ask, named, at_ms, gone, is_read=is_read)
    if said.digest and said.digest != ask.digest:
        raise AnswerRefused("digest", f"what {named} asks has changed since it was shown; look at it again")
    who = Answerer(said.who, said.groups, said.is_operator, said.is_admin)
    problem = answer_refusal(who, {name for name, _ in ask.to[: ask.level]}, ask.began_by, self_answer=ask.self_answer)
    if problem:
        raise AnswerForbidden("who", problem)
    check_fits(unpack(ask.schema), unpack_value(said.value))
    edited = _edited(ask, said.edited)
    if edited is not None and fits is not None:
        fits(unpack_value(edited))
    vote = Vote(said.who, said.value, edited)
    votes = [Vote(each.who, each.value, each.edited) for each in ask.answers]
    if vote in votes:
        given = next(each for each in ask.answers if each.who == said.who)
        words = f"{said.who} has answered so already, {_ago(given.at_ms, at_ms)}; {ask.people} different people are asked for"
        raise AlreadyAnswered("ask_id", words)
    no = NO if unpack(ask.schema).get("type") == "boolean" else None
    return edited, is_decided(with_vote(votes, vote), ask.people, no)


def _check_open(ask: AskRecord, named: str, at_ms: int, gone: str, *, is_read: bool) -> None:
    since = _ago(ask.closed_at_ms, at_ms)
    match ask.status:
        case AskStatus.ANSWERED:
            latest = ask.answers[-1]
            words = f"{named} was already answered by {latest.who} ({latest.channel}), {since}"
            raise AlreadyAnswered("ask_id", words if is_read else f"{words}; {_UNREAD}")
        case AskStatus.EXPIRED:
            raise AskClosed("ask_id", f"{named} has expired, {since}")
        case AskStatus.WITHDRAWN:
            raise AskClosed("ask_id", f"{named} was withdrawn, {since}: {gone}")


def _ago(then_ms: int, at_ms: int) -> str:
    return f"{lasting(max(0, at_ms - then_ms))} ago"


def _edited(ask: AskRecord, edited: bytes | None) -> bytes | None:
    if edited is None:
        return None
    changes, proposed = unpack_value(edited), None if ask.args is None else unpack_value(ask.args)
    if proposed is None:
        raise BadRequest("args", "this question proposes no arguments, so none can be edited")
    if not isinstance(changes, dict):
        raise BadRequest("args", f"{changes!r:.200} is no object of arguments")
    strange = next((name for name in changes if name not in proposed), None)
    if strange is not None:
        raise BadRequest(
            f"args.{strange!s:.100}", f"no argument is called so; there are {', '.join(map(str, proposed))}"
        )
    changed = {**proposed, **changes}
    return None if changed == proposed else pack_value("args", changed)


def ring(view: View, run_id: str, wall_ms: float) -> Iterator[Fact]:
    # The questions go on to others, or expire.
    run = view.runs.get(run_id)
    for ask in [] if run is None or run.is_hard else run.open_asks:
        if 0 < ask.expires_at_ms <= wall_ms:
            yield AskLapsed(run_id, ask.number)
            continue
        level = sum(at_ms <= wall_ms for _, at_ms in ask.to)
        if level > ask.level:
            yield AskEscalated(run_id, ask.number, level)


# ---------------------------------------------------------------- what fits a schema
# What that says by `format` is read by pydantic's type of that name, as the run reads it.


_PYTHONS: Final = (
    date, time, datetime, timedelta, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, Pattern, ZoneInfo
)  # fmt: skip
_UUIDS: Final = tuple(f"UUID{version}" for version in (1, 3, 4, 5, 6, 7, 8))


def check_fits(schema: Mapping[str, object], value: object) -> None:
    """Raise a `BadRequest` that names the place if a value does not fit a JSON schema."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - it takes a third of a second, and few answer
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - as above

    problem = best_match(Draft202012Validator(schema, format_checker=_formats()).iter_errors(value))
    if problem is not None:
        place = ".".join(map(str, ("value", *problem.absolute_path)))
        why = "" if problem.cause is None else f": {problem.cause.errors()[0]['msg']:.300}"
        raise BadRequest(place[:200], f"{problem.message:.300}{why}")


@cache
def _formats() -> Any:
    from jsonschema import FormatChecker  # noqa: PLC0415 - as above
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - as above

    found = FormatChecker(())
    for kind in _types():
        adapter = TypeAdapter[Any](kind)
        found.checks(adapter.json_schema()["format"], ValidationError)(_read_by(adapter.validate_python))
    return found


def _types() -> Iterator[Any]:
    # The widest of each format: what a narrower one refuses besides, the run does. No fraction, since a short text may say a huge one.
    import pydantic  # noqa: PLC0415 - as above

    yield from _PYTHONS
    yield from (pydantic.AnyUrl, pydantic.Base64Bytes)
    yield from (pydantic.IPvAnyAddress, pydantic.IPvAnyInterface, pydantic.IPvAnyNetwork)
    yield get_args(pydantic.UUID4)[0]  # of any version
    yield from (getattr(pydantic, name) for name in _UUIDS)
    if find_spec("email_validator"):
        yield from (pydantic.EmailStr, pydantic.NameEmail)


def _read_by(read: Callable[[object], object]) -> Callable[[object], bool]:
    def reads(value: object) -> bool:
        if isinstance(value, str):  # what else there may be, a schema says by `type`
            read(value)
        return True

    return reads


# ---------------------------------------------------------------- what is told


def list_asks(
    view: View, to: str | None, limit: int, now_ms: int, *, closed: bool, asked_by: str | None = None
) -> list[AskRow]:
    """Open questions, those that wait for longest first; of one group or person, or asked by one run or agent; or besides, the closed ones
    of runs that are in memory."""
    runs = list(view.runs.values()) if closed else [view.runs[run_id] for run_id in view.asks]
    if asked_by is not None:
        runs = [run for run in runs if asked_by in (run.run_id, _asker_of(run))]
    found: list[tuple[AskRecord, Run | str]] = [
        (ask, run) for run in runs if not run.cleared for ask in run.asks if closed or ask.is_open
    ]
    calls = {key: asked_call(view, key) for key in view.asked_calls}
    if asked_by is not None:
        calls = {key: call for key, call in calls.items() if asked_by in (call.run_id, view.asked_calls[key])}
    found += [(call.ask.by_now(now_ms), key) for key, call in calls.items()]
    asked = [each for each in found if to is None or to in [name for name, _ in each[0].to[: each[0].level]]]
    asked.sort(key=lambda each: (not each[0].is_open, each[0].opened_at_ms, each[0].seq))
    return [
        call_told(view.asked_calls[of], of, calls[of], now_ms) if isinstance(of, str) else ask_told(of, ask)
        for ask, of in asked[:limit]
    ]


def _asker_of(run: Run) -> str:
    # A question that an agent asks outside of its runs is a run that it has requested; so is a call of a tool.
    return run.parent if run.agent_type == QUESTION_TYPE or run.options.get("relays") else run.child


def asks_stand(view: View) -> dict[str, object]:
    """How many questions are open, and a mark that is another one when any of them has changed."""
    if view.asks_stand is None:  # counted once after each change: lists that look each second cost nothing
        view.asks_stand = sum(len(view.runs[key].open_asks) for key in view.asks) + len(view.asked_calls), view.seq
    count, seq = view.asks_stand
    return {"open": count, "mark": str(seq)}


def asks_below(view: View, run_id: str) -> list[AskRow]:
    """The open questions of a run and of those that it has led to, those that wait for longest first."""
    asking = [view.runs[each] for each in view.asks]
    below = [run for run in asking if not run.cleared and any(each.run_id == run_id for each in _lineage(view, run))]
    found = sorted(((run, ask) for run in below for ask in run.open_asks), key=lambda each: each[1].seq)
    return [ask_told(run, ask) for run, ask in found]


def ask_told(run: Run, ask: AskRecord) -> AskRow:
    return _told(ask_id(run.run_id, ask.number), ask, run.run_id, _asker_of(run), QUESTION)


def call_told(agent: str, key: str, call: AskedCall, now_ms: int) -> AskRow:
    return _told(key, call.ask.by_now(now_ms), call.run_id, agent, call.kind, call.tool, call.call_id)


def _told(
    key: str, ask: AskRecord, run_id: str, agent: str, kind: str, tool: str | None = None, call_id: str | None = None
) -> AskRow:
    return {
        "ask_id": key,
        "run_id": run_id or None,
        "agent": agent,
        "kind": kind,
        "tool": tool,
        "call_id": call_id,
        "agent_type": type_of(agent),
        "status": str(ask.status),
        "question": ask.question,
        "schema": unpack(ask.schema),
        "args": None if ask.args is None else unpack_value(ask.args),
        "to": [name for name, _ in ask.to[: ask.level]],
        "later": [{"to": name, "at_ms": at_ms} for name, at_ms in ask.to[ask.level :]],
        "people": ask.people,
        "self_answer": ask.self_answer,
        "began_by": ask.began_by or None,
        "opened_at_ms": ask.opened_at_ms,
        "expires_at_ms": ask.expires_at_ms or None,
        "otherwise": None if ask.otherwise is None else unpack_value(ask.otherwise),
        "note": ask.note or None,
        "digest": ask.digest,
        "closed_at_ms": ask.closed_at_ms or None,
        "answers": [answer_told(each) for each in ask.answers],
    }


def answer_told(given: GivenAnswer) -> AnswerRow:
    return {
        "who": given.who,
        "channel": given.channel,
        "at_ms": given.at_ms,
        "value": unpack_value(given.value),
        "args": None if given.edited is None else unpack_value(given.edited),
    }
