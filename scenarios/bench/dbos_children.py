"""DBOS on SQLite: child workflows. `python -m perdure.scenarios.bench.dbos_children DIRECTORY` talks as `peers` says.

The children are coroutines, which were a little faster than threads, and take no steps, as those of the others do not.
"""

from __future__ import annotations

import asyncio
import sys
import time
from importlib.metadata import version
from pathlib import Path

from dbos import DBOS

from perdure.scenarios.bench.peers import AWAITED, FAN_OUT, answer


@DBOS.workflow()
async def child(number: int) -> int:
    return number


@DBOS.workflow()
async def one_by_one(count: int) -> list[float]:
    seconds = []
    for number in range(count):
        begun_s = time.perf_counter()
        handle = await DBOS.start_workflow_async(child, number)
        await handle.get_result()
        seconds.append(time.perf_counter() - begun_s)
    return seconds


@DBOS.workflow()
async def fan_out(count: int) -> list[float]:
    begun_s = time.perf_counter()
    handles = [await DBOS.start_workflow_async(child, number) for number in range(count)]
    for handle in handles:
        await handle.get_result()
    return [time.perf_counter() - begun_s]


def main(place: Path) -> None:
    DBOS(
        config={
            "name": "versus",
            "system_database_url": f"sqlite:///{place.resolve() / 'dbos.sqlite'}",
            "run_admin_server": False,
            "log_level": "ERROR",
        }
    )
    DBOS.launch()
    asyncio.run(answer(f"DBOS {version('dbos')} on SQLite", {AWAITED: one_by_one, FAN_OUT: fan_out}))
    DBOS.destroy()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
