"""The commands that end processes of a directory: `stop`, `kill` and `chaos`."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple

import typer

from perdure import BadRequest, SupervisorUnreachable, actors
from perdure.ledger import LEDGER, LIVE, given_as, name_of
from perdure.ledger.store.integrity import refuse_if_in_use
from perdure.policies import StrikeTarget
from perdure.scenarios.commands.opening import ColdLedger
from perdure.scenarios.commands.options import HERE, AsJson, Data, check_there, duration_ms
from perdure.scenarios.commands.shown import equation, in_words, json_of, percentiles, say, shortened
from perdure.scenarios.exits import STOPPED
from perdure.scenarios.faults.chaos import ACCOUNT, LIVE_MAX, Account, Chaos, Plan
from perdure.scenarios.faults.observer import Observer
from perdure.scenarios.faults.strikes import Overview, Strike, Victim, chosen, hosts_in, some, supervisor_in
from perdure.scenarios.live_view import PipeScreen, Screen, plural, stamp, were

if TYPE_CHECKING:
    from perdure.actors import Stopped

WAIT_MAX_MS: Final = 3_600_000
ANSWER_S: Final = 10.0
LOOK_S: Final = 0.05
NEXT: Final = {
    StrikeTarget.SUPERVISOR: "Ray starts it again. Nothing is decided until its next life has read the ledger.",
    StrikeTarget.HOST: "The supervisor gives the runs their next attempts on other hosts, and wakes the agents that have work again.",
}


class What(StrEnum):
    HOST = "host"
    AGENT = "agent"
    RUN = "run"
    SUPERVISOR = "supervisor"


# `name` is that of a host, an agent or a run.
class KillChoice(NamedTuple):
    what: What | None
    name: str | None
    fraction: float | None
    all_hosts: bool
    seed: int


def kill(
    what: Annotated[
        What | None, typer.Argument(help="A host, the host of an agent or of a run, or the supervisor.")
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Which host, agent (its address, or its name) or run.")
    ] = None,
    fraction: Annotated[float | None, typer.Option(help="Kill this share of the hosts, drawn at random: 0.3.")] = None,
    all_hosts: Annotated[bool, typer.Option("--all-hosts", help="Kill all hosts.")] = False,
    seed: Annotated[int, typer.Option(help="Decides what --fraction draws.")] = 0,
    wait: Annotated[
        str, typer.Option(help="How long to look whether everything is at work again; 0s for not at all.")
    ] = "10s",
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Kill a process that serves a directory, at once, and see how the work goes on.

    Nothing durable is lost. Runs that were on a killed host get their next attempt on another one, and agents that had work are woken
    again. A supervisor is started again by Ray, while hosts and agents go on. A run has attempts_max attempts without progress in between.

    A process is killed by SIGKILL. It is told apart by its number and its start time, so nobody who has the number by now is struck. On
    another machine it is asked through Ray to kill itself; if it does not answer, Ray ends its actor.

    It is printed what was killed, what that carried, when all of it was at work again, and `perdure explain` of one of its runs.

    Examples:
        perdure kill supervisor
        perdure kill host 3f0c9a1e77ab
        perdure kill agent "anna@desk.agents:Assistant"
        perdure kill run import-7
        perdure kill --fraction 0.3 --seed 7
        perdure kill --all-hosts --wait 0s --json
    """
    order, wait_s = KillChoice(what, name, fraction, all_hosts, seed), duration_ms(wait, "wait", WAIT_MAX_MS) / 1000
    _check(order)
    check_there(data)
    told = asyncio.run(_carry_out(data, order, wait_s, say if not as_json else lambda _said: None))
    if as_json:
        print(json_of(told))


def _check(order: KillChoice) -> None:
    chosen = [order.what is not None, order.fraction is not None, order.all_hosts]
    if sum(chosen) != 1:
        raise BadRequest("what", "say one of host, agent, run, supervisor, --fraction and --all-hosts")
    if order.fraction is not None and not 0 < order.fraction <= 1:
        raise BadRequest("fraction", f"{order.fraction:g} is not above 0 and at most 1")
    is_named = order.what in (What.HOST, What.AGENT, What.RUN)
    if is_named and not order.name:
        raise BadRequest("name", f"which {order.what} is meant? `perdure ps` shows them")
    if order.name and not is_named:
        raise BadRequest("name", f"{order.name!r} goes with host, agent or run alone")


