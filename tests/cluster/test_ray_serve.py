"""The gateway as an application of Ray Serve: REST, event streams and WebSockets go through its proxy, and the guard stands before them."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from tests.tidy import IMPORT_PATH, ROOT

pytestmark = pytest.mark.long

TOKEN: Final = "a-token-that-nobody-guesses"  # noqa: S105 - of this test alone
WHO: Final = {"authorization": f"Bearer {TOKEN}"}
PATIENCE_S: Final = 120


class Place:
    """The agents behind Ray Serve."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def client(self, **headers: str) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=headers, timeout=60, trust_env=False)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    data = str(tmp_path_factory.mktemp("serve") / "data")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    command = [sys.executable, "-m", "tests.cluster.ray_serve_app", data, str(port), TOKEN]
    with (tmp_path_factory.getbasetemp() / "ray_serve.log").open("w+") as log:
        serving = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": IMPORT_PATH},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        try:
            assert serving.stdout
            if serving.stdout.readline() != "ready\n":
                log.seek(0)
                pytest.fail(log.read()[-5_000:])
            yield Place(port)
            serving.communicate(timeout=PATIENCE_S)
            assert serving.returncode == 0
        finally:
            serving.kill()
            serving.communicate()


def test_runs_are_started_and_their_events_streamed(place: Place) -> None:
    with place.client(**WHO) as client:
        started = client.post("/api/runs", json={"type": "guide", "input": "far", "run_id": "one"})
        assert started.json()["run_id"] == "one", started.text
        with client.stream("GET", "/api/runs/one/events") as answer:
            told = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith('data: {"')]
        assert [each["sequence"] for each in told] == list(range(len(told)))
        assert told[-1]["event"]["output"] == "FAR"
        called = client.post("/api/agents/guide/anna/call/greet", json={"args": ["Anna"]})
        assert called.json() == {"value": "Hello, Anna."}


def test_a_websocket_goes_both_ways(place: Place) -> None:
    with connect(f"ws{place.url[4:]}/agents/guide/anna?token={TOKEN}") as line:
        assert json.loads(line.recv())["type"] == "cf_agent_identity"
        line.send(json.dumps({"type": "rpc", "id": "1", "method": "greet", "args": ["Bo"]}))
        while (frame := json.loads(line.recv())).get("id") != "1":
            pass
        assert frame["result"] == "Hello, Bo."


def test_the_guard_stands_before_it(place: Place) -> None:
    with place.client() as nobody:
        assert nobody.get("/api/runs").status_code == 401
    with place.client(**WHO) as client:
        assert client.get("/api/runs", headers={"host": "elsewhere.example"}).status_code != 200
        assert client.get("/api/runs", headers={"origin": "https://elsewhere.example"}).status_code == 403
    with connect(f"ws{place.url[4:]}/agents/guide/anna") as line, pytest.raises(ConnectionClosed) as closed:
        line.recv()
    assert closed.value.rcvd
    assert closed.value.rcvd.code == 4401
