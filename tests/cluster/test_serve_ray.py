"""`perdure serve` as people run it: an answer is streamed over HTTP while host, supervisor and gateway are killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import httpx
import psutil
import pytest

import perdure
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.target import BackupTarget
from perdure.scenarios.cast.demo import STORY
from tests.tidy import IMPORT_PATH, ROOT

PATIENCE_S = 60.0
WHOLE: Final = f"{STORY}: 0 results.\nThat is all. ∎"


class Served:
    """A running `perdure serve`."""

    def __init__(self, data: Path, *options: str) -> None:
        self._log = (data.parent / f"{data.name}.log").open("w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "perdure.cli", "serve", "--data", str(data), "--port", "0", *options],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": IMPORT_PATH},
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line.startswith("Perdure serves "), line + self.errors()
        self.url = line.split(" at ")[1].split()[0]
        self.port = int(self.url.rpartition(":")[2])

    def errors(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=PATIENCE_S, trust_env=False)

    def holder(self, answer: httpx.Response) -> int:
        """The process that holds the connection of an answer."""
        mine = answer.extensions["network_stream"].get_extra_info("client_addr")[1]
        ends = psutil.net_connections("tcp")
        return next(
            each.pid for each in ends if each.laddr.port == self.port and each.raddr and each.raddr.port == mine
        )

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(PATIENCE_S)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            assert self.process.stdout
            self.process.stdout.close()
            self._log.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    it = Served(tmp_path_factory.mktemp("serve") / "data", "perdure.scenarios.cast.demo:AGENTS")
    try:
        yield it
    finally:
        if it.process.poll() is None:
            it.stop()


class Reader:
    """A client that follows one answer to its end, over as many connections as it takes."""

    def __init__(self, served: Served, chat_id: str) -> None:
        self._served, self._chat_id = served, chat_id
        self.text, self.is_finished, self.connections = "", False, 0
        self.strike: Any = None
        self.silence_s, self._struck_s = 0.0, 0.0  # the longest silence since the strike, and the last piece since then

    def read(self) -> None:
        until_s = time.monotonic() + PATIENCE_S
        with self._served.client() as client:
            with suppress(httpx.TransportError):
                said = {"id": "q", "role": "user", "parts": [{"type": "text", "text": "Tell me a story."}]}
                body = {"id": self._chat_id, "messages": [said], "trigger": "submit-message"}
                self._follow(client.stream("POST", "/chat/assistant", json=body))
            while not self.is_finished and time.monotonic() < until_s:
                with suppress(httpx.TransportError):
                    self._follow(client.stream("GET", f"/chat/assistant/{self._chat_id}/stream"))
        assert self.is_finished, self._served.errors()

    def _follow(self, opened: Any) -> None:
        with opened as answer:
            if answer.status_code == 204:
                self.is_finished = True
                return
            assert answer.status_code == 200, answer.read()
            self.connections += 1
            self.text = ""
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self._take(json.loads(line.removeprefix("data: ")), answer)

    def _take(self, chunk: dict[str, Any], answer: httpx.Response) -> None:
        if self._struck_s and chunk["type"] == "text-delta":
            now_s = time.monotonic()
            self.silence_s, self._struck_s = max(self.silence_s, now_s - self._struck_s), now_s
        self.text += chunk["delta"] if chunk["type"] == "text-delta" else ""
        self.is_finished = self.is_finished or chunk["type"] == "finish"
        if self.strike is not None and len(self.text) > 60:
            victim, self.strike = self.strike(answer), None
            os.kill(victim, signal.SIGKILL)
            self._struck_s = time.monotonic()


def host_of(served: Served, chat_id: str) -> int:
    """The process of the host in which a chat agent is awake."""
    with served.client() as client:
        agents = client.get("/api/overview").json()["agents"]
        hosts = client.get("/api/hosts").json()["hosts"]
    home = next(host for agent, host, *_ in agents if agent.startswith(chat_id))
    return next(int(each["pid"]) for each in hosts if each["host"] == home)


def supervisor_of(served: Served) -> int:
    with served.client() as client:
        return int(client.get("/api/overview").json()["supervisor"]["pid"])


@pytest.mark.parametrize("victim", ["nobody", "gateway", "host", "supervisor"])
def test_whoever_dies_in_an_answer_its_reader_has_the_whole_answer_once(served: Served, victim: str) -> None:
    reader = Reader(served, f"{victim}-dies")
    reader.strike = {
        "nobody": None,
        "gateway": served.holder,
        "host": lambda _: host_of(served, f"{victim}-dies"),
        "supervisor": lambda _: supervisor_of(served),
    }[victim]
    reader.read()
    assert reader.connections == (2 if victim == "gateway" else 1)
    with served.client() as client:
        messages = client.get(f"/chat/assistant/{victim}-dies/messages").json()
    logging.getLogger(__name__).info("%s: the longest silence was %d ms", victim, reader.silence_s * 1000)
    texts = ["".join(part.get("text", "") for part in each["parts"] if part["type"] == "text") for each in messages]
    assert texts == ["Tell me a story.", WHOLE]
    assert reader.text == WHOLE


def test_none_of_its_processes_waits_for_ray_in_a_way_that_ray_warns_of(served: Served) -> None:
    with perdure.connect(served.url) as remote:
        assert not [each["text"] for each in remote.logs() if "blocking ray." in each["text"]]


def test_at_its_end_it_drains_and_leaves_with_success(served: Served) -> None:
    with served.client() as client, client.stream("GET", "/api/live") as answer:
        lines = answer.iter_lines()
        assert next(lines)
        assert served.stop() == 0
        with pytest.raises(httpx.RemoteProtocolError, match="incomplete"):
            list(lines)
    with pytest.raises(httpx.ConnectError), served.client() as client:
        client.get("/")


@pytest.mark.thorough
def test_over_rest_it_is_examined_backed_up_and_stopped(tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    served = Served(data, "perdure.scenarios.cast.demo:AGENTS", "--backups", str(backups))
    try:
        with perdure.connect(served.url) as remote:
            assert remote.chat("assistant", "keeping").send("Hello.").status == "completed"
            (address,) = [agent for agent, *_ in remote.overview()["agents"]]
            assert remote.inspect(address)["turns"], "the storages are those of the directory"
            assert {each["severity"] for each in remote.doctor()} == {"ok"}
            assert {each["host"] for each in remote.logs("supervisor")} == {"supervisor"}
            assert remote.backup()["findings"] == []
            remote.stop(timeout_ms=0)
        assert served.process.wait(PATIENCE_S) == 0, served.errors()
        assert served.process.stdout
        assert "Stopped what served" in served.process.stdout.read()
    finally:
        served.stop()
    restored = restore_backup(BackupTarget(str(backups)), tmp_path / "restored", "", replace=False)
    assert any(each.startswith("agents/") for each in restored.entries)


def perdure_says(*words: str) -> str:
    said = subprocess.run(
        [sys.executable, "-m", "perdure.cli", *words],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": IMPORT_PATH},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=True,
    )
    return said.stdout


@pytest.mark.thorough
def test_when_its_directory_is_stopped_it_ends_too_and_says_why(tmp_path: Path) -> None:
    data = tmp_path / "data"
    served = Served(data, "perdure.scenarios.cast.demo:AGENTS", "--workers", "1")
    try:
        (gateway,) = json.loads(perdure_says("ps", "--data", str(data), "--json"))["gateways"]
        assert (gateway["gateway"], psutil.pid_exists(gateway["pid"])) == (str(served.port), True)
        with served.client() as client:
            assert client.get("/readyz").json() == {"ready": True}
        perdure_says("stop", "--data", str(data))
        assert served.process.wait(PATIENCE_S) == 0
        assert "was stopped (`perdure stop`), so this gateway ends too" in served.errors()
    finally:
        served.stop()