async def _carry_out(data: Path, order: KillChoice, wait_s: float, say: Callable[[str], None]) -> dict[str, Any]:
    async with Observer(data, ANSWER_S) as observer:
        overview = await observer.ask("ps", LIVE_MAX)
        victims, at_s = await _chosen(observer, order, overview), observer.now_s()
        hit = {victim: way for victim in victims if (way := await observer.kill(victim))}
        if not hit:
            raise BadRequest(order.what or "hosts", f"{some(victims)} ended before it was struck")
        target = StrikeTarget.SUPERVISOR if order.what is What.SUPERVISOR else StrikeTarget.HOST
        strike, names = Strike.of(target, hit, overview, at_s), {victim.name for victim in hit}
        for victim, way in hit.items():
            say(f"Killed {victim}: {way}.")
        agents = [agent for agent, host, _ in overview["agents"] if host in names]
        say(_burden(list(strike.runs), agents) if target is StrikeTarget.HOST else "It carried no run and no agent.")
        say(NEXT[target])
        await _wait(observer, strike, wait_s)
        if strike.took_ms is not None:
            say(f"All of it is at work again, or has ended, after {strike.took_ms:.0f} ms.")
        elif wait_s:
            say(f"After {wait_s:g} s this is not at work again: {some(strike.left)}.")
        told = [str(order.name)] if order.what is What.RUN else list(strike.runs)[:1]
        explained = {run_id: await observer.ask("explain", run_id) for run_id in told}
    for sentences in explained.values():
        say("\n" + "\n".join(sentences))
    return {
        "killed": [{**victim._asdict(), "way": way} for victim, way in hit.items()],
        "runs": list(strike.runs),
        "agents": agents,
        "recovered_ms": None if strike.took_ms is None else round(strike.took_ms, 1),
        "left": strike.left,
        "explain": explained,
    }


async def _chosen(observer: Observer, order: KillChoice, overview: Overview) -> list[Victim]:
    if order.what is What.SUPERVISOR:
        return [supervisor_in(overview)]
    if order.what is None:
        fraction = 1.0 if order.all_hosts else order.fraction
        found = chosen(StrikeTarget.HOST, overview, random.Random(order.seed).random, fraction)
        if not found:
            raise BadRequest("hosts", "no host is up; they come with the work")
        return found
    home = order.name if order.what is What.HOST else await _home(observer, order, overview)
    hosts = hosts_in(overview)
    if home not in hosts:
        known = f"those that are: {', '.join(sorted(hosts))}" if hosts else "none is"
        raise BadRequest("host", f"no host {home!r} is up; {known}")
    return [hosts[home]]


async def _home(observer: Observer, order: KillChoice, overview: Overview) -> str:
    name = str(order.name)
    if order.what is What.RUN:
        run = await observer.ask("show", name)
        if run["status"] not in LIVE:
            raise BadRequest("run", f"{name} has ended: {run['status']}")
        if not run["host"]:
            raise BadRequest("run", f"{name} is {run['status']} and on no host; `perdure explain` says why")
        return str(run["host"])
    living = {agent: host for agent, host, _ in overview["agents"] if host}
    found = [name] if name in living else [agent for agent in living if name_of(agent) == name]
    if len(found) > 1:
        raise BadRequest("agent", f"several agents are called {name!r}; give the address: {some(found)}")
    if found:
        return str(living[found[0]])
    about = await observer.ask("agent", name)
    if about is None:
        known = f"those that are: {some(sorted(living))}" if living else "none is"
        raise BadRequest("agent", f"no agent {name!r} is awake; {known}")
    if not about["host"]:
        raise BadRequest("agent", f"{name} is asleep, so no process carries it")
    return str(about["host"])


def _burden(runs: list[str], agents: list[str]) -> str:
    carried = [
        plural(len(names), noun) + (f" ({some(names)})" if names else "")
        for noun, names in (("live run", runs), ("agent", agents))
    ]
    return f"It carried {' and '.join(carried)}."


