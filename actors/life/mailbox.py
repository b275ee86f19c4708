"""The mail of one life of an agent: taken in, handled in groups and in order, and forgotten when the ledger will not send it again.

Its handling is the third link of exactly-once. A group of mails is handled in **one transaction** of the agent's storage
(`one_transaction`), which also writes the inbox rows (primary key: the mail's id). Killed before the commit, nothing happened and the mail
comes again. Killed after it, the inbox refuses the second delivery, and only the acknowledgement is said again. When a handler of a group
fails, the group is rolled back and handled one by one, so that one poisonous mail costs the others nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple, cast

from perdure.actors.code.author_call import in_words, tried
from perdure.actors.code.naming import load_type
from perdure.actors.code.signatures import exposed_call
from perdure.actors.life.activity import Activity
from perdure.actors.life.asking import ANSWERED, heard
from perdure.actors.life.dispatch import result_of
from perdure.actors.life.life import Life, Ready
from perdure.actors.life.one_transaction import Step, WorkPiece, done_in_one, failure
from perdure.actors.life.outbox import REFUSED, Outbox
from perdure.actors.life.results import CONFLICTING, MilestoneInfo, RunFailed, RunInfo, RunOutcome, RunResult
from perdure.actors.link.messages import Fields, InboxKept
from perdure.ledger import (
    MILESTONE,
    QUESTION_TYPE,
    BadRequest,
    Handled,
    Slot,
    StorageError,
    StorageLost,
    UnknownAgentType,
    unpack,
)


class Letter(NamedTuple):
    mail_id: str
    slot: str
    handler: str
    run: Fields
    content: Fields


# The id of a mail whose handler raised, and why. With True there is no use in trying again by itself: the handler does not exist, or the
# storage is damaged.
_Failure = tuple[str, str, bool]


class Mailbox:
    """What has come for an agent and is not handled yet."""

    def __init__(self, life: Life, outbox: Outbox, ready: Ready) -> None:
        self._life, self._outbox, self._ready = life, outbox, ready
        self._letters: dict[str, Letter] = {}
        self._handling = False
        self._at_work: list[Letter] = []
        self._handled: int | None = None  # mail that may be in the inbox; not known before the first

    @property
    def is_empty(self) -> bool:
        return not (self._letters or self._handling)

    def deliver(self, letters: list[Letter]) -> None:
        for letter in letters:
            self._letters.setdefault(letter.mail_id, letter)
        if not self._handling and self._letters:
            self._handling = True
            self._life.spawn(self._handle())

    def refuse(self, problem: Exception) -> None:
        """The agent could not come up: each try of that counts for the mail that waited for it, so that it is parked in the end. A storage
        that cannot be opened just now, because another life has it, does not count; one that has lost something parks it at once."""
        is_lost = isinstance(problem, StorageLost)
        if is_lost or not isinstance(problem, StorageError):
            self._say_failed(self._letters, f"the agent could not come up: {in_words(problem)}", park=is_lost)

    def failed(self, problem: BaseException) -> None:
        """The life ends by an unexpected error: that counts for the mail that was being handled, so that it pauses, and is parked in the
        end."""
        self._say_failed([letter.mail_id for letter in self._at_work], in_words(problem), park=False)

    def _say_failed(self, mail_ids: Iterable[str], why: str, *, park: bool) -> None:
        life, failed = self._life, [(mail_id, why, park) for mail_id in mail_ids]
        if failed:
            life.push(Handled(life.agent_id, life.incarnation, [], failed))
        for mail_id, _, _ in failed:
            self._letters.pop(mail_id, None)

    async def _handle(self) -> None:
        life = self._life
        _, problem = await tried(self._handle_all())
        self._handling = False
        if problem is not None and not life.is_leaving:
            life.trouble("handling mail", problem)
            if not isinstance(problem, StorageError):
                self.failed(problem)
            self._letters.clear()
        life.touch()

    async def _handle_all(self) -> None:
        life = self._life
        await self._ready()
        while self._letters and not life.is_leaving:
            group = self._at_work = [self._letters[key] for key in list(self._letters)[: life.limits.group_max]]
            done, failed = await _handle(life, self._outbox, group)
            life.push_of_mail(Handled(life.agent_id, life.incarnation, done, failed))
            for letter in group:
                self._letters.pop(letter.mail_id, None)
            self._at_work = []
            self.count_handled(len(done))

    def count_handled(self, handled: int) -> None:
        life = self._life
        if not life.has_storage:
            return
        self._handled = len(life.storage.inbox()) if self._handled is None else self._handled + handled
        if self._handled >= life.limits.inbox_max:
            self._handled = 0
            life.push_of_mail(InboxKept(life.agent_id, life.incarnation, list(life.storage.inbox())))

    def settled(self, mail_ids: list[str]) -> None:
        # The ledger will not send these to this life any more, and what it had sent it before has come in by now.
        if not self._life.is_leaving:
            with suppress(StorageError):  # then they stay in the inbox, which costs only room
                self._life.storage.forget_inbox([each for each in mail_ids if each not in self._letters])


# ---------------------------------------------------------------- handling


async def _handle(life: Life, outbox: Outbox, letters: list[Letter]) -> tuple[list[str], list[_Failure]]:
    # Returns the ids of those that are done, now or earlier, and the failures.
    known = life.storage.known_inbox([letter.mail_id for letter in letters]) if life.has_storage else set()
    fresh = [letter for letter in letters if letter.mail_id not in known]
    done = [letter.mail_id for letter in letters if letter.mail_id in known]
    problem = await _attempt(life, outbox, fresh) if fresh else None
    if problem is None:
        return done + [letter.mail_id for letter in fresh], []
    failures: list[_Failure] = []
    for letter in fresh:
        problem = await _attempt(life, outbox, [letter]) if len(fresh) > 1 else problem
        if problem is None:
            done.append(letter.mail_id)
        else:
            failures.append((letter.mail_id, *problem))
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
    method = getattr(life.agent, name, None)
    if not callable(method):
        raise _NoHandler("handler", f"{type(life.agent).__name__} has no method {name!r}; the mail is parked")
    if run.agent_type != QUESTION_TYPE or name == ANSWERED or isinstance(about, MilestoneInfo):
        return [(method, (run, about), activity)]
    answer = heard(life, about)  # `then` of a question is told that alone
    return [] if answer is None else [(method, (answer,), activity)]


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
