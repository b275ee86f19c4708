"""The guide's lines for nginx and Caddy, run before a real gateway with TLS: nothing is collected, and only they are believed.

nginx and Caddy are those of the system. Where one of them is missing its tests are skipped.
"""

from __future__ import annotations

import json
import shutil
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import httpx
import pytest
from websockets.sync.client import connect

from tests.gateway.certificates import certified
from tests.gateway.real import real_gateway
from tests.tidy import ROOT

pytestmark = pytest.mark.long

AGENTS = ["tests.gateway.cast:Gated", "tests.gateway.cast:Counter"]
NAME: Final = "agents.example.org"
PAGE: Final = (ROOT / "actors/gateway/README.md").read_text("utf-8")
UPSTREAM: Final = "127.0.0.1:8787"
START_S: Final = 30.0


def recipe(begin: str) -> str:
    """The lines of the guide that begin so."""
    found = [each.partition("\n```")[0] for each in PAGE.split("```text\n")[1:]]
    (text,) = [each for each in found if each.startswith(begin)]
    return text


def nginx(folder: Path, port: int, upstream: int) -> list[str]:
    text = recipe("map $http_upgrade").replace(UPSTREAM, f"127.0.0.1:{upstream}")
    mapping, _, location = text.partition("\n\n")
    server = f"listen 127.0.0.1:{port} ssl; server_name {NAME}; ssl_certificate cert.pem; ssl_certificate_key key.pem;"
    http = f"access_log off; {mapping}\nserver {{ {server}\n{location} }}"
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\nhttp {{ {http} }}"
    )
    return ["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]


def caddy(folder: Path, port: int, upstream: int) -> list[str]:
    text = recipe(NAME).replace(UPSTREAM, f"127.0.0.1:{upstream}").replace(NAME, f"https://{NAME}:{port}", 1)
    text = text.replace("{", f"{{\n    tls {folder}/cert.pem {folder}/key.pem", 1)
    options = "{\n    admin off\n    auto_https disable_redirects\n}\n"
    (folder / "Caddyfile").write_text(options + text)
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Public(NamedTuple):
    """The gateway as the world sees it: the port of its proxy, and what a client trusts."""

    port: int
    trusted: ssl.SSLContext

    def client(self) -> httpx.Client:
        def by_name(asked: httpx.Request) -> None:
            asked.extensions = {**asked.extensions, "sni_hostname": NAME}

        return httpx.Client(
            base_url=f"https://127.0.0.1:{self.port}",
            headers={"host": NAME},
            verify=self.trusted,
            timeout=60,
            trust_env=False,
            event_hooks={"request": [by_name]},
        )


@contextmanager
def proxied(folder: Path, kind: Any, upstream: int) -> Iterator[Public]:
    """A proxy of this kind."""
    trusted = ssl.create_default_context(cafile=certified(folder, NAME).authority)
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            kind(folder, port, upstream),
            cwd=folder,
            stdout=log,
            stderr=log,
            env={"HOME": str(folder), "PATH": "/usr/sbin:/usr/bin"},
        )
        try:
            until_s = time.monotonic() + START_S
            while True:
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < until_s, (folder / "log").read_text()
                with socket.socket() as one:
                    if one.connect_ex(("127.0.0.1", port)) == 0:
                        break
            yield Public(port, trusted)
        finally:
            process.terminate()
            process.wait(30)


@pytest.fixture(scope="module", params=[nginx, caddy])
def public(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Public]:
    kind = request.param
    if shutil.which(kind.__name__, path="/usr/sbin:/usr/bin") is None:
        pytest.skip(f"{kind.__name__} is not installed")
    folder = tmp_path_factory.mktemp(kind.__name__)
    plan, hooks = {"forwarded_allow_ips": "127.0.0.1"}, {"authenticate": "tests.gateway.proxy_cast:by_address"}
    given: dict[str, Any] = {"plan": plan, "hooks": hooks, "options": {"hosts": [NAME]}}
    with real_gateway(folder / "data", AGENTS, **given) as gateway, proxied(folder, kind, gateway.port) as it:
        yield it


def test_events_come_when_they_happen(public: Public, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    run_id = f"gated-{public.port}"
    with public.client() as client:
        assert client.post("/api/runs", json={"type": "gated", "input": str(gate), "run_id": run_id}).status_code == 200
        with client.stream("GET", f"/api/runs/{run_id}/events") as answer:
            lines = (line for line in answer.iter_lines() if line.startswith('data: {"'))
            while json.loads(next(lines).removeprefix("data: "))["event"]["kind"] != "progress":
                pass
            gate.touch()  # not before the progress was told
            assert [json.loads(line.removeprefix("data: "))["event"]["kind"] for line in lines][-1] == "finished"


def test_a_websocket_goes_both_ways(public: Public) -> None:
    origin: Any = f"https://{NAME}:{public.port}"
    with socket.create_connection(("127.0.0.1", public.port)) as line:
        given: dict[str, Any] = {"ssl": public.trusted, "sock": line, "origin": origin}
        with connect(f"wss://{NAME}:{public.port}/agents/counter/tls", **given) as told:
            assert json.loads(told.recv())["type"] == "cf_agent_identity"
            told.send(json.dumps({"type": "rpc", "id": "1", "method": "add", "args": [2]}))
            while (frame := json.loads(told.recv())).get("id") != "1":
                pass
            assert frame["result"] == 2


def test_the_proxy_is_believed_and_the_client_is_not(public: Public) -> None:
    lies = {"x-forwarded-for": "192.0.2.66", "x-forwarded-proto": "http"}
    with public.client() as client:
        refused = client.post("/api/kill", json={"process": "supervisor"}, headers=lies)
        assert refused.json()["error"]["message"] == "https://127.0.0.1 has not the scope 'admin'"
        assert "Perdure" not in client.get("/", headers={"host": "elsewhere.example"}).text
        assert client.get("/api/runs", headers={"origin": "https://elsewhere.example"}).status_code == 403


def test_a_body_that_is_too_large_is_refused_and_one_that_is_not_goes_through(public: Public) -> None:
    with public.client() as client:
        body = {"type": "gated", "input": "/", "run_id": f"large-{public.port}"}
        assert client.post("/api/runs", json=body | {"input": "x" * 9_000_000}).status_code == 413
        taken = client.post("/api/agents/counter/large/call/add", json={"args": [1], "kwargs": {"x": "y" * 4_000_000}})
        assert taken.status_code == 400, "the gateway itself has read it"
