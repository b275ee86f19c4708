"""The runs that a filter chooses: they are shown by pages, or one verb is done to them in groups.

A place in the list is the number of the fact that requested a run. It never changes, so a list that grows meanwhile neither repeats a run
nor leaves one out. A page costs what it shows, however many runs are kept.

A verb cancels, retries or clears many runs, each by the decision that the verb has for one run. A pass goes through what the filter
chooses, newest request first, and comes to each place once. So what is requested meanwhile is not hit, and a run that is tried again and
fails at once is not tried a second time. The supervisor remembers nothing of a pass: whoever makes it knows how far it is, so it may stop
anywhere, and is repeated by asking again.

What each step of a pass survives:

- A run is named by its id and the number of the fact that requested it, so one that was cleared, and whose id belongs to another run since,
  is gone, and the other one is left alone.
- Whether the filter still chooses it is looked at again when it is decided: a run that has ended meanwhile is not cancelled, and one that
  was tried again meanwhile is not cleared as a failed one.
- A group that is asked for twice, because the supervisor died before it had answered, finds the runs as they are to be. They are told as
  such. For `retry` that is what was tried again since the pass began, whatever became of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from heapq import nlargest
from operator import attrgetter
from typing import Any, Final, NamedTuple

from perdure.ledger.argument_checks import check_bool, check_text, check_whole, check_word, check_words
from perdure.ledger.errors import AgentBeingDeleted, BadRequest
from perdure.ledger.run import Run
from perdure.ledger.snapshot import run_from
from perdure.ledger.status import HARD, LIVE, RETRIABLE, Status
from perdure.ledger.stimulus import Cancel, Clear, Retry
from perdure.ledger.store.store import Record, Wanted
from perdure.ledger.view import View
from perdure.policies import is_number

LOOKED_AT: Final = 2_000
"""How many rows of the snapshot are read for a page of runs that are chosen by their errors, which stand in the bodies of the rows. Such a
page may have fewer runs than there is room for."""


# Runs, and the place after which the next page begins; None if this is the last.
class Page(NamedTuple):
    runs: list[Run]
    next: int | None


class Chosen(NamedTuple):
    """The places and the ids of runs, how many have each status, and the place after which the next page begins; None if this is the
    last."""

    places: list[tuple[int, str]]
    statuses: dict[str, int]
    next: int | None


def rows_for(wanted: Wanted, limit: int) -> int:
    """How many of the newest rows of the snapshot a page is made of."""
    return max(limit + 1, LOOKED_AT) if wanted.error else limit + 1


def page_of(in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int) -> Page:
    """A page, of runs in memory and of rows of the snapshot.

    Args:
        in_memory: all of them. What the snapshot says of these is out of date.
        archived: the newest of the snapshot that are wanted, as many as `rows_for` says.
        wanted: which are asked for.
        limit: of the page.
    """
    found, next_place = _merged(in_memory, archived, wanted, limit)
    return Page([each if isinstance(each, Run) else run_from(each) for each in found], next_place)


def chosen_of(in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int) -> Chosen:
    """The same page, without the runs themselves: rows are read only for their errors."""
    found, next_place = _merged(in_memory, archived, wanted, limit)
    places = [(_place(each), each.run_id if isinstance(each, Run) else each.key) for each in found]
    statuses = Counter(str(each.status if isinstance(each, Run) else each.columns[0]) for each in found)
    return Chosen(places, dict(statuses), next_place)


def _merged(
    in_memory: Mapping[str, Run], archived: list[Record], wanted: Wanted, limit: int
) -> tuple[list[Run | Record], int | None]:
    newest_first = reversed(wanted_of(in_memory.values(), wanted))  # almost
    mine = nlargest(limit + 1, newest_first, key=attrgetter("first_seq"))
    theirs: list[Run | Record] = [record for record in archived if record.key not in in_memory]
    if wanted.error:
        theirs = [*wanted_of(map(run_from, (each for each in theirs if isinstance(each, Record))), wanted)]
    looked_at = [
        _place(each[-1])
        for each, full in ((mine, limit + 1), (archived, rows_for(wanted, limit)))
        if len(each) >= full  # there may be others below it
    ]
    read_to = max(looked_at, default=0)
    told = sorted((run for run in (*mine, *theirs) if _place(run) >= read_to), key=_place, reverse=True)
    if len(told) > limit:
        return told[:limit], _place(told[limit - 1])
    return told, read_to or None


def wanted_of(runs: Iterable[Run], wanted: Wanted) -> list[Run]:
    """Those of these that are asked for; a cleared one never is. One condition after the other: so each costs a millisecond for tens of
    thousands of runs, and those that were not given nothing."""
    found = [run for run in runs if not run.cleared]
    if wanted.before is not None:
        found = [run for run in found if run.first_seq < wanted.before]
    if wanted.run_ids is not None:
        named = frozenset(wanted.run_ids)
        found = [run for run in found if run.run_id in named]
    if wanted.parent is not None:
        found = [run for run in found if run.parent == wanted.parent]
    if wanted.agent_type is not None:
        found = [run for run in found if run.agent_type == wanted.agent_type]
    if wanted.statuses is not None:
        found = [run for run in found if run.status in wanted.statuses]
    if wanted.retriable:
        found = [run for run in found if run.can_be_retried]
    if wanted.parked:
        found = [run for run in found if run.parked]
    if wanted.undoing:
        found = [run for run in found if run.is_undoing]
    if wanted.prefix:
        found = [run for run in found if run.run_id.startswith(wanted.prefix)]
    return _with_words(_of_age(found, wanted), wanted)


def _of_age(runs: list[Run], wanted: Wanted) -> list[Run]:
    if wanted.since_ms is not None:
        runs = [run for run in runs if run.requested_at_ms >= wanted.since_ms]
    if wanted.until_ms is not None:
        runs = [run for run in runs if run.requested_at_ms < wanted.until_ms]
    if wanted.ended_since_ms is not None:
        runs = [run for run in runs if run.ended_at_ms and run.ended_at_ms >= wanted.ended_since_ms]
    if wanted.ended_until_ms is not None:
        runs = [run for run in runs if run.ended_at_ms and run.ended_at_ms < wanted.ended_until_ms]
    return runs


def _with_words(runs: list[Run], wanted: Wanted) -> list[Run]:
    if wanted.words:
        sought = wanted.words.lower()
        runs = [run for run in runs if sought in f"{run.run_id}\n{run.agent_type}\n{run.parent}".lower()]
    if wanted.error:
        sought = wanted.error.lower()
        runs = [run for run in runs if sought in run.trouble.lower()]
    return runs


def _place(each: Run | Record) -> int:
    if isinstance(each, Run):
        return each.first_seq
    place = each.columns[5]
    return place if isinstance(place, int) else 0


# ---------------------------------------------------------------- one verb for many

GROUP_MAX: Final = 500
"""Runs of one group."""
FACTS_MAX: Final = 2_000
"""Facts after which a group ends early. The rest is asked for again: what goes with one run may be much."""


class Verb(StrEnum):
    CANCEL = "cancel"
    RETRY = "retry"
    CLEAR = "clear"


OPEN: Final = frozenset(Status) - HARD
REACH: Final[dict[Verb, frozenset[Status]]] = {
    Verb.CANCEL: OPEN,
    Verb.RETRY: OPEN | RETRIABLE,  # of those that are live, only what is parked
    Verb.CLEAR: frozenset(Status),
}
"""The statuses of runs to which it can be done."""
FACT_OF: Final = {Verb.CANCEL: "RunAborted", Verb.RETRY: "RunRetried", Verb.CLEAR: "RunCleared"}


NAMED_MAX: Final = 1_000
"""Runs that a filter names at most."""
NEAR_MAX: Final = 3
_TEXTS: Final = ("parent", "agent_type", "words", "prefix", "error")
_NEVER_NONE: Final = ("words", "prefix", "error")
_AGES: Final = {"requested": ("since_ms", "until_ms"), "ended": ("ended_since_ms", "ended_until_ms")}


def checked_wanted(given: Sequence[Any], verb: Verb | None = None) -> Wanted:
    """A filter, by the fields of `Wanted`, that may choose something. With a verb it chooses only what that can be done to.

    Raises `BadRequest` for filters that contradict each other, and for what is none.
    """
    try:
        wanted = Wanted(*given)
    except TypeError:
        raise BadRequest(
            "filter", f"{len(given)} values are no filter of runs; there are {len(Wanted._fields)}"
        ) from None
    _check_kinds(wanted)
    statuses = None if wanted.statuses is None else frozenset(map(Status, wanted.statuses))
    _check_ages(wanted)
    _check_statuses(wanted, statuses)
    if verb is not None:
        _check_reach(verb, wanted, statuses)
    if verb is Verb.CANCEL and statuses is None:
        return wanted._replace(statuses=sorted(OPEN))
    return wanted._replace(retriable=True) if verb is Verb.RETRY else wanted


def _check_kinds(wanted: Wanted) -> None:
    for name in _TEXTS:
        value = getattr(wanted, name)
        if value is not None or name in _NEVER_NONE:
            check_text({"agent_type": "type"}.get(name, name), value)
    for name in ("statuses", "run_ids"):
        value, field = getattr(wanted, name), {"statuses": "status"}.get(name, name)
        if value is None:
            continue
        if not isinstance(value, list | tuple) or not all(isinstance(each, str) for each in value):
            raise BadRequest(field, f"{value!r:.200} is no list of words")
        if not value:
            raise BadRequest(field, "an empty list chooses no run; leave it out, or say which")
    if len(wanted.run_ids or ()) > NAMED_MAX:
        raise BadRequest("run_ids", f"{len(wanted.run_ids or ()):,} runs are named; at most {NAMED_MAX:,} are at once")
    check_words("status", wanted.statuses, Status)
    for name in ("parked", "retriable", "undoing"):
        check_bool(name, getattr(wanted, name))
    if wanted.before is not None:
        check_whole("before", wanted.before)


def _check_ages(wanted: Wanted) -> None:
    for what, (since, until) in _AGES.items():
        after, before = getattr(wanted, since), getattr(wanted, until)
        for name, value in (("since", after), ("before", before)):
            if value is not None and (not is_number(value) or not value >= 0):
                words = "is no instant; those are milliseconds since 1970, and not negative"
                raise BadRequest(f"{what}_{name}", f"{value!r:.200} {words}")
        if after is not None and before is not None and after >= before:
            said = f"no run was {what}" if what == "requested" else "no run has ended"
            raise BadRequest(what, f"{said} from {after:.0f} on and before {before:.0f}, which is no later")


def _check_statuses(wanted: Wanted, statuses: frozenset[Status] | None) -> None:
    ages = wanted.ended_since_ms is not None or wanted.ended_until_ms is not None
    for name in [each for each in ("parked", "undoing") if getattr(wanted, each)]:
        if ages:
            raise BadRequest(
                name, f"a run that is {name} has not ended, so it has no time of its end; leave one of the two out"
            )
        if statuses is not None and not statuses & LIVE:
            raise BadRequest(name, f"a run that is {name} is {_either(LIVE)}, and never {_either(statuses)}")
    if statuses is None:
        return
    if ages and not statuses - LIVE:
        raise BadRequest("ended", f"a run that is {_either(statuses)} has not ended; leave the time of its end out")
    if wanted.error and statuses == {Status.COMPLETED}:
        raise BadRequest("error", "a run that has completed has no error; leave one of the two out")


def _check_reach(verb: Verb, wanted: Wanted, statuses: frozenset[Status] | None) -> None:
    beyond = (statuses or frozenset()) - REACH[verb]
    if beyond and verb is Verb.CANCEL:
        raise BadRequest(
            "status", f"a run that is {_either(beyond)} has ended, so it cannot be cancelled; leave that out"
        )
    if beyond:
        why = "has completed or was cancelled (aborted)"
        raise BadRequest("status", f"a run that {why} is not tried again, so {_either(beyond)} is to be left out")
    if verb is Verb.RETRY and statuses is not None and statuses & LIVE and not wanted.parked:
        raise BadRequest(
            "status", f"of runs that are {_either(LIVE)} only parked ones are tried again; ask for those (parked)"
        )


def _either(statuses: Iterable[Status]) -> str:
    return " or ".join(sorted(statuses))


def near_types(wanted: str, known: Iterable[str]) -> list[str]:
    """The known agent types that may be meant: those whose class has the same name, or one that is spelled alike, then those that are
    spelled alike as a whole."""
    types = sorted(set(known) - {wanted})
    names = [each.rpartition(":")[2].lower() for each in types]
    alike = get_close_matches(wanted.rpartition(":")[2].lower(), names, n=NEAR_MAX)
    by_name = [each for name in alike for each, its in zip(types, names, strict=True) if its == name]
    return list(dict.fromkeys([*by_name, *get_close_matches(wanted, types, n=NEAR_MAX)]))[:NEAR_MAX]


class Steer(NamedTuple):
    """A group of runs is to be steered. `runs` are their places and ids, `wanted` the fields of the filter that chose them, and `began_ms`
    the ledger's time when the pass began."""

    verb: str
    runs: Sequence[Sequence[Any]]
    wanted: Sequence[Any]
    reason: str
    began_ms: int

    @property
    def run_ids(self) -> list[str]:
        return [run_id for _, run_id in self.runs]


