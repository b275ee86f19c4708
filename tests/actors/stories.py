"""What many stories say: a parent was told something, and then nothing more."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from tests.actors.cast import Boss
from tests.kit import Stage


class Told(NamedTuple):
    """A line that a parent has written down."""

    what: str
    run_id: str
    status: str
    reason: str | None = None


async def told_by(stage: Stage, parent: type[Boss]) -> list[Told]:
    """Everything that the parent has written down."""
    return [Told(*row) for row in await stage.call(parent, "told")]


async def settled(stage: Stage, parent: type[Boss], count: int, quiet_s: float = 60) -> list[Told]:
    """Wait until the parent has written so many lines, and then a while in which it may say no more than that."""
    for _ in range(900):
        if len(await told_by(stage, parent)) >= count:
            break
        await asyncio.sleep(0.5)
    await asyncio.sleep(quiet_s)
    return await told_by(stage, parent)
