"""`perdure chaos`."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from perdure.ledger import BadRequest, SupervisorUnreachable
from perdure.policies import StrikeTarget
from perdure.scenarios.commands.cold import ColdLedger
from perdure.scenarios.commands.options import HERE, AsJson, Data, duration_ms
from perdure.scenarios.commands.shown import equation, in_words, percentiles, shortened
from perdure.scenarios.exits import STOPPED
from perdure.scenarios.faults.chaos import ACCOUNT, Account, Chaos, Plan
from perdure.scenarios.faults.observer import Observer
from perdure.scenarios.faults.strikes import some
from perdure.scenarios.live_view import PipeScreen, Screen, stamp, were

SETTLE_MAX_MS: Final = 86_400_000
FOR_MAX_MS: Final = 30 * 86_400_000
EVERY_MIN_MS: Final = 200
COMMON: Final = (StrikeTarget.HOST, StrikeTarget.AGENT, StrikeTarget.SUPERVISOR)


def chaos(
    every: Annotated[str, typer.Option(help="Time between two strikes, such as 5s.", metavar="TIME")] = "5s",
    lasting: Annotated[str, typer.Option("--for", help="How long there are strikes.", metavar="TIME")] = "1m",
    seed: Annotated[int, typer.Option(help="Decides what each strike hits.")] = 0,
    what: Annotated[
        list[StrikeTarget] | None,
        typer.Option(help="Kinds of strikes; repeatable. By default host, agent and supervisor."),
    ] = None,
    fraction: Annotated[
        float | None, typer.Option(help="A strike at hosts hits this share of them, such as 0.3, instead of one.")
    ] = None,
    ray: Annotated[
        bool, typer.Option("--ray", help="Also strike the GCS and the raylet of a Ray that was started for DIR alone.")
    ] = False,
    settle: Annotated[
        str, typer.Option(help="The longest wait for live runs and mail at the end.", metavar="TIME")
    ] = "60s",
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Kill processes of the work that is going on in a directory, again and again, and account for it at the end.

    A strike is a SIGKILL of one host, of the host of an agent that is awake, or of the supervisor. Each kind comes once before any comes
    twice. The seed decides the kinds and the dice; hosts are told apart by the agents that they carry. Nothing else is killed: not your
    script, and nothing of Ray without --ray. Processes on other machines are asked through Ray to kill themselves. Each strike is printed
    with its time, what it hit, and when all of that was at work again. It does not wait for that: --every alone says when the next comes.

    At the end it waits until no run is live and no mail is pending, or until --settle has passed. Then the audit is printed. Ctrl-C
    goes straight to the audit. If the script that serves the directory ends meanwhile, the ledger itself is asked.

    The exit code is 1 if the audit does not balance, a completion was parked meanwhile, or what was struck is not at work again. Runs that
    failed meanwhile are listed. They do not count: an agent with attempts_max = 1, for example, fails when it is killed.

    With --json the object has seed, seconds, stopped, strikes, kills (by kind), runs (those that ended meanwhile by status, and live),
    failed, deliveries, recovery_ms (p50, p99 and max) and verified.

    Examples:
        perdure chaos --every 5s --for 2m --seed 7
        perdure chaos --what host --fraction 0.3 --every 20s --for 10m
        perdure chaos --ray --every 30s --for 5m --data ./census --json
    """
    plan = _plan(every, lasting, seed, what, fraction, settle, ray=ray)
    if not data.exists():
        raise BadRequest("data", f"there is no directory {data}")
    screen = Screen() if as_json else PipeScreen(stamp)
    told, wrong = asyncio.run(_play(data, plan, screen.say))
    print(json.dumps(told) if as_json else "\n".join(_sentences(told)))
    for difference in wrong:
        print(f"differs: {difference}", file=sys.stderr)
    if wrong:
        raise typer.Exit(1)


def _plan(
    every: str,
    lasting: str,
    seed: int,
    what: list[StrikeTarget] | None,
    fraction: float | None,
    settle: str,
    *,
    ray: bool,
) -> Plan:
    every_ms, for_ms = duration_ms(every, "every"), duration_ms(lasting, "for", FOR_MAX_MS)
    if every_ms < EVERY_MIN_MS:
        raise BadRequest("every", f"{every!r} is less than {EVERY_MIN_MS} ms, in which nothing can recover")
    if for_ms < every_ms:
        raise BadRequest("for", f"{lasting!r} is shorter than --every {every}, so there would be no strike")
    if StrikeTarget.RAY in (what or ()) and not ray:
        raise BadRequest("what", "ray is struck only with --ray")
    targets = tuple(dict.fromkeys([*(what or COMMON), *[StrikeTarget.RAY] * ray]))
    if fraction is not None and not 0 < fraction <= 1:
        raise BadRequest("fraction", f"{fraction:g} is not above 0 and at most 1")
    if fraction is not None and StrikeTarget.HOST not in targets:
        raise BadRequest("fraction", "says how many hosts a strike hits, and no strike hits hosts; add --what host")
    return Plan(
        every_ms / 1000, for_ms / 1000, seed, targets, fraction, duration_ms(settle, "settle", SETTLE_MAX_MS) / 1000
    )


async def _play(data: Path, plan: Plan, tell: Callable[[str], None]) -> tuple[dict[str, Any], list[str]]:
    async with Observer(data) as observer:
        vital = await observer.vital() if StrikeTarget.RAY in plan.targets else []
        drill = Chaos(observer, plan, tell, observer.vital if vital else None)
        _heed_signals(drill)
        await drill.play()
        told = await _judged(drill, observer, data)
    return told, drill.wrong


# The first Ctrl-C or `SIGTERM` ends the strikes, and the second one this process.
def _heed_signals(drill: Chaos) -> None:
    def stop() -> None:
        if drill.stopped.is_set():
            sys.exit(STOPPED)
        drill.stopped.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def _judged(drill: Chaos, observer: Observer, data: Path) -> dict[str, Any]:
    try:
        account = await Account.of(observer)
    except SupervisorUnreachable:  # the script that served the directory has ended
        with ColdLedger(data) as ledger:
            account = Account(*[ledger.ask(*question) for question in ACCOUNT])
    told = drill.judge(account)
    return {**told, "recovery_ms": percentiles([round(each, 1) for each in told["recovery_ms"]])}


def _sentences(told: dict[str, Any]) -> list[str]:
    recovery, runs, mail = told["recovery_ms"], told["runs"], told["deliveries"]
    killed = sum(len(each["victims"]) for each in told["strikes"])
    said = [
        f"{were(len(told['strikes']), 'strike')} made in {told['seconds']:.1f} s: {in_words(told['kills'])} ({killed} killed)."
    ]
    if recovery["max"] is not None:
        said.append(f"At work again after {recovery['p50']:.0f} ms (worst {recovery['max']:.0f} ms).")
    ended = ", ".join(f"{runs[status]} {status}" for status in runs if status != "live" and runs[status]) or "no run"
    said.append(f"Ended meanwhile: {ended}. Live now: {runs['live']}.")
    if told["failed"]:
        names = [f"{run_id} ({shortened(error)})" for run_id, error in told["failed"].items()]
        said.append(f"Failed meanwhile: {some(names)}. `perdure explain RUN` tells more.")
    said.append(f"Mail: {equation(mail)} ({'balanced' if mail['balanced'] else 'NOT balanced'}).")
    if told["verified"]:
        said.append("Verified: every completion is accounted for, and what was struck is at work again or has ended.")
    return said
