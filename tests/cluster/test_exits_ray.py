"""How a host's process ended is said in words: in the failure of the run that ended it."""

from __future__ import annotations

import ctypes
import os
import signal
from pathlib import Path
from typing import ClassVar

from perdure.actors import Agent, Runtime


class Ends(Agent):
    """Ends its process."""

    attempts_max: ClassVar[int | None] = 1

    async def run(self, input: str) -> None:
        if input == "exit":
            os._exit(3)
        if input == "crash":
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)


def test_the_end_of_a_process_is_told_in_words(tmp_path: Path) -> None:
    with Runtime(tmp_path) as runtime:
        told = {how: runtime.run(Ends, how, run_id=how).error for how in ("exit", "crash", "kill")}
        assert "its code called os._exit(3) in " in told["exit"]
        assert "test_exits_ray.py:" in told["exit"]
        assert "Segmentation fault in File " in told["crash"]
        assert "its process was killed" in told["kill"]
        assert "connection error" not in str(told)
        assert "os._exit(3)" in "\n".join(runtime.explain("exit"))
