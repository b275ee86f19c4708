"""A data directory for a command: what serves it, or its ledger itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from perdure import actors
from perdure.actors import ray_of
from perdure.ledger import NoLongerServed, SupervisorUnreachable, bucket_of
from perdure.scenarios.commands.cold import ColdLedger

if TYPE_CHECKING:
    from perdure.actors import Runtime  # which brings Ray with it; a cold directory needs none


@contextmanager
def served(data: Path) -> Iterator[Runtime | None]:
    """What serves the directory; None if nothing does. No Ray and no supervisor is started."""
    with ExitStack() as stack:
        runtime: Runtime | None = None
        if ray_of(data) is not None:
            with suppress(SupervisorUnreachable, NoLongerServed):  # its Ray answers, and its supervisor does not
                runtime = stack.enter_context(actors.Runtime(data, may_start=False))
        yield runtime


@contextmanager
def opened(data: Path) -> Iterator[ColdLedger | Runtime]:
    """What serves the directory, or if nothing does, its ledger itself, with a line that says so."""
    with served(data) as runtime:
        if runtime is not None:
            yield runtime
            return
    with ColdLedger(data) as ledger:
        print(_cold_words(data), file=sys.stderr)
        yield ledger


def _cold_words(data: Path) -> str:
    if url := bucket_of(data):
        known = f"No supervisor that is known on this machine serves {url}."
        return f"{known} Its ledger answers; what may be at work elsewhere is shown as cut off."
    return f"No supervisor serves {data}. Its ledger answers, and nothing is started."
