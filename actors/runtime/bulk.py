"""Many runs at once: the filter by which they are chosen, one pass through them, and its report.

Runtimes, gateways and the command line make a pass in the same way, each over its own line to the ledger: a pass says what is to be asked
next and takes the answer (`BulkPass.questions`).
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, TypeAlias, TypedDict, cast

from perdure.actors.code.naming import type_name
from perdure.actors.jobs.schedule_requests import instant
from perdure.actors.life.handle import address_of
from perdure.actors.life.results import SAMPLE, BulkReport, statuses_of
from perdure.ledger import GROUP_MAX, BadRequest, Verb, Wanted, check_bool, check_text, checked_wanted

PAGE: Final = "chosen"
"""The question for a page of runs."""
COUNTED: Final = 5_000
"""Runs that are looked at with one question, to be counted."""

Asked: TypeAlias = tuple[str, *tuple[object, ...]]


class RunFilter(TypedDict, total=False):
    """Which runs. What is given must hold together.

    Args:
        status: one status, or some of them.
        type: a class, or its name as module:Class.
        parent: the agent that requested them: a handle, or its address as name@module:Class.
        words: in their id, type or parent, whatever the case.
        prefix: of their ids.
        error: words in what went wrong, whatever the case: the error, or why a run was given up or parked.
        parked: True for runs that are parked.
        undoing: True for runs that undo their steps.
        requested_since, requested_before, ended_since, ended_before: instants: milliseconds since the epoch, or aware datetimes.
        run_ids: only these, at most 1,000; no other filter goes with them.
    """

    status: str | Sequence[str]
    type: str | type
    parent: object
    words: str
    prefix: str
    error: str
    parked: bool
    undoing: bool
    requested_since: float | datetime
    requested_before: float | datetime
    ended_since: float | datetime
    ended_before: float | datetime
    run_ids: Sequence[str]


_AGES: Final = {
    "requested_since": "since_ms",
    "requested_before": "until_ms",
    "ended_since": "ended_since_ms",
    "ended_before": "ended_until_ms",
}
_KNOWN: Final = (*RunFilter.__annotations__,)


def wanted_by(given: RunFilter, code_dir: Path | None = None) -> Wanted:
    """The filter as the ledger is asked. Raises `BadRequest` for a filter that is none, for one that is empty, and for runs that are named
    and chosen besides."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _KNOWN:
            near = get_close_matches(name, _KNOWN, n=1)
            raise BadRequest(name, f"is no filter; {f'{near[0]} is one' if near else 'they are ' + ', '.join(_KNOWN)}")
        if value is None:
            continue
        if name in _AGES:
            found[_AGES[name]] = instant(name, value)
        elif name == "status":
            found["statuses"] = statuses_of(value)
        elif name == "type":
            found["agent_type"] = type_name(value, code_dir) if isinstance(value, type) else _text(name, value)
        elif name == "parent":
            address = address_of(value)
            found["parent"] = check_text(name, value) if address is None else address.agent_id
        elif name in ("parked", "undoing"):
            found[name] = check_bool(name, value)
        elif name == "run_ids":
            found["run_ids"] = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value
        else:
            found[name] = _text(name, value)
    if "run_ids" in found and len(found) > 1:
        raise BadRequest("run_ids", "name runs, or choose them by filters, but not both")
    return checked_wanted(Wanted(**found))


def _text(name: str, value: object) -> str:
    text = check_text(name, value)
    if not text:
        raise BadRequest(name, "is empty, so it would choose every run; leave it out")
    return text


def chosen_by(verb: Verb, wanted: Wanted, *, everything: bool) -> Wanted:
    """What this verb is to hit. Raises `BadRequest` if nothing is chosen and everything is not meant, or if both are said, and for what the
    verb cannot do."""
    if wanted == Wanted() and not everything:
        raise BadRequest(
            "filter", f"nothing says which runs are to be {PAST[verb]}; choose them, or say that all are meant"
        )
    if everything and wanted != Wanted():
        raise BadRequest("filter", "all runs are meant, and some are chosen; leave one of the two out")
    return checked_wanted(wanted, verb)


PAST: Final = {Verb.CANCEL: "cancelled", Verb.RETRY: "tried again", Verb.CLEAR: "cleared"}


class BulkPass:
    """One pass through the runs that a filter chooses.

    Args:
        wanted: as `chosen_by` gives it; `before` is where an earlier part of the pass has ended.
        began_ms: when that began.

    Attributes:
        report: what was found and done until now.
        began_ms: the ledger's time when the pass began.
    """

    def __init__(
        self, verb: Verb, wanted: Wanted, *, reason: str, dry_run: bool = False, began_ms: int | None = None
    ) -> None:
        self.verb, self.wanted, self.reason, self.dry_run = verb, wanted, reason, dry_run
        self.report = BulkReport(verb=str(verb), dry_run=dry_run, next=wanted.before)
        self.began_ms = began_ms

    def questions(self) -> Generator[Asked, dict[str, Any], None]:
        """What is asked of the ledger, by names and arguments. Each answer is to be sent in. It may be left at any question."""
        wanted, size = self.wanted, COUNTED if self.dry_run else GROUP_MAX
        while True:
            page = yield (PAGE, str(self.verb), [*wanted], size, SAMPLE if self.dry_run else size)
            self.began_ms = page["now_ms"] if self.began_ms is None else self.began_ms
            runs = page["runs"]
            ids = [run_id for _, run_id in runs[:SAMPLE]]
            self.report.take({"found": sum(page["statuses"].values()), "statuses": page["statuses"], "sample": ids})
            while runs and not self.dry_run:
                told = yield ("steer", str(self.verb), runs, [*wanted], self.reason, self.began_ms)
                self.report.take(told)
                runs = runs[told["done"] :]
            self.report.next = page["next"]
            if page["next"] is None:
                break
            wanted = wanted._replace(before=page["next"])
        if self.wanted.run_ids is not None:  # each place is looked at, so what was not found is not there
            self.report.gone += len(set(self.wanted.run_ids)) - self.report.found

    # Whether this question begins a page: what was asked for before is done.
    @staticmethod
    def is_at_page(asked: Asked) -> bool:
        return asked[0] == PAGE

    def made_by(self, ask: Callable[..., Any]) -> BulkReport:
        questions, answer = self.questions(), None
        while True:
            try:
                asked = questions.send(cast("Any", answer))
            except StopIteration:
                return self.report
            answer = ask(*asked)
