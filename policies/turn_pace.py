"""How many messages one turn of the supervisor decides, and how long it waits between two commits to a bucket.

Messages of one turn share a commit, so many are cheaper than few. But messages that come meanwhile wait until the turn is over. So a turn
takes as many as are dealt with in about a thirtieth of a second. The time of the commit does not count: a slow disk needs large groups.

Where the ledger is a bucket, each commit is a request, which has its price however small it is. A supervisor that is never idle makes some
fifty a second. If they are the small commits of many agents, which mostly wait for models, ten a second do as well: what comes meanwhile
shares one.

So it *lingers*: a turn begins no sooner than the limit `linger_ms` after the last commit began, or when many messages wait. It begins to
when for a second many agents have been awake, and commits came at least twice as often as with a linger. One agent that awaits one run
after the other therefore never waits for it; nor does a fan-out, whose commits are few and large.

Agents that do nothing but wait for their commits would only do less in a second, and need as many commits for it. So if fewer messages come
in the first second of a linger than in the one before, it is given up for a while. That is brief at first, because there may just be less
to do than before: many agents that are begun at once say more than they do later.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from perdure.policies.limits import Limits

LONG_MS: Final = 40.0
SHORT_MS: Final = 15.0
SIZE_MIN: Final = 64

SPAN_MS: Final = 1_000.0
AGENTS: Final = 20
MESSAGES: Final = 100
SLOWED: Final = 0.6  # of the messages of the second before
PAUSE_MS, PAUSE_MOST_MS = 2_000.0, 64_000.0  # after it was given up; it doubles each time
MOST_MS: Final = 5_000.0  # whatever the limit says


def turn_size_after(size: int, taken: int, took_ms: float, limits: Limits) -> int:
    """The most messages of the next turn. The last one took `taken` of at most `size`, in `took_ms` without its commit."""
    if took_ms > LONG_MS:
        return min(size, max(SIZE_MIN, taken // 2))
    if took_ms < SHORT_MS and taken >= size:
        return min(2 * size, limits.turn_max)
    return size


class CommitPace(NamedTuple):
    """Of commits.

    Attributes:
        began_ms: when the last one began.
        lingers: whether the next one waits.
        since_ms: from when the commits and their messages are counted.
        before: how many messages came each millisecond, before it lingered; 0 if that does not count any more.
        pause_ms: for how long it was given up last; 0 if that does not count any more.
        prompt_until_ms: until when it does not linger.
    """

    began_ms: float = 0.0
    lingers: bool = False
    since_ms: float = 0.0
    commits: int = 0
    messages: int = 0
    before: float = 0.0
    pause_ms: float = 0.0
    prompt_until_ms: float = 0.0


def pace_after(pace: CommitPace, began_ms: float, messages: int, awake: int, limits: Limits) -> CommitPace:
    """After a commit of so many messages that began then, with so many agents awake."""
    spanned_ms, commits, messages = began_ms - pace.since_ms, pace.commits + 1, pace.messages + messages
    if spanned_ms < SPAN_MS:
        return pace._replace(began_ms=began_ms, commits=commits, messages=messages)
    rate = messages / spanned_ms
    then = CommitPace(began_ms, since_ms=began_ms, pause_ms=pace.pause_ms, prompt_until_ms=pace.prompt_until_ms)
    if awake < AGENTS:
        return then
    if not pace.lingers:
        lingers = commits * limits.linger_ms >= 2 * spanned_ms and began_ms >= pace.prompt_until_ms
        return then._replace(lingers=lingers, before=rate)
    if rate < SLOWED * pace.before:
        pause_ms = min(max(2 * pace.pause_ms, PAUSE_MS), PAUSE_MOST_MS)
        return then._replace(pause_ms=pause_ms, prompt_until_ms=began_ms + pause_ms)
    return then._replace(lingers=True, pause_ms=0.0)


def linger_ms(pace: CommitPace, now_ms: float, waiting: int, limits: Limits) -> float:
    """How long the next turn waits yet, with so many messages that wait for it; 0 for not at all."""
    if not pace.lingers or waiting >= MESSAGES:
        return 0.0
    return max(0.0, pace.began_ms + min(limits.linger_ms, MOST_MS) - now_ms)
