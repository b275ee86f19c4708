"""Decisions about what parents, clients and operators ask for: request, cancel, clear, delete, retry, and to take new code.

Every function yields facts and changes nothing. Each fact is folded before the next is taken, so a cascade sees what it has already
done. A request that is refused raises a `BadRequest` or a `WorldError` before its first fact, so nothing has happened.

Runs and agents have these versions of their code:

| what | has the code |
|---|---|
| a run, its child and what belongs to that, in all attempts | with which it was requested |
| a run that is tried again, and a parked one for which code comes | that came last for its type before its next attempt began |
| any other agent, each time that it is woken: for calls, mail, its fibers, schedules and turns | that came last for its type |

Code comes with the programs that open the directory (`Adopt`). It is named by its package, so a host has one version of it, and two
versions never meet in one process. Which code came last is a fact: it outlives the program that brought it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perdure.ledger.activation import package_of
from perdure.ledger.codec import pack
from perdure.ledger.errors import (
    AdmissionRefused,
    AgentBeingDeleted,
    ConflictingRequest,
    EventRefused,
    Overloaded,
    PauseRefused,
    RetryRefused,
    RunBeingCleared,
    UnknownRun,
)
from perdure.ledger.facts import (
    AgentDoomed,
    AgentStopped,
    CodeAdopted,
    EventSent,
    Fact,
    MailPosted,
    MailRequeued,
    MailSuppressed,
    RunAborted,
    RunCleared,
    RunPaused,
    RunReattached,
    RunRequested,
    RunRetried,
    UndoBegan,
)
from perdure.ledger.mail import MailEvent
from perdure.ledger.mail import permits as mail_permits
from perdure.ledger.run import Run, run_of
from perdure.ledger.status import Status, Undo
from perdure.ledger.stimulus import (
    Adopt,
    Cancel,
    Clear,
    Forget,
    Pause,
    Request,
    Retry,
    Send,
    StopLives,
    Tell,
)
from perdure.ledger.transitions import permits
from perdure.ledger.values import shown, unchecked
from perdure.ledger.view import View
from perdure.policies import Limits, condition_from, condition_in_words, runs_of


def request(view: View, asked: Request, limits: Limits) -> Iterator[Fact]:
    """Accept a run. A repeated request is answered with the run that exists, if it has the same content (spec W-19)."""
    owner = run_of(view.runs, asked.parent)
    if owner is not None and owner.cleared:
        raise UnknownRun("parent", f"run {owner.run_id!r} was cleared, so its child {asked.parent} may request nothing")
    if view.doomed_by(asked.parent):
        raise UnknownRun("parent", f"{asked.parent} is being deleted, so it may request nothing")
    run = view.runs.get(asked.run_id)
    if run is not None and run.cleared:
        raise RunBeingCleared(run.run_id)
    if run is not None:
        _same_content(run, asked)
        if _was_cut_off(run, owner):
            yield RunRetried(run.run_id, package_of(asked.options.get("pool")))
        elif run.is_awaited and permits(run.status, RunReattached) and (not run.is_live or asked.life != run.life):
            # It was interrupted, or this is a later life of the parent than the one that watched it.
            yield RunReattached(run.run_id, asked.life, run.attempt)
        return
    most = asked.options.get("limit")
    live = len(view.children.get(asked.parent, ()))
    if most is not None and live >= most and asked.options.get("on_limit") == "reject":
        raise AdmissionRefused("max_concurrent_agent_tools", f"{live} runs are live; the limit is {most}")
    waiting = len(view.queues)
    if waiting >= limits.waiting_max:
        raise Overloaded(waiting, limits.waiting_max, 1_000)
    _check_sources(view, asked)
    inline = asked.input if len(asked.input) <= limits.inline_bytes_max else None
    yield RunRequested(
        asked.run_id,
        asked.agent_type,
        asked.parent,
        asked.parent_run,
        asked.digest,
        inline,
        asked.options,
        asked.life,
        view.seq + 1,  # the number of this fact
    )


def _check_sources(view: View, asked: Request) -> None:
    after = asked.options.get("after")
    for run_id in () if after is None else runs_of(condition_from(after)):
        source = view.runs.get(run_id)
        if source is None or source.parent != asked.parent:
            whose = asked.parent or "a client"
            what = f"no run {run_id!r} of {whose} is known; ask for it before what waits for it"
            if source is not None:
                what += f". There is one of {source.parent or 'a client'}, for which only runs of that one wait"
            raise UnknownRun("after", what)
        if source.cleared:
            raise RunBeingCleared(run_id)


def _was_cut_off(run: Run, owner: Run | None) -> bool:
    """Whether the run was aborted only because its parent had failed, which was tried again since and asks for it once more."""
    if owner is None or not (owner.retries and owner.is_live):
        return False
    return run.is_awaited and run.status is Status.ABORTED and run.error == _cut_off_by(owner)


def _cut_off_by(run: Run) -> str:
    return f"run {run.run_id} that waited for it has ended"


def _same_content(run: Run, asked: Request) -> None:
    pairs = (
        ("agent_type", run.agent_type, asked.agent_type),
        ("parent", run.parent, asked.parent),
        ("input", *_inputs(run, asked)),
        ("detached", bool(run.options.get("detached")), bool(asked.options.get("detached"))),
        ("losers", run.options.get("losers", "leave"), asked.options.get("losers", "leave")),
    )
    if run.options.get("after") != asked.options.get("after"):
        old_and_new = f"{_waits_for(run.options)}; not {_waits_for(asked.options)}"
        said = (
            f"run {run.run_id!r} exists, and waits for something else ({old_and_new}); nothing was started. {_ADVICE}"
        )
        raise ConflictingRequest("after", said)
    for field, old, new in pairs:
        if old != new:
            changed = field == "agent_type" and _is_retyped(str(old), str(new))
            advice = _ADVICE_IN_NOTEBOOKS.format(name=str(new).rpartition(":")[2]) if changed else _ADVICE
            where = _other_fields(run, asked) if field == "input" else ""
            said = f"run {run.run_id!r} exists with another {field} ({old}, not {new}{where}); nothing was started. {advice}"
            raise ConflictingRequest(field, said)


# By their digests, which leave out what is at its default. With a class that was changed since, the same may be another default now, and
# what an agent plays again asks for what it has asked for; a client asks for what it would be given today.
def _inputs(run: Run, asked: Request) -> tuple[str, str]:
    if run.input is None:
        return run.digest, asked.digest
    if unchecked(run.input)[1] == unchecked(asked.input)[1]:
        return "", ""
    is_other = not asked.parent and run.digest == asked.digest and not _agree(shown(run.input), shown(asked.input))
    return run.digest, f"{asked.digest} with other defaults" if is_other else asked.digest


# Whether they are the same but for fields that only one of them has. A list of fields (a named tuple) has the new ones at its end.
def _agree(old: object, new: object) -> bool:
    if isinstance(old, dict) and isinstance(new, dict):
        return all(_agree(each, new[name]) for name, each in old.items() if name in new)
    if isinstance(old, list) and isinstance(new, list):
        return all(map(_agree, old, new))
    return pack(old) == pack(new)


# Only what the asker has said is told: the other input may be somebody else's.
def _other_fields(run: Run, asked: Request) -> str:
    if run.input is None or len(asked.input) > _COMPARED_BYTES:
        return ""
    old, new = shown(run.input), shown(asked.input)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return ""
    names = [name for name in new if name not in old or old[name] != new[name]]
    return f"; other in {', '.join(f'{name!r:.60}' for name in names[:_NAMED_MAX])}" if names else ""


def _waits_for(options: dict[str, Any]) -> str:
    after = options.get("after")
    return "nothing" if after is None else condition_in_words(condition_from(after))


_COMPARED_BYTES, _NAMED_MAX = 4_096, 5
_ADVICE = "Use another run_id, or repeat the request as it was."
_ADVICE_IN_NOTEBOOKS = (
    "The class, or something in the notebook that it uses, was changed since then, so it is another one. Use another run_id. Later changes "
    'leave it the same class if it has a name: `class {name}(Agent, name="jobs:{name}")`.'
)


# Two versions of one class in a notebook are two types, because the name of a cell has the digest of its text.
def _is_retyped(old: str, new: str) -> bool:
    return old.startswith("cell:") and new.startswith("cell:") and old.rpartition(":")[2] == new.rpartition(":")[2]


def cancel(view: View, asked: Cancel) -> Iterator[Fact]:
    run = view.runs.get(asked.run_id)
    if run is None:
        raise UnknownRun("run_id", f"no run {asked.run_id!r} is known")
    if asked.parent is not None and run.parent != asked.parent:
        whose = run.parent or "a client"
        raise UnknownRun(
            "run_id",
            f"{asked.run_id!r} is a run of {whose}, not of {asked.parent}, so it is for {whose} to cancel. Any run is cancelled by "
            f"`perdure cancel` and `runtime.cancel({asked.run_id!r})`",
        )
    yield from abort(view, run, asked.reason)


def abort(view: View, run: Run, reason: str, undo: Undo = Undo.ABORTED) -> Iterator[Fact]:
    # One that is parked while its steps are undone, or was interrupted, is given up by this.
    if not permits(run.status, RunAborted):
        return
    if run.undo == Undo.PROMISED:
        yield from begin_undo(view, run, undo, reason)
    elif run.is_undoing and not run.parked:
        if undo is Undo.CLEARED and run.undo != undo:
            yield UndoBegan(run.run_id, run.begun_after, undo, run.error, run.trace)
    else:
        yield RunAborted(run.run_id, reason)
        yield from abort_awaited(view, run)


def begin_undo(view: View, run: Run, undo: Undo, error: str) -> Iterator[Fact]:
    yield UndoBegan(run.run_id, run.attempt, undo, error)
    yield from abort_awaited(view, run)


def abort_awaited(view: View, run: Run) -> Iterator[Fact]:
    # Nobody is left to take the results. Detached runs go on (spec W-47).
    for child_id in list(view.children.get(run.child, ())):
        child = view.runs[child_id]
        if child.is_awaited:
            yield from abort(view, child, _cut_off_by(run))


def clear(view: View, asked: Clear) -> Iterator[Fact]:
    """Clear runs: live ones are aborted, mail about them is withdrawn, and a tombstone is written before anything is deleted. With a run
    go the runs that its child and the child's sub-agents requested."""
    due = list(reversed(asked.run_ids))
    while due:
        run = view.runs.get(due.pop())
        if run is None or run.cleared:
            continue
        yield from abort(view, run, "cleared", Undo.CLEARED)
        if run.is_undoing:
            continue  # it is cleared after that
        for slot, state in list(run.slots.items()):
            if mail_permits(state, MailEvent.WITHDRAWN):
                yield MailSuppressed(run.mail_id(slot))
        yield RunCleared(run.run_id)
        child, *below = view.families.of(run.child)
        due += [each for parent in (child, *below) for each in view.asked_for.get(parent, ())]
        for agent in below:  # the storage of a sub-agent that owes nothing is deleted with its ancestor's
            if agent in view.agents or agent in view.mailbox:
                yield from forget(view, Forget(agent))


