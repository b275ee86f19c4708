"""The scripted provider as a process: start it, talk to it, kill it, and start it again on the same port.

    with ProviderProcess(script) as provider:
        client = AsyncOpenAI(base_url=provider.base_url, api_key="scripted", max_retries=0)
        provider.set_plan(FaultPlan.at({2: Fault(kind=FaultKind.RESET, event=3)}))
        …
        assert provider.counters().illegal == 0

The calls block for a millisecond or two, also in async code.
"""

from __future__ import annotations

import socket
import tempfile
from types import TracebackType
from typing import Final, Self

from perdure.scenarios.provider.events import Plain
from perdure.scenarios.provider.faults import FaultPlan, Pace
from perdure.scenarios.provider.script import Script
from perdure.scenarios.provider.scripted import Counters, Record
from perdure.scenarios.provider.server_process import CALL_S, HOST, ServerFailed, ServerProcess

MODULE: Final = "perdure.scenarios.provider.server"


class ProviderProcess:
    """One provider on one port, through all its lives. The port stays reserved between two lives; the log outlives each life."""

    def __init__(self, script: Script | None = None, plan: FaultPlan | None = None, pace: Pace | None = None) -> None:
        self._first = {"script": script, "plan": plan, "pace": pace}
        self._process: ServerProcess | None = None

    @property
    def base_url(self) -> str:
        """What an OpenAI client takes as its base URL."""
        return f"http://{HOST}:{self.port}/v1"

    @property
    def environment(self) -> dict[str, str]:
        """What a process must have in its environment so that `model = "openai-chat:scripted"` reaches this provider."""
        return {"OPENAI_BASE_URL": self.base_url, "OPENAI_API_KEY": "scripted"}

    @property
    def pid(self) -> int:
        """The process that lives now. Raises `ServerFailed` if none does."""
        return self._life.pid

    def __enter__(self) -> Self:
        self._reserve = socket.socket()
        self._reserve.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserve.bind((HOST, 0))
        self.port: int = self._reserve.getsockname()[1]
        self._place = tempfile.TemporaryDirectory(prefix="perdure-provider-")
        try:
            self.start()
            for what, value in self._first.items():
                if value is not None:
                    self._put(what, value)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.kill()
        self._reserve.close()
        self._place.cleanup()

    # lives

    def start(self) -> None:
        """Begin a life on the same port, with the script, the plan and the log of the one before."""
        if self._process is None:
            options = ["--port", str(self.port), "--journal", f"{self._place.name}/journal", "--with-parent"]
            self._process = ServerProcess(MODULE, *options)

    def kill(self) -> None:
        """Send `SIGKILL`, if it lives. Open replies break off, and connections are refused."""
        if self._process is not None:
            self._process.kill()
        self._process = None

    @property
    def _life(self) -> ServerProcess:
        if self._process is None:
            raise ServerFailed("the provider does not answer: it is not running; start() it")
        return self._process

    # what it shall do

    def set_script(self, script: Script) -> None:
        """From now on, answer by this script."""
        self._put("script", script)

    def set_plan(self, plan: FaultPlan) -> None:
        """From now on, fail by this plan; its numbers count from the next request."""
        self._put("plan", plan)

    def set_pace(self, pace: Pace) -> None:
        """From now on, answer at this pace."""
        self._put("pace", pace)

    def release(self, number: int) -> None:
        """End the stall of a request."""
        self._life.ask("POST", "release", {"number": number})

    def open_door(self) -> None:
        """End the refusal of connections."""
        self._life.ask("POST", "open")

    def forget(self) -> None:
        """Empty the log. Raises `ServerFailed` while a reply is open."""
        self._life.ask("POST", "forget")

    # what it saw

    def counters(self) -> Counters:
        """What it counted."""
        return Counters.model_validate(self._life.ask("GET", "counters"))

    def log(self, since: int = 0) -> list[Record]:
        """The requests with numbers above `since`."""
        return [Record.model_validate(each) for each in self._life.ask("GET", "log", {"since": since})]

    def wait_until(
        self, *, requests: int = 0, ended: int = 0, still_open: int | None = None, within_s: float = CALL_S
    ) -> Counters:
        """Wait for so many requests, so many ended, and exactly so many open. Raises `ServerFailed` when the time is over."""
        query = {"requests": requests, "ended": ended, "within_ms": int(within_s * 1000)}
        if still_open is not None:
            query["open"] = still_open
        return Counters.model_validate(self._life.ask("GET", "await", query))

    def _put(self, what: str, value: Plain) -> None:
        self._life.ask("PUT", what, {}, value.model_dump_json().encode())
