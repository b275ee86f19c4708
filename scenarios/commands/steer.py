"""The commands that steer runs and agents, whether a cluster serves their directory or not: `cancel`, `retry`, `clear` and `forget`.

The first three take one run, or all that a filter chooses.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perdure import BadRequest, BulkReport, RunFilter
from perdure.actors import PAST, BulkPass, chosen_by, wanted_by
from perdure.ledger import BY_OPERATOR, HARD, Verb
from perdure.scenarios.commands.background import nothing_known, of_storages
from perdure.scenarios.commands.opening import ColdLedger, opened
from perdure.scenarios.commands.options import HERE, AsJson, Data, check_address, choosing
from perdure.scenarios.commands.shown import json_of, say
from perdure.scenarios.exits import DIFFERS
from perdure.scenarios.live_view import plural, were

if TYPE_CHECKING:
    from perdure import Runtime  # which brings Ray with it; a cold directory needs none

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Everything = Annotated[
    bool, typer.Option("--all", help="All runs are meant; no option that chooses runs goes with it.")
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only count the runs, and name some.")]


@choosing
def cancel(
    run_id: Annotated[
        str | None, typer.Argument(help="The id of a run; without one, those that the options choose.")
    ] = None,
    reason: Annotated[str, typer.Option(help="The reason that the parent is told.")] = BY_OPERATOR,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = HERE,
    as_json: AsJson = False,
    *,
    which: RunFilter,
) -> None:
    """Cancel a run and what its child waits for, or all runs that the options choose. A run that has ended stays as it is.

    A run is aborted when this command returns, and its child is stopped after that. Detached runs of the child go on. A run that has begun
    a step with an undo is over, too, but aborted only when its steps are undone.

    Many runs are counted first, and it is asked. Then they are gone through in groups, newest request first, and runs that are requested
    meanwhile are left alone. What was stopped, or cut off, is repeated by the same command. Its report says how many were hit, how many
    others went with them, how many were so already, are gone, or were refused. It exits with 1 if any was refused.

    Examples:
        perdure cancel 3f0c9a1e --reason "wrong input"
        perdure cancel --type desk.agents:Reader --older-than 2h --dry-run
        perdure cancel --parent "anna@desk.agents:Assistant" --yes
    """
    if run_id is None:
        _steer(
            Verb.CANCEL, which, data, everything=everything, dry_run=dry_run, yes=yes, as_json=as_json, reason=reason
        )
        return
    _check_alone(which, everything=everything, dry_run=dry_run)
    with opened(data) as ledger:
        before = after = ledger.ask("show", run_id)["status"]
        if before not in HARD:
            ledger.ask("cancel", run_id, None, reason)
            after = ledger.ask("show", run_id)["status"]
    if as_json:
        print(json_of({"run_id": run_id, "status": after, "was": before}))
    elif before in HARD:
        print(f"Run {run_id} had ended before ({before}), and stays as it is.")
    elif after in HARD:
        print(f"Run {run_id} is {after}.")
    else:
        print(
            f"Run {run_id} is {after}, and is aborted when its steps are undone; `perdure explain` tells how far that is."
        )


@choosing
def retry(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|MAIL]",
            help="A run (`perdure ps --all`), or a parked mail (`perdure audit`); without one, the runs that the options choose.",
        ),
    ] = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = HERE,
    as_json: AsJson = False,
    *,
    which: RunFilter,
) -> None:
    """Try a run again that has failed, was given up or is parked; or a parked mail; or all such runs that the options choose.

    A run keeps its id, its steps and what its agent has written. It has all its attempts again, and the newest code that the directory has
    for it. Runs that were aborted because it had failed begin again when it asks for them. Its parent is told of the new end: only of
    that one, unless its handler has already taken the former. A run that has completed or was cancelled is refused.

    The handler of a mail gets it as if for the first time. The id of a mail is the id of its run, an exclamation mark, and what the mail
    is about. Put it in single quotes.

    Many runs are counted, asked for and reported as `perdure cancel` does it. Each is tried again once, also if it fails again meanwhile.

    Examples:
        perdure retry 3f0c9a1e
        perdure retry '3f0c9a1e!finish!112'
        perdure retry '3f0c9a1e!milestone:read!112'
        perdure retry --status error --error timeout --ended-newer-than 1h --dry-run
        perdure retry --parked --yes
    """
    if key is None:
        _steer(Verb.RETRY, which, data, everything=everything, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    _check_alone(which, everything=everything, dry_run=dry_run)
    with opened(data) as ledger:
        is_mail = any(mail["mail_id"] == key for mail in ledger.ask("audit")["parked_mail"])
        ledger.ask("retry", key)
    what = "mail" if is_mail else "run"
    print(json_of({f"{what}_id": key, "retried": True}) if as_json else f"{what.title()} {key} will be tried again.")


@choosing
def clear(
    run_ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN]...", help="Runs to clear; without any, those that the options choose."),
    ] = None,
    everything: Everything = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    data: Data = HERE,
    as_json: AsJson = False,
    *,
    which: RunFilter,
) -> None:
    """Forget runs and their children's storage. Live runs are cancelled first, and nothing cleared comes back.

    Runs that their children requested are cleared with them. If runs that are named would take others along, that is asked, with how
    many. Runs that the options choose are counted, asked for and reported as `perdure cancel` does it.

    Examples:
        perdure clear --status completed --older-than 7d
        perdure clear --prefix import- --dry-run
        perdure clear 3f0c9a1e 77ab02d4
        perdure clear --all --yes
    """
    if not run_ids:
        _steer(Verb.CLEAR, which, data, everything=everything, dry_run=dry_run, yes=yes, as_json=as_json)
        return
    _check_alone(which, everything=everything, dry_run=dry_run)
    with opened(data) as ledger:
        told = ledger.ask("at_stake", run_ids)  # refuses one that is unknown before any is cleared
        named = len(set(run_ids))
        if more := _more({"runs": told["runs"] - named, "live": 0, "sub_agents": told["sub_agents"], "mail": 0}):
            both = "it" if named == 1 else "them"
            _confirm(f"{plural(named, 'run')} would be cleared, and with {both} {more}", yes=yes, as_json=as_json)
        ledger.ask("clear", run_ids)
    print(json_of({"cleared": told["runs"]}) if as_json else f"{were(told['runs'], 'run')} cleared.")


def _check_alone(which: RunFilter, *, everything: bool, dry_run: bool) -> None:
    if dry_run and not which and not everything:
        raise BadRequest(
            "dry-run", "it counts runs that options choose, and here it is named what is meant; nothing was done"
        )
    if which or everything:
        raise BadRequest("run", "name what is meant, or choose runs by options, but not both; nothing was done")


# ---------------------------------------------------------------- many runs


def _steer(
    verb: Verb,
    which: RunFilter,
    data: Path,
    *,
    everything: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
    reason: str = "",
) -> None:
    chosen = wanted_by(which)
    if not which and not everything:
        raise BadRequest(
            "run", f"nothing says what is to be {PAST[verb]}; name a run, choose runs by options, or say --all"
        )
    wanted = chosen_by(verb, chosen, everything=everything)
    with opened(data) as ledger:
        if dry_run or not yes:
            counted = BulkPass(verb, wanted, reason=reason, dry_run=True).made_by(ledger.ask)
            if dry_run or not counted.found:
                counted.dry_run = dry_run
                words = _count_in_words(verb, counted)
                say(json_of(counted.told()) if as_json else words if words.endswith("…") else f"{words}.")
                return
            _confirm(_count_in_words(verb, counted), yes=False, as_json=as_json)
        job = BulkPass(verb, wanted, reason=reason)
        _make(job, ledger, as_json=as_json)
    if job.report.refused:
        raise typer.Exit(DIFFERS)


def _make(job: BulkPass, ledger: ColdLedger | Runtime, *, as_json: bool) -> None:
    is_over = False
    try:
        job.made_by(ledger.ask)
        is_over = True
    finally:
        if is_over or job.report.found:  # else it was refused, and nothing was done
            whole = {"whole": is_over}
            words = json_of(job.report.told() | whole) if as_json else "\n".join(_report_in_words(job.verb, job.report))
            say(words)
            if not is_over:
                print("It was cut off, so there may be more; the same command goes on with them.", file=sys.stderr)


def _count_in_words(verb: Verb, report: BulkReport) -> str:
    if not report.found:
        return f"there is no run that would be {PAST[verb]}"
    most_first = sorted(report.statuses.items(), key=lambda item: -item[1])
    by_status = ", ".join(f"{count:,} {status}" for status, count in most_first)
    newest = ", ".join(report.sample) + (", …" if report.found > len(report.sample) else "")
    below = {Verb.CANCEL: ", with what waits for them", Verb.CLEAR: ", with what their children requested"}.get(
        verb, ""
    )
    return f"{report.found:,} {'run' if report.found == 1 else 'runs'} would be {PAST[verb]} ({by_status}){below}: {newest}"


def _report_in_words(verb: Verb, report: BulkReport) -> list[str]:
    others = f", and {plural(report.others, 'other')} with them" if report.others else ""
    lines = [f"{were(report.hit, 'run')} {PAST[verb]}{others}."]
    if report.already:
        lines.append(f"{were(report.already, 'run')} so already.")
    if report.gone:
        lines.append(f"{were(report.gone, 'run')} gone by then, or not chosen any more.")
    lines += [f"{were(count, 'run')} refused: {why}." for why, count in report.refused.items()]
    return lines


# ---------------------------------------------------------------- agents


def forget(
    agent: Annotated[str, typer.Argument(help="An agent's address, as name@module:Class.")],
    yes: Yes = False,
    data: Data = HERE,
) -> None:
    """Delete an agent with its storage, its sub-agents, its mail and the runs that it requested. Its name is free again after that.

    If it has any of these, that is asked, with how many there are.

    It is the way out for an agent whose storage has lost something (`StorageLost`) and of which no copy is left: it begins anew.

    Examples:
        perdure forget "anna@desk.agents:Assistant"
        perdure forget "anna@desk.agents:Assistant" --yes
    """
    check_address("agent", agent)
    with opened(data) as ledger:
        if ledger.ask("agent", agent) is None and not of_storages(
            ledger, data, lambda storages: storages.has(agent), lambda _: True
        ):
            raise nothing_known(agent)
        if more := _more(ledger.ask("at_stake", [], agent)):
            _confirm(f"agent {agent} would be deleted, and with it {more}", yes=yes)
        ledger.ask("forget", agent)
    print(
        f"Agent {agent} is being deleted, with what belongs to it. It is gone when its life, if it has one, has ended."
    )


def _more(told: dict[str, int]) -> str:
    live = f", {told['live']} of them live" if told["live"] else ""
    found = [
        f"{plural(told['runs'], 'run')}{live}" if told["runs"] else "",
        plural(told["sub_agents"], "sub-agent") if told["sub_agents"] else "",
        f"{plural(told['mail'], 'mail')} on the way" if told["mail"] else "",
    ]
    return "; ".join(filter(None, found))


def _confirm(what: str, *, yes: bool, as_json: bool = False) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise BadRequest("yes", f"{what}, and nobody is there to be asked; say --yes if that is meant")
    typer.confirm(f"{what[0].upper()}{what[1:]}. Do it?", abort=True, err=as_json)
