"""Decisions about questions to people, and what is told of them.

A question belongs to a run, and stands in its record. The run asks it again in each attempt that comes to the same place, by its number and
the digest of what it says: the same one is open, or answered, already; another one takes its place, and what was answered to the former
counts for nothing. An answer reaches the run as an event does (`folds`), once. A question ends with its run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

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
from perdure.ledger.ids import name_of, root_of
from perdure.ledger.run import AskRecord, Run
from perdure.ledger.status import AskStatus
from perdure.ledger.stimulus import AnswerAsk, OpenAsk, WithdrawAsk
from perdure.ledger.transitions import permits
from perdure.ledger.values import pack_value, unpack_value
from perdure.ledger.view import View
from perdure.ledger.wording import lasting
from perdure.policies import Answerer, Limits, Vote, answer_refusal, is_decided, with_vote

NO: Final = pack(False)
ALARM_OF_ASKS: Final = "\0asks "
"""As `ALARM_OF_RUN`, before the id of a run whose questions go on to others, or expire."""
BEGAN_BY: Final = "began_by"
"""The option of a run that names who began it, where that is known."""


def ask_id(run_id: str, number: int) -> str:
    return f"{run_id}:{number}"


def named_ask(asked: object) -> tuple[str, int]:
    """The run and the number of a question, by its id. Raises `UnknownAsk` for what is no id of one."""
    run_id, _, number = asked.rpartition(":") if isinstance(asked, str) else ("", "", "")
    if not run_id or not number.isascii() or not number.isdigit() or len(number) > len(str(2**53)):
        raise UnknownAsk(
            "ask_id", f"{asked!r:.200} is no id of a question; one is the id of its run, a colon and a number"
        )
    return run_id, int(number)


def note_asks(view: View, run: Run) -> None:
    """Keep the indexes of the view with the questions of a run."""
    key = ALARM_OF_ASKS + run.run_id
    if view.asks.pop(run.run_id, 0) is None:
        view.alarms.disarm(key)
    due_ms = min((ask.next_at_ms for ask in run.open_asks), default=None)
    if due_ms is not None:
        view.asks[run.run_id] = None
        if not math.isinf(due_ms):
            view.alarms.arm(key, due_ms)
    view.settle(run)


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
    yield AskOpened(
        run.run_id, said.number, said.digest, said.question, said.schema, said.args, said.to, level, said.people,
        said.self_answer, _began_by(view, run), said.expires_at_ms, said.otherwise, said.note,
    )  # fmt: skip


def _is_to_be_asked_again(view: View, run: Run, known: AskRecord, said: OpenAsk) -> bool:
    mail_id = run.answer_mail(known)
    # What the run has taken it remembers: one that asks again has not taken it, or could do nothing with it.
    return known.status is AskStatus.WITHDRAWN or (
        not known.is_open and (said.refuses == mail_id or mail_id not in view.mail)
    )


def _began_by(view: View, run: Run) -> str:
    # Who began the first run of all that led to this one, as far as they are in memory: what waits for a result is.
    seen: set[str] = set()
    found: Run | None = run
    while found is not None and found.run_id not in seen:
        seen.add(found.run_id)
        if found.options.get(BEGAN_BY):
            return str(found.options[BEGAN_BY])
        above = view.runs.get(name_of(root_of(found.parent))) if found.parent else None
        found = above if above is not None and above.child == root_of(found.parent) else None
    return ""


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
    if any(each.answer_id == said.answer_id for each in ask.answers):
        return  # it is told again
    _check_open(run, ask, at_ms)
    if said.digest and said.digest != ask.digest:
        words = f"what {ask_id(run.run_id, ask.number)} asks has changed since it was shown; look at it again"
        raise AnswerRefused("digest", words)
    who = Answerer(said.who, said.groups, said.is_operator, said.is_admin)
    problem = answer_refusal(who, {name for name, _ in ask.to[: ask.level]}, ask.began_by, self_answer=ask.self_answer)
    if problem:
        raise AnswerForbidden("who", problem)
    check_fits(unpack(ask.schema), unpack_value(said.value))
    edited = _edited(ask, said.edited)
    vote = Vote(said.who, said.value, edited)
    votes = [Vote(each.who, each.value, each.edited) for each in ask.answers]
    if vote in votes:
        given = next(each for each in ask.answers if each.who == said.who)
        words = f"{said.who} has answered so already, {_ago(given.at_ms, at_ms)}; {ask.people} different people are asked for"
        raise AlreadyAnswered("ask_id", words)
    no = NO if unpack(ask.schema).get("type") == "boolean" else None
    closes = is_decided(with_vote(votes, vote), ask.people, no)
    yield AskAnswered(
        run.run_id, ask.number, said.answer_id, ask.digest, said.who, said.channel, said.value, edited, closes
    )


def _check_open(run: Run, ask: AskRecord, at_ms: int) -> None:
    named, since = ask_id(run.run_id, ask.number), _ago(ask.closed_at_ms, at_ms)
    match ask.status:
        case AskStatus.ANSWERED:
            latest = ask.answers[-1]
            raise AlreadyAnswered("ask_id", f"{named} was already answered by {latest.who} ({latest.channel}), {since}")
        case AskStatus.EXPIRED:
            raise AskClosed("ask_id", f"{named} has expired, {since}")
        case AskStatus.WITHDRAWN:
            why = f"its run has ended ({run.status})" if run.has_ended else "its run waits for the answer no more"
            raise AskClosed("ask_id", f"{named} was withdrawn, {since}: {why}")


def _ago(then_ms: int, at_ms: int) -> str:
    return f"{lasting(max(0, at_ms - then_ms))} ago"


def check_fits(schema: Mapping[str, Any], value: object) -> None:
    """Raise a `BadRequest` that names the place if a value does not fit a JSON schema."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - it takes a third of a second, and few answer
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - as above

    problem = best_match(Draft202012Validator(schema).iter_errors(value))
    if problem is not None:
        place = ".".join(map(str, ("value", *problem.absolute_path)))
        raise BadRequest(place[:200], f"{problem.message:.300}")


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
    """The time of a run's questions has come: they go on to others, or expire."""
    run = view.runs.get(run_id)
    for ask in [] if run is None or run.is_hard else run.open_asks:
        if 0 < ask.expires_at_ms <= wall_ms:
            yield AskLapsed(run_id, ask.number)
            continue
        level = sum(at_ms <= wall_ms for _, at_ms in ask.to)
        if level > ask.level:
            yield AskEscalated(run_id, ask.number, level)


