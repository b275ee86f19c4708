"""`perdure kill`: one strike at a process of a directory."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from perdure.ledger import LIVE, BadRequest, SupervisorUnreachable, name_of
from perdure.policies import StrikeTarget
from perdure.scenarios.commands.options import HERE, AsJson, Data, duration_ms
from perdure.scenarios.commands.shown import json_of
from perdure.scenarios.faults.chaos import LIVE_MAX
from perdure.scenarios.faults.observer import Observer
from perdure.scenarios.faults.strikes import Overview, Strike, Victim, chosen, hosts_in, some, supervisor_in

WAIT_MAX_MS: Final = 3_600_000
ANSWER_S: Final = 10.0
LOOK_S: Final = 0.05
NEXT: Final = {
    StrikeTarget.SUPERVISOR: "Ray starts it again. Nothing is decided until its next life has read the ledger.",
    StrikeTarget.HOST: "The supervisor gives the runs their next attempts on other hosts, and wakes the agents that have work again.",
}


class What(StrEnum):
    """What is struck."""

    HOST = "host"
    AGENT = "agent"
    RUN = "run"
    SUPERVISOR = "supervisor"


class KillChoice(NamedTuple):
    """What was asked for. `name` is that of a host, an agent or a run."""

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
    if not data.exists():
        raise BadRequest("data", f"there is no directory {data}")
    told = asyncio.run(_carry_out(data, order, wait_s, print if not as_json else lambda _said: None))
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
        f"{len(names)} {noun}{'s' * (len(names) != 1)}" + (f" ({some(names)})" if names else "")
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
