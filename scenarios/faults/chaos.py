"""`perdure chaos`: strikes at the processes of any work, by the clock, and an account of it at the end.

What a strike hits follows from the seed and from which processes there are: the kind of the n-th strike and its dice depend on nothing
that happened before. A strike does not wait for the recovery from the one before it. While no supervisor answers nothing can be aimed at,
so a strike that is due then comes as soon as one does.

Perdure promises that every completion takes effect once and that whatever was cut off goes on. So three things are wrong at the end: an
audit that does not balance, a completion that was parked meanwhile, and a run or agent that was struck and is not at work again. Runs
that ended in an error are counted and named. Whether that is wrong is for their author to say: an agent that may be tried once only, for
example, fails when it is killed.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Self

from perdure import SupervisorUnreachable
from perdure.policies import StrikeTarget, from_here, in_turns
from perdure.scenarios.faults.observer import NotServed
from perdure.scenarios.faults.strikes import Overview, Strike, System, Victim, chosen, some
from perdure.scenarios.live_view import were

LOOK_S: Final = 0.25
LIVE_MAX: Final = 1_000  # runs that are looked at
GONE_S: Final = 20.0  # without a process that serves the directory, until the drill is over
MUTE_S: Final = 120.0  # without an answer while one may still come, and if Ray is struck, which takes a while to start
ARTICLES: Final = {StrikeTarget.SUPERVISOR: "the ", StrikeTarget.AGENT: "an agent's ", StrikeTarget.RAY: "Ray's "}
MAIL: Final = ("enqueued", "delivered", "superseded", "suppressed", "parked", "pending")
FAILED_MAX: Final = 1_000  # failed runs that are told, or known from before
ACCOUNT: Final = (("ps", LIVE_MAX), ("audit",), ("list", None, ["error"], None, FAILED_MAX, "newest"))


# The answers to the questions of `ACCOUNT`.
class Account(NamedTuple):
    overview: Overview
    audit: dict[str, Any]
    failed: list[dict[str, Any]]

    @classmethod
    async def of(cls, system: System) -> Self:
        return cls(*[await system.ask(*question) for question in ACCOUNT])


Vital = Callable[[], Awaitable[list[Victim]]]
"""Finds the processes of Ray that may be hit."""


class Plan(NamedTuple):
    """What a drill does.

    Args:
        targets: the kinds of strikes; each comes once before any comes twice.
        fraction: a strike at hosts hits this share of them, instead of one.
        settle_s: the longest wait for what is live at the end.
    """

    every_s: float
    for_s: float
    seed: int = 0
    targets: Sequence[StrikeTarget] = (StrikeTarget.HOST, StrikeTarget.AGENT, StrikeTarget.SUPERVISOR)
    fraction: float | None = None
    settle_s: float = 60.0


class Over(Exception):
    """Nobody serves the directory any more."""


class Chaos:
    """One drill. `tell` gets a line for each event. `stopped` ends the strikes, and the wait after them."""

    def __init__(self, system: System, plan: Plan, tell: Callable[[str], None], vital: Vital | None = None) -> None:
        self.strikes: dict[int, Strike] = {}  # by their numbers
        self.wrong: list[str] = []
        self.stopped = asyncio.Event()
        self.seconds = 0.0
        self.is_over = False
        self._system, self._plan, self._tell, self._vital = system, plan, tell, vital
        self._silent_s: float | None = None  # since when nobody answers
        self._gone_s: float | None = None  # since when nothing serves the directory
        self._why = ""

    async def play(self) -> None:
        """Strike until the time is over, and wait until everything is at rest. Raises `SupervisorUnreachable` if nobody answers."""
        self._began_s = self._system.now_s()
        self._before = await Account.of(self._system)
        try:
            await self._strike_on()
            await self._settle()
        except Over:
            self.is_over = True
            self._tell(f"nothing serves the directory any more ({self._why}), so the drill is over")
        self.seconds = self._system.now_s() - self._began_s

    # strikes

    async def _strike_on(self) -> None:
        plan, die = self._plan, random.Random(f"{self._plan.seed} kinds")
        kinds = in_turns(plan.targets, lambda each: die.sample(each, len(each)))
        for number in range(1, int(plan.for_s / plan.every_s + 1e-9) + 1):
            overview = await self._watch(self._began_s + number * plan.every_s)
            if overview is None:
                return
            await self._strike(number, next(kinds), overview)

    async def _strike(self, number: int, drawn: StrikeTarget, overview: Overview) -> None:
        at_s, target, hit = self._system.now_s(), drawn, dict[Victim, str]()
        why = "nobody is there any more to be struck"
        try:
            target, victims = await self._choose(number, drawn, overview)
            for victim in victims:
                if way := await self._system.kill(victim):
                    hit[victim] = way
        except SupervisorUnreachable as problem:
            why = str(problem)
        if not hit:
            self._tell(f"strike {number}: {why}")
            return
        strike = self.strikes[number] = Strike.of(target, hit, overview, at_s)
        self._tell(f"strike {number}: {ARTICLES.get(target, '')}{', '.join(map(str, hit))}: {strike}")

    async def _choose(self, number: int, drawn: StrikeTarget, overview: Overview) -> tuple[StrikeTarget, list[Victim]]:
        # The next kind is taken if there is nobody of this one.
        roll = random.Random(f"{self._plan.seed} strike {number}").random
        vital = await self._vital() if self._vital is not None and drawn is StrikeTarget.RAY else []
        found = (
            (each, chosen(each, overview, roll, self._plan.fraction, vital))
            for each in from_here(self._plan.targets, drawn)
        )
        return next((each for each in found if each[1]), (drawn, []))

    # looks

    async def _watch(self, until_s: float) -> Overview | None:
        # None if the drill was stopped.
        while True:
            overview = await self._look()
            left_s = until_s - self._system.now_s()
            if self.stopped.is_set():
                return None
            if left_s <= 0 and overview is not None:
                return overview
            await self._pause(min(LOOK_S, max(left_s, LOOK_S / 10)))

    async def _look(self) -> Overview | None:
        asked_s = self._system.now_s()
        try:
            overview: Overview = await self._system.ask("ps", LIVE_MAX)
        except SupervisorUnreachable as problem:
            self._nobody_answers(asked_s, problem)
            return None
        now_s = self._system.now_s()
        if self._silent_s is not None:
            self._tell(
                f"the supervisor answers again after {now_s - self._silent_s:.1f} s, in life {overview['epoch']}"
            )
            self._silent_s = self._gone_s = None
            self._why = ""
        for number, strike in self._open.items():
            if strike.has_recovered(overview, now_s):
                self._tell(f"what strike {number} hit is at work again after {strike.took_ms:.0f} ms")
        return overview

    def _nobody_answers(self, asked_s: float, problem: SupervisorUnreachable) -> None:
        if self._silent_s is None:
            self._silent_s = asked_s
        if str(problem) != self._why:
            self._tell(str(problem))
        self._why = str(problem)
        is_gone = isinstance(problem, NotServed) and StrikeTarget.RAY not in self._plan.targets
        since_s = asked_s if self._gone_s is None else self._gone_s
        self._gone_s = since_s if is_gone else None
        now_s = self._system.now_s()
        if now_s - self._silent_s > MUTE_S or (self._gone_s is not None and now_s - self._gone_s > GONE_S):
            raise Over

    @property
    def _open(self) -> dict[int, Strike]:
        return {number: strike for number, strike in self.strikes.items() if strike.took_ms is None}

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self.stopped.wait()
        except TimeoutError:
            return

    async def _settle(self) -> None:
        until_s, told = self._system.now_s() + self._plan.settle_s, False
        while True:
            overview = await self._look()
            if overview is not None and not self._open and not live_in(overview) and not overview["audit"]["pending"]:
                return
            if self.stopped.is_set() or self._system.now_s() >= until_s:
                return
            if not told:
                self._tell(f"no more strikes; waiting for up to {self._plan.settle_s:g} s for what is under way")
                told = True
            await self._pause(LOOK_S)

    # the end

    def judge(self, now: Account) -> dict[str, Any]:
        """What happened meanwhile, as `--json` prints it. Fills `wrong`."""
        before, (overview, audit, failed) = self._before, now
        known = {row["run_id"] for row in before.failed}
        mail = {key: audit[key] - before.audit[key] for key in MAIL}
        self.wrong += self._differences(audit)
        ended = {
            status: max(0, overview["runs"][status] - before.overview["runs"][status])
            for status in ("completed", "error", "aborted", "interrupted")
        }
        return {
            "seed": self._plan.seed,
            "seconds": round(self.seconds, 3),
            "stopped": self.stopped.is_set(),
            "strikes": [self._plain(*each) for each in self.strikes.items()],
            "kills": dict(Counter(str(each.kind) for each in self.strikes.values())),
            "runs": {**ended, "live": live_in(overview)},
            "failed": {
                row["run_id"]: row["outcome"].get("error") or "" for row in failed if row["run_id"] not in known
            },
            "deliveries": {**mail, "balanced": audit["balanced"]},
            "recovery_ms": [each.took_ms for each in self.strikes.values() if each.took_ms is not None],
            "verified": not self.wrong,
        }

    def _differences(self, audit: dict[str, Any]) -> Iterator[str]:
        yield from unbalanced(audit)
        known = {mail["mail_id"] for mail in self._before.audit["parked_mail"]}
        parked = [mail for mail in audit["parked_mail"] if mail["mail_id"] not in known]
        if parked:
            mails = [f"{mail['mail_id']} ({mail['error']})" for mail in parked]
            yield f"{were(len(parked), 'completion')} parked meanwhile: {some(mails)}"
        for number, strike in ({} if self.stopped.is_set() or self.is_over else self._open).items():
            yield f"what strike {number} hit is not at work again: {some(strike.left)}"

    def _plain(self, number: int, strike: Strike) -> dict[str, Any]:
        return {
            "number": number,
            "target": str(strike.kind),
            "at_s": round(strike.at_s - self._began_s, 3),
            "victims": [{**each._asdict(), "way": way} for each, way in strike.victims.items()],
            "carried": {"runs": len(strike.runs), "agents": len(strike.agents)},
            "recovered_ms": None if strike.took_ms is None else round(strike.took_ms, 1),
        }


def live_in(overview: Overview) -> int:
    return int(overview["runs"]["starting"] + overview["runs"]["running"])


def unbalanced(audit: dict[str, Any]) -> list[str]:
    return (
        [] if audit["balanced"] else [f"the audit does not balance: {', '.join(f'{key} {audit[key]}' for key in MAIL)}"]
    )
