"""How a host's process ended is said in words: in the failure of the run, fiber or call that ended it, and in the log.

What was printed before is in the log too, and one who follows the log goes on to the next host.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar

import pytest

from perdure.actors import Agent, FiberContext, FiberRetry, LogFiles, RemoteError, Runtime, WantedLogs, exposed
from perdure.ledger import OutcomeUnknown
from perdure.policies import Limits

pytestmark = pytest.mark.shared_ray


SIGNALS = {"term": signal.SIGTERM, "kill": signal.SIGKILL, "alarm": signal.SIGALRM}


class Ends(Agent):
    """Ends its process."""

    attempts_max: ClassVar[int | None] = 1
    stands_alone = True

    async def run(self, input: str) -> None:
        self.end(input)

    @exposed
    def end(self, how: str) -> None:
        """In a call, on a thread."""
        print("ends by", how)  # noqa: T201 - what is looked for in the log
        if how == "exit":
            os._exit(3)
        if how == "crash":
            ctypes.string_at(0)
        if how == "import":
            importlib.import_module("nothing_of_that_name")
        os.kill(os.getpid(), SIGNALS[how])
        time.sleep(60)

    @exposed
    def begin(self, answered: str) -> None:
        """In a fiber, which ends the process only when this file says that the call was answered."""
        once = FiberRetry(attempts_max=1)
        self.start_fiber("ends", self.job, fiber_id="ends", metadata={"answered": answered}, retry=once)

    def job(self, fiber: FiberContext) -> None:
        """On a thread."""
        _until(Path(fiber.metadata["answered"]).exists)
        self.end("exit")

    @exposed(repeatable=True)
    def ended(self) -> str | None:
        """What is known of the fiber."""
        found = self.inspect_fiber("ends")
        return found.error if found is not None else None


WORDS = {
    "exit": "its code called os._exit(3) in ",
    "crash": "Segmentation fault in File ",
    "kill": "its process was killed",
    "term": "its process was ended by SIGTERM",
    "alarm": "a timer of its code ran out (SIGALRM), for which it has no handler, in ",
}


@pytest.mark.thorough
def test_the_end_of_a_process_is_told_in_words_wherever_it_is_asked_for(tmp_path: Path) -> None:
    with Runtime(tmp_path, limits=Limits(hosts_max=1, hosts_warm=1)) as runtime:
        followed = LogFiles(tmp_path / "logs")
        for how, words in WORDS.items():
            told = runtime.run(Ends, how, run_id=how).error
            assert words in told
            assert "connection error" not in told
            logged = _logged(followed, how, "has ended")
            assert logged[0]["text"] == f"ends by {how}"
            assert (logged[0]["run"], logged[0]["host"]) == (how, logged[-1]["about"][0])
            assert words in logged[-1]["text"], "the supervisor tells of the host's end in the log of its run"
        assert "test_exits_ray.py:" in runtime.run(Ends, "exit", run_id="exit").error
        assert "os._exit(3)" in "\n".join(runtime.explain("exit"))
        assert runtime.run(Ends, "import", run_id="import").error.startswith("ModuleNotFoundError: No module named")
        assert 'import_module("nothing_of_that_name")' in _logged(followed, "import", "failed in attempt 1")[-1]["text"]
        with pytest.raises(OutcomeUnknown, match=r"its code called os\._exit\(3\)"):
            runtime.agent(Ends, "called").end("exit")
        answered = tmp_path / "answered"
        runtime.agent(Ends, "works").begin(str(answered))
        answered.touch()
        told = _until(lambda: runtime.agent(Ends, "works").ended())
        assert told.startswith(
            "its process died while it ran, and had 1 attempt without a finished step in between; the last"
        )
        assert "os._exit(3)" in told


def test_kill_without_a_number_ends_a_host_and_the_supervisor_and_both_are_replaced(tmp_path: Path) -> None:
    with Runtime(tmp_path, limits=Limits(hosts_max=1, hosts_warm=1)) as runtime:
        pids = {role: each.process.pid for role, each in runtime.cluster.processes().items()}
        assert "supervisor" in pids
        for pid in pids.values():
            os.kill(pid, signal.SIGTERM)
        with pytest.raises(RemoteError, match="nothing_of_that_name"):
            runtime.agent(Ends, "later").end("import")
        again = {each.process.pid for each in runtime.cluster.processes().values()}
        assert not again & set(pids.values())


def _logged(files: LogFiles, whose: str, last: str) -> list[dict[str, Any]]:
    """The records of one, until one of them says this."""
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found.extend(files.in_order(WantedLogs(whose)))
        return any(last in record["text"] for record in found)

    _until(look)
    return found


def _until(look: Any, patience_s: float = 60) -> Any:
    until = time.monotonic() + patience_s
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found