Deed = Cancel | Retry | Clear


class SteeredGroup(NamedTuple):
    """What became of the first `done` runs of a group: how many were hit, how many others with them (what waited for a run, or was
    requested by its child), how many were so already, how many are gone or not chosen any more, and how many were refused, by reason."""

    done: int
    hit: int
    others: int
    already: int
    gone: int
    refused: dict[str, int]


def steer(view: View, asked: Steer, decide_one: Callable[[Deed], Iterable[str]]) -> SteeredGroup:
    """Steer the runs of a group one after the other, each as it stands after the ones before it.

    Args:
        decide_one: decides and folds, and gives the kinds of the facts.
    """
    verb = check_word("verb", asked.verb, Verb)
    wanted = checked_wanted(asked.wanted, verb)
    done = hit = others = already = gone = facts = 0
    refused: dict[str, int] = {}
    for place, run_id in asked.runs:
        if facts >= FACTS_MAX:
            break
        done += 1
        run = view.runs.get(run_id)
        if run is None or run.first_seq != place:
            gone += 1
        elif _is_so(verb, run, asked.began_ms):
            already += 1
        elif why := _hindrance(verb, run):
            refused[why] = refused.get(why, 0) + 1
        elif not wanted_of([run], wanted._replace(before=None)):
            gone += 1
        else:
            try:
                kinds = list(decide_one(_deed(verb, run_id, asked.reason)))
            except BadRequest as problem:
                why = "its agent is being deleted" if isinstance(problem, AgentBeingDeleted) else problem.problem
                refused[why] = refused.get(why, 0) + 1
                continue
            facts += len(kinds)
            hit += 1
            others += max(0, kinds.count(FACT_OF[verb]) - 1)
    return SteeredGroup(done, hit, others, already, gone, refused)


def _is_so(verb: Verb, run: Run, began_ms: int) -> bool:
    if verb is Verb.CLEAR:
        return run.cleared
    if verb is Verb.CANCEL:
        return run.status is Status.ABORTED and not run.cleared
    return bool(run.retried_at_ms) and run.retried_at_ms >= began_ms


def _hindrance(verb: Verb, run: Run) -> str:
    if run.cleared:
        return ""
    if verb is Verb.CANCEL and run.status in HARD:
        return f"it has ended ({run.status})"
    if verb is Verb.RETRY and not run.can_be_retried:
        return "it was cancelled (aborted)" if run.status is Status.ABORTED else f"it is {run.status}"
    return ""


def _deed(verb: Verb, run_id: str, reason: str) -> Deed:
    if verb is Verb.CANCEL:
        return Cancel(run_id, None, reason)
    return Retry(run_id) if verb is Verb.RETRY else Clear([run_id])
