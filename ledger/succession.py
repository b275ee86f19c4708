"""Which life of the supervisor may begin on a bucket that another Ray knows too.

Fencing keeps what is durable whole, whoever begins when. But Ray restarts a supervisor that was fenced, so two sessions of Ray on one
bucket would fence each other for ever. Therefore a life begins only

    - if none has begun before, or the newest one belongs to its own session of Ray,
    - or if it was told to take over,
    - or if the newest one does not answer, or cannot: the head of its Ray was on this machine, where nothing of it is left.

And a life that Ray has restarted ends, even if nobody answers, when another session has followed its own: whoever works with that session
decides whether to come back, by opening the bucket anew.

Whether a life answers is asked at its door, the objects under `life/<its fence>/`:

    knock-<n>     created by the one that asks
    answer-<n>    created by the life, which looks for the next knock every `ATTEND_S`. A new slot is an answer too
    gone          created by the life when it is stopped, so that the next one need not wait

Whatever is decided here may be wrong, and no harm is done: a life that was merely slow is fenced, and ends. No clocks are compared; the
time of a holder is only shown.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum, auto
from typing import Final, NamedTuple

from perdure.ledger.codec import pack, unpack
from perdure.ledger.errors import ServedElsewhere
from perdure.ledger.slots import Create, Fenced, JournalLife, NoReply, Procedure, get, newest_key, record_of, slot_key

ATTEND_S: Final = 2.0
"""How often a life looks for knocks."""
KNOCK_S: Final = 5.0
"""How long one that knocks waits for an answer."""
EARLIER_MAX: Final = 16


class Claim(NamedTuple):
    """Who wants to begin.

    Args:
        session: of Ray.
        machine: its name.
        since_ms: the time there.
        take_over: also from a life that answers.
        is_restarted: Ray has restarted the supervisor.
        address: where the GCS of its Ray is, `host:port`.
        auth: the `RAY_AUTH_MODE` there.
        home: the machine, as its processes see it, by an id that no other one has; empty if that is not known.
        has_head: that GCS runs there too.
    """

    session: str = ""
    machine: str = ""
    since_ms: int = 0
    take_over: bool = False
    is_restarted: bool = False
    address: str = ""
    auth: str = ""
    home: str = ""
    has_head: bool = False


NOBODY: Final = Claim()


class Holder(NamedTuple):
    """Who has begun, as its fence says: the session of Ray, the machine, the time there, which other sessions have had the bucket before
    (the last one first), and where its Ray is. `home` is empty if the head of that Ray was on another machine."""

    session: str = ""
    machine: str = ""
    since_ms: int = 0
    earlier: tuple[str, ...] = ()
    address: str = ""
    auth: str = ""
    home: str = ""

    def packed(self) -> bytes:
        return pack([*self[:3], list(self.earlier), *self[4:]])

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since_ms / 1000, UTC)
        ray = f"Ray's {self.session or 'session is unknown'}" + (f" at {self.address}" if self.address else "")
        return f"{self.machine or 'another machine'} ({ray}) since {since:%Y-%m-%d %H:%M:%S} UTC"


def holder_of(about: bytes | None) -> Holder | None:
    """What a fence says; None if there is none."""
    if about is None:
        return None
    if not about:
        return Holder()
    found = Holder(*unpack(about))
    return found._replace(earlier=tuple(found.earlier))


class Traces(NamedTuple):
    """What a machine sees of the Ray of a holder: whether a process of its session runs there, and whether connections to its GCS are
    refused. One that is not answered is not refused."""

    has_processes: bool
    refuses: bool


class Verdict(Enum):
    BEGINS = auto()
    ASKS = auto()  # whether the newest life answers
    REFUSED = auto()
    FOLLOWED = auto()  # its session was followed by another one


def verdict(claim: Claim, holder: Holder | None, *, answers: bool | None) -> Verdict:
    """What becomes of a claim when the newest life has this holder. `answers` says whether that one does; None if it was not asked."""
    if holder is None or holder.session == claim.session:
        return Verdict.BEGINS
    if claim.is_restarted and claim.session in holder.earlier:
        return Verdict.FOLLOWED
    if claim.take_over or answers is False:
        return Verdict.BEGINS
    return Verdict.ASKS if answers is None else Verdict.REFUSED


def is_gone(claim: Claim, holder: Holder, look: Callable[[Holder], Traces]) -> bool:
    """Whether it is known that a holder's Ray is gone. Only the machine that had its head can know."""
    if not holder.home or (holder.machine, holder.home) != (claim.machine, claim.home):
        return False
    found = look(holder)
    is_replaced = holder.address == claim.address  # its port has passed to the Ray of the claim
    return not found.has_processes and (found.refuses or is_replaced)


