"""`perdure stop`."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from perdure import actors
from perdure.ledger import LEDGER, BadRequest, given_as
from perdure.ledger.store.integrity import refuse_if_in_use
from perdure.scenarios.commands.options import HERE, AsJson, Data, duration_ms
from perdure.scenarios.commands.shown import json_of

if TYPE_CHECKING:
    from perdure.actors import Stopped

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
    if not data.exists():
        raise BadRequest("data", f"there is no directory {data}")

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
    hosts = "1 host" if len(stopped.hosts) == 1 else f"{len(stopped.hosts)} hosts"
    yield (
        f"Stopped what served {given_as(data)}: the supervisor"
        + (f" (process {who.pid} on {who.node})" if who is not None else ", which did not answer,")
        + f" and {hosts}"
        + (f" (process{'es' if len(pids) > 1 else ''} {', '.join(pids)})." if pids else ".")
    )
    if stopped.at_work is None:
        yield "It did not say what was at work. Whatever that was goes on when the directory is served again."
    elif stopped.at_work:
        cut = "1 agent was" if stopped.at_work == 1 else f"{stopped.at_work} agents were"
        yield f"{cut} cut off at work, which goes on when the directory is served again."
    yield {
        "goes on": f"The Ray at {stopped.address} goes on.",
        "belongs to its script": f"The Ray at {stopped.address} goes on as long as process {stopped.owner}, which has started it.",
        "was ended": f"The Ray at {stopped.address}, whose script was dead, was ended too.",
    }[stopped.ray]