# ---------------------------------------------------------------- what is told


def list_asks(view: View, to: str | None, limit: int, *, closed: bool) -> list[dict[str, Any]]:
    """Open questions, those that wait for longest first; of one group or person; or besides, the closed ones of runs that are in memory."""
    runs = list(view.runs.values()) if closed else [view.runs[run_id] for run_id in view.asks]
    found = [(run, ask) for run in runs if not run.cleared for ask in run.asks if closed or ask.is_open]
    asked = [each for each in found if to is None or to in [name for name, _ in each[1].to[: each[1].level]]]
    asked.sort(key=lambda each: (not each[1].is_open, each[1].opened_at_ms, each[1].seq))
    return [ask_told(run, ask) for run, ask in asked[:limit]]


def ask_told(run: Run, ask: AskRecord) -> dict[str, Any]:
    """A question for whoever is to answer it, as plain data. `to` are those who may answer by now, `later` those to whom it goes on."""
    return {
        "ask_id": ask_id(run.run_id, ask.number),
        "run_id": run.run_id,
        "agent_type": run.agent_type,
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
        "answers": [
            {
                "who": each.who,
                "channel": each.channel,
                "at_ms": each.at_ms,
                "value": unpack_value(each.value),
                "args": None if each.edited is None else unpack_value(each.edited),
            }
            for each in ask.answers
        ],
    }