def successor(claim: Claim, holder: Holder | None) -> Holder:
    """What the fence of a claim that begins says."""
    known = () if holder is None else (holder.session, *holder.earlier)
    earlier = [each for each in dict.fromkeys(known) if each != claim.session]
    home = claim.home if claim.has_head else ""
    last = tuple(earlier[:EARLIER_MAX])
    return Holder(claim.session, claim.machine, claim.since_ms, last, claim.address, claim.auth, home)


def refusal(url: str, found: Verdict, holder: Holder) -> ServedElsewhere:
    """The error for a claim that does not begin."""
    if found is Verdict.FOLLOWED:
        words = f"it was taken over, and has been served by {holder}; the supervisor here has ended"
        return ServedElsewhere(url, words, f"go on there, or open it here anew. {TAKE_OVER}")
    advice = f"work with it on a machine of that cluster, or stop it there (`perdure stop`). {TAKE_OVER}"
    return ServedElsewhere(url, f"it is served by {holder}, which answers", advice)


def where_to_ask(life: tuple[Holder | None, bool]) -> str:
    """Where a supervisor of a bucket is that this machine does not reach, as its `last_life` tells, and what to do."""
    holder, is_over = life
    if holder is None:
        return "from here its bucket tells of nobody who does"
    if is_over:
        return f"as its bucket tells, {holder} was stopped, and nobody has followed"
    where = f"run this on a machine of that cluster: {holder.machine or 'the one that serves it'}"
    return f"as its bucket tells, it is served by {holder}, unless that one has died; {where}"


TAKE_OVER: Final = (
    "To take it over while that one lives, use `--take-over`, or `Runtime(…, take_over=True)`: nothing acknowledged is lost, and what is"
    " under way there begins another attempt here"
)


# ---------------------------------------------------------------- the door


def _door(fence: int, name: str) -> str:
    return f"life/{fence:012x}/{name}"


def knock(fence: int) -> Procedure[int]:
    """Knock at the door of a life. Returns the number of the knock."""
    prefix = _door(fence, "knock-")
    number = int((yield from newest_key(prefix)).removeprefix(prefix) or 1)
    while True:
        try:
            is_mine = yield Create(f"{prefix}{number:08}", b"")
        except NoReply:
            continue  # if it has come to be there, the next number is taken: none may be left out
        if is_mine:
            return number
        number += 1


def heard(life: JournalLife, number: int) -> Procedure[bool | None]:
    """Whether a knock at the door of the newest life was answered; False if that life is gone, None if nothing is known yet."""
    fence = life.chain.fence
    keys = [_door(fence, "gone"), _door(fence, f"answer-{number:08}"), slot_key(life.chain.slot + 1)]
    gone, answer, slot = yield from get(keys)
    return False if gone is not None else True if answer is not None or slot is not None else None


def last_life(life: JournalLife) -> Procedure[tuple[Holder | None, bool]]:
    """Who has begun last, None if nobody has, and whether that life has departed. Nothing is begun."""
    begun = yield from life.look()
    holder = holder_of((yield from life.newest_about(begun.entries)))
    (gone,) = yield from get([_door(life.chain.fence, "gone")])
    return holder, gone is not None


def attend(life: JournalLife, answered: int) -> Procedure[int]:
    """Answer knocks at the own door from a number on. Returns that of the last one. Raises `Fenced` if another life has begun."""
    while True:
        name, following = f"{answered + 1:08}", slot_key(life.chain.slot + 1)
        knocked, body = yield from get([_door(life.fence, f"knock-{name}"), following])
        if body is not None and record_of(following, body).nonce != life.nonce:
            raise Fenced
        if knocked is None:
            return answered
        yield from life.create(_door(life.fence, f"answer-{name}"), b"")
        answered += 1


def depart(life: JournalLife) -> Procedure[None]:
    """Say at the own door that this life is over."""
    yield from life.create(_door(life.fence, "gone"), b"")
