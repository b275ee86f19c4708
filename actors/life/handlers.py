"""Handling mail: the third link of exactly-once.

A group of mails is handled in **one transaction** of the agent's storage (`one_transaction`), which also writes the inbox rows (primary
key: the mail's id). Killed before the commit, nothing happened and the mail comes again. Killed after it, the inbox refuses the second
delivery, and only the acknowledgement is said again. When a handler of a group fails, the group is rolled back and handled one by one,
so that one poisonous mail costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

from perdure.actors.code.naming import load_type
from perdure.actors.code.signatures import exposed_call
from perdure.actors.life.activity import Activity
from perdure.actors.life.asking import ANSWERED, heard
from perdure.actors.life.dispatch import result_of
from perdure.actors.life.life import Life
from perdure.actors.life.one_transaction import Step, WorkPiece, done_in_one, failure
from perdure.actors.life.outbox import REFUSED, Outbox
from perdure.actors.life.results import (
    CONFLICTING,
    MilestoneInfo,
    RunFailed,
    RunInfo,
    RunOutcome,
    RunResult,
)
from perdure.actors.link.messages import Fields
from perdure.ledger import MILESTONE, QUESTION_TYPE, BadRequest, Slot, StorageLost, UnknownAgentType, unpack


class Letter(NamedTuple):
    """A mail as it reached the host."""

    mail_id: str
    slot: str
    handler: str
    run: Fields
    content: Fields


class FailedMail(NamedTuple):
    """A mail whose handler raised. With `park` there is no use in trying again by itself: the handler does not exist, or the storage is
    damaged."""

    mail_id: str
    error: str
    park: bool


async def handle(life: Life, outbox: Outbox, letters: list[Letter]) -> tuple[list[str], list[FailedMail]]:
    """Handle these mails exactly once each; returns the ids that are done (now or earlier) and the failures."""
    known = life.storage.known_inbox([letter.mail_id for letter in letters]) if life.has_storage else set()
    fresh = [letter for letter in letters if letter.mail_id not in known]
    done = [letter.mail_id for letter in letters if letter.mail_id in known]
    problem = await _attempt(life, outbox, fresh) if fresh else None
    if problem is None:
        return done + [letter.mail_id for letter in fresh], []
    failures: list[FailedMail] = []
    for letter in fresh:
        problem = await _attempt(life, outbox, [letter]) if len(fresh) > 1 else problem
        if problem is None:
            done.append(letter.mail_id)
        else:
            failures.append(FailedMail(letter.mail_id, problem[0], problem[1]))
    return done, failures


async def _attempt(life: Life, outbox: Outbox, letters: list[Letter]) -> tuple[str, bool] | None:
    ids = [letter.mail_id for letter in letters]
    piece = WorkPiece(
        ids[0],
        lambda _: [step for letter in letters for step in _steps(life, letter)],
        lambda transaction: transaction.record_inbox(ids),
    )
    problem = await done_in_one(life, outbox, piece)
    return (
        None if problem is None else (failure(life, problem, "handler"), isinstance(problem, _NoHandler | StorageLost))
    )


def _steps(life: Life, letter: Letter) -> list[Step]:
    # The agent's own hook first, then the named handler.
    agent = life.agent
    if letter.slot == Slot.TELL:
        return _steps_of_refusal(life, letter) if letter.handler == REFUSED else [_step_of_tell(agent, letter)]
    run = RunInfo.from_ledger(letter.run, letter.mail_id)
    activity = Activity(origin=letter.mail_id)
    calls: list[Step] = []
    if letter.slot == Slot.START:
        return [(agent.on_agent_tool_start, (replace(run, status="starting"),), activity)]
    if letter.slot.startswith(MILESTONE):
        content = {
            key: value
            for key, value in letter.content.items()
            if key in ("data", "fraction", "message", "phase", "at_ms")
        }
        about: MilestoneInfo | RunResult = MilestoneInfo(
            name=letter.content["milestone"], sequence=letter.content["number"], **content
        )
    else:
        about = _result(letter, life)
        if life.overrides("on_agent_tool_finish"):
            calls.append((agent.on_agent_tool_finish, (run, about), activity))
    if letter.handler:
        calls += _told(life, letter.handler, run, about, activity)
    return calls


def _told(life: Life, name: str, run: RunInfo, about: MilestoneInfo | RunResult, activity: Activity) -> list[Step]:
    method = _method(life.agent, name)
    if run.agent_type != QUESTION_TYPE or name == ANSWERED or isinstance(about, MilestoneInfo):
        return [(method, (run, about), activity)]
    answer = heard(life, about)  # `then` of a question is told that alone
    return [] if answer is None else [(method, (answer,), activity)]


def _method(agent: object, name: str) -> Callable[..., object]:
    method = getattr(agent, name, None)
    if not callable(method):
        raise _NoHandler("handler", f"{type(agent).__name__} has no method {name!r}; the mail is parked")
    return cast("Callable[..., object]", method)


def _steps_of_refusal(life: Life, letter: Letter) -> list[Step]:
    # A run that a transaction asked for does not exist, because its id is taken by other content.
    name, run_id, agent_type, tool_call, why = unpack(letter.content["body"])
    about = RunInfo(
        run_id=run_id,
        agent_type=agent_type,
        status="error",
        attempt=0,
        parent_tool_call_id=tool_call,
        detached=True,
        delivery_id=letter.mail_id,
    )
    result = RunFailed(run_id=run_id, agent_type=agent_type, status="error", error=why, reason=CONFLICTING)
    return _told(life, name, about, result, Activity(origin=letter.mail_id))


def _step_of_tell(agent: object, letter: Letter) -> Step:
    try:
        arguments, _ = exposed_call(type(agent), letter.handler, letter.content["body"])
    except (BadRequest, TypeError) as problem:
        raise _NoHandler(
            "tell", f"{letter.handler!r} cannot be told like that: {problem}; the mail is parked"
        ) from None
    call = partial(getattr(agent, letter.handler), **arguments.kwargs)
    return call, tuple(arguments.args), Activity(origin=letter.mail_id)


def _result(letter: Letter, life: Life) -> RunResult:
    outcome = cast("RunOutcome", {**letter.content, "agent_type": letter.run["agent_type"]})
    try:
        agent_class = load_type(letter.run["agent_type"], life.code_dir)
    except UnknownAgentType:
        agent_class = None
    return result_of(agent_class, letter.run["run_id"], outcome)


class _NoHandler(BadRequest):
    """The named handler does not exist on this class."""