async def _wait(observer: Observer, strike: Strike, wait_s: float) -> None:
    while observer.now_s() < strike.at_s + wait_s:
        try:
            if strike.has_recovered(await observer.ask("ps", LIVE_MAX), observer.now_s()):
                return
        except SupervisorUnreachable:
            strike.left = ["supervisor"]
        await asyncio.sleep(LOOK_S)


TIMEOUT_MAX_MS: Final = 3_600_000


def stop(
    timeout: Annotated[str, typer.Option(help="How long running work may go on first, such as 30s, 5m or 0s.")] = "30s",
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Stop the supervisor and the hosts that serve a directory, whoever started them. Nothing durable is lost.

    Nothing new begins, idle agents are put to sleep, and running work may go on until the timeout. What is cut off then goes on when the
    directory is served again; runs get their next attempt. Scripts that have the directory open are told. If the directory is followed
    (`perdure replica`), the bucket gets what it lacks, within the timeout.

    A Ray cluster goes on. Only a Ray that Perdure started for this directory, and whose script is dead, is ended too. If nothing serves the
    directory, the command says so and exits with 0.

    Examples:
        perdure stop
        perdure stop --data /mnt/perdure --timeout 5m
        perdure stop --timeout 0s --json
    """
    patience_ms = duration_ms(timeout, "timeout", TIMEOUT_MAX_MS)
    check_there(data)

    def tell(at_work: int) -> None:
        if not as_json:
            waited = "1 agent is" if at_work == 1 else f"{at_work} agents are"
            print(f"{waited} at work; waiting for up to {timeout}. Ctrl-C leaves everything as it is.", file=sys.stderr)

    stopped = actors.stop_serving(data, patience_ms / 1000, tell)
    if stopped is None:
        refuse_if_in_use(data / LEDGER)
    if as_json:
        print(json_of(_as_object(stopped)))
    else:
        print("\n".join(stopped_words(data, stopped)))


def _as_object(stopped: Stopped | None) -> dict[str, Any]:
    if stopped is None:
        return {"served": False}
    supervisor, hosts = stopped.supervisor, stopped.hosts
    return {
        "served": True,
        "supervisor": None if supervisor is None else {"pid": supervisor.pid, "node": supervisor.node},
        "hosts": [
            {"host_id": host_id, **({} if about is None else {"pid": about.pid, "node": about.node})}
            for host_id, about in hosts.items()
        ],
        "cut_off": stopped.at_work,
        "address": stopped.address,
        "ray": stopped.ray,
    }


def stopped_words(data: Path, stopped: Stopped | None) -> Iterable[str]:
    """What was stopped, in sentences."""
    if stopped is None:
        told = actors.nothing_serves(data)
        yield f"{told[0].upper()}{told[1:]}."
        return
    who = stopped.supervisor
    pids = [str(about.pid) for about in stopped.hosts.values() if about is not None]
    hosts = plural(len(stopped.hosts), "host")
    yield (
        f"Stopped what served {given_as(data)}: the supervisor"
        + (f" (process {who.pid} on {who.node})" if who is not None else ", which did not answer,")
        + f" and {hosts}"
        + (f" (process{'es' if len(pids) > 1 else ''} {', '.join(pids)})." if pids else ".")
    )
    if stopped.at_work is None:
        yield "It did not say what was at work. Whatever that was goes on when the directory is served again."
    elif stopped.at_work:
        yield f"{were(stopped.at_work, 'agent')} cut off at work, which goes on when the directory is served again."
    yield {
        "goes on": f"The Ray at {stopped.address} goes on.",
        "belongs to its script": f"The Ray at {stopped.address} goes on as long as process {stopped.owner}, which has started it.",
        "was ended": f"The Ray at {stopped.address}, whose script was dead, was ended too.",
    }[stopped.ray]


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
    check_there(data)
    screen = Screen() if as_json else PipeScreen(stamp)
    told, wrong = asyncio.run(_play(data, plan, screen.say))
    say(json.dumps(told) if as_json else "\n".join(_sentences(told)))
    for difference in wrong:
        say(f"differs: {difference}", aside=True)
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