def tell(view: View, said: Tell) -> Iterator[Fact]:
    """Post mail for an agent. Refused for one that is being deleted, because its successor would get the mail."""
    if view.doomed_by(said.sender):
        raise AgentBeingDeleted(said.sender, "sender")
    if view.doomed_by(said.recipient):
        raise AgentBeingDeleted(said.recipient)
    if said.mail_id not in view.mail:  # else it is told again
        yield MailPosted(said.mail_id, said.recipient, said.sender, said.method, said.body, said.home)


def send(view: View, said: Send, limits: Limits) -> Iterator[Fact]:
    # Refused for a run that has ended, and for one that has too many.
    run = view.runs.get(said.run_id)
    if run is None or run.cleared:
        raise UnknownRun("run_id", f"no run {said.run_id!r} is known, so event {said.name!r} was sent to nobody")
    if said.mail_id in view.mail or said.mail_id in (run.receipts or ()):
        return  # it is told again
    if view.doomed_by(run.child):
        raise AgentBeingDeleted(run.child)
    if run.is_hard:
        words = (
            f"run {run.run_id!r} has ended ({run.status}), so it takes no event any more; {said.name!r} was not sent"
        )
        raise EventRefused("run_id", words)
    kept = len(view.events.get(run.run_id, ()))
    if kept >= limits.events_max:
        words = f"run {run.run_id!r} has {kept} events that it has not taken (events_max is {limits.events_max}); {said.name!r} was"
        raise EventRefused("run_id", f"{words} not sent. Send it again when the run has taken some")
    yield EventSent(said.mail_id, run.run_id, said.name, said.sender, said.body)


def pause(view: View, asked: Pause, limits: Limits) -> Iterator[Fact]:
    # Not one that is being undone: its end is owed. Nor one at work that may have no other attempt.
    run = view.runs.get(asked.run_id)
    if run is None or run.cleared:
        raise UnknownRun("run_id", f"no run {asked.run_id!r} is known; `perdure ps --all` lists the runs")
    if not run.is_live:
        words = f"run {run.run_id!r} is {run.status}; only a live run is paused, and goes on"
        raise PauseRefused("run_id", words)
    if asked.paused and run.is_undoing:
        raise PauseRefused("run_id", f"run {run.run_id!r} is over, and its steps are being undone")
    if asked.paused and run.is_placed and run.attempts(limits.attempts_max).most == 1:
        words = f"run {run.run_id!r} is at work, and has one attempt, so it could not go on after a pause"
        raise PauseRefused("run_id", words)
    if run.paused != asked.paused:
        yield RunPaused(run.run_id, asked.paused)


def forget(view: View, asked: Forget) -> Iterator[Fact]:
    """Delete an agent and its descendants. A tombstone is written before anything is deleted, and the runs that they requested are
    cleared."""
    if view.doomed_by(asked.agent_id):
        return
    yield AgentDoomed(asked.agent_id)
    family = view.families.of(asked.agent_id)
    runs = [run_id for agent in family for run_id in view.asked_for.get(agent, ())]
    yield from clear(view, Clear(runs))
    for key in [key for agent in family for index in (view.mailbox, view.parked_mail) for key in index.get(agent, ())]:
        mail = view.mail.get(key)
        if mail is not None and not mail.run_id and mail_permits(mail.state, MailEvent.WITHDRAWN):
            yield MailSuppressed(mail.mail_id)


def stop_lives(view: View, asked: StopLives) -> Iterator[Fact]:
    if any(activation.host_id and not activation.stopping for activation in view.family(asked.agent_id)):
        yield AgentStopped(asked.agent_id)


def retry(view: View, asked: Retry) -> Iterator[Fact]:
    mail = view.mail.get(asked.key)
    if mail is None:
        yield from _retry_run(view, asked.key)
    elif mail_permits(mail.state, MailEvent.REQUEUED):
        yield MailRequeued(asked.key)
    else:
        raise RetryRefused("mail_id", f"mail {asked.key!r} is {mail.state}; only parked mail can be retried")


def _retry_run(view: View, run_id: str) -> Iterator[Fact]:
    run = view.runs.get(run_id)
    if run is None or run.cleared:
        known = "`perdure ps --all` lists the runs, and `perdure audit` the parked mail"
        raise UnknownRun("run_id", f"no run and no parked mail {run_id!r} is known; {known}")
    if view.doomed_by(run.child):
        raise AgentBeingDeleted(run.child)
    if not run.can_be_retried:
        why = "was cancelled (aborted)" if run.status is Status.ABORTED else f"is {run.status}"
        raise RetryRefused(
            "run_id",
            f"run {run_id!r} {why}; only one that has failed (error), was given up (interrupted) or is parked is retried",
        )
    yield RunRetried(run_id, view.newest_code(run))


def adopt(view: View, said: Adopt) -> Iterator[Fact]:
    """Code came. Parked runs that have waited for it are tried with it: also if it is the same, because a person brought it again. So are
    runs that were tried again with older code, and have not begun since."""
    news = {
        origin: digest for origin, digest in said.digests.items() if not view.code.knows(said.package, origin, digest)
    }
    if news:
        yield CodeAdopted(said.package, news)
    for run_id in [*view.parked, *view.begins_anew]:
        run = view.runs[run_id]
        newest = view.newest_code(run)
        if view.origin_of_code(run) in said.digests and (run.parked or package_of(run.options.get("pool")) != newest):
            yield RunRetried(run_id, newest)
