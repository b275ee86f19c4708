"""What keeps a directory well over REST: its examination, backups, logs and stop; and that nothing the command can do is forgotten."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import perdure
from perdure.actors.life.activity import Whose
from perdure.actors.ray_world.processes import ProcessLog
from perdure.actors.rest.routes import table_of
from perdure.actors.serve.app import Gateway
from perdure.ledger import BadRequest
from perdure.ledger.maintenance.restoration import restore_backup
from perdure.ledger.maintenance.target import BackupTarget
from perdure.scenarios.cli import Commands
from tests.gateway.real import RealGateway, client, real_gateway

AGENTS = ["tests.gateway.cast:Walker", "tests.gateway.cast:Counter"]

AT: Final[dict[str, str]] = {
    "ps": "GET /api/overview, GET /api/runs, GET /api/live, GET /api/agents/{agent}",
    "show": "GET /api/runs/{run_id}, GET /api/limits",
    "explain": "GET /api/runs/{run_id}/explain",
    "inspect": "GET /api/agents/{agent}",
    "fibers": "GET /api/fibers",
    "schedules": "GET /api/schedules",
    "unschedule": "DELETE /api/agents/{agent}/schedules/{schedule}",
    "turns": "GET /api/turns",
    "logs": "GET /api/logs, GET /api/logs/live",
    "asks": "GET /api/asks, GET /api/asks/{ask_id}",
    "answer": "POST /api/asks/{ask_id}/answer",
    "cancel": "POST /api/runs/{run_id}/cancel, POST /api/runs/bulk",
    "retry": "POST /api/runs/{run_id}/retry, POST /api/runs/bulk",
    "send": "POST /api/runs/{run_id}/events",
    "pause": "POST /api/runs/{run_id}/pause",
    "resume": "POST /api/runs/{run_id}/resume",
    "upgrade": "GET /api/upgrade, POST /api/upgrade",
    "kill": "POST /api/kill",
    "clear": "POST /api/runs/bulk, DELETE /api/runs/{run_id}",
    "forget": "DELETE /api/agents/{agent}",
    "stop": "POST /api/stop",
    "audit": "GET /api/audit",
    "doctor": "GET /api/doctor",
    "backup": "POST /api/backup",
}
NOT_SERVED: Final = {
    "restore": "a directory that is brought back is not served yet",
    "replica": "a directory that is served is followed as it was told before",
    "serve": "it is what answers",
    "mcp": "its clients speak MCP; over HTTP they have /mcp",
    "chaos": "a client that kills again and again asks POST /api/kill each time",
    **dict.fromkeys(("list", "swarm", "replay", "explore", "soak", "bench"), "it begins worlds of its own"),
}


def test_whatever_the_command_can_do_to_a_directory_rest_can_do_or_it_is_said_why_not() -> None:
    served = {f"{each.method} {each.path}" for each in table_of(Gateway().backend)}
    for command, routes in AT.items():
        assert set(routes.split(", ")) <= served, command
    assert {*AT, *NOT_SERVED} == {*Commands.entries}
    assert not AT.keys() & NOT_SERVED.keys()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keeping")


@pytest.fixture(scope="module")
def gateway(data: Path) -> Iterator[RealGateway]:
    with real_gateway(data / "data", AGENTS, options={"backups": str(data / "backups")}) as started:
        with client(started) as asked:
            assert asked.post("/api/agents/counter/one/call/add", json={"args": [1]}).json() == {"value": 1}
        yield started


def test_a_directory_is_examined_while_it_is_served(gateway: RealGateway, data: Path) -> None:
    with perdure.connect(gateway.url) as remote:
        found = remote.doctor()
    assert {each["severity"] for each in found} == {"ok"}
    assert f"{data / 'data'} is served by process {gateway.pid}" in found[0]["what"]
    (storage,) = (data / "data" / "agents").rglob("*.db")
    stray = storage.with_name("stray.db")
    stray.write_bytes(b"no storage" * 2_000)
    try:
        with client(gateway) as asked:
            told = asked.get("/api/doctor", params={"deep": True}).json()["findings"]
    finally:
        stray.unlink()
    assert any(each["severity"] != "ok" and stray.name in each["what"] for each in told), told


def test_a_backup_is_made_where_the_gateway_was_told_and_can_be_restored(gateway: RealGateway, data: Path) -> None:
    with perdure.connect(gateway.url) as remote:
        first = remote.backup()
        second = remote.backup(keep=1)
    assert (first["storages"], first["findings"]) == (1, [])
    assert second["copied"] < first["copied"]
    assert second["pruned"] == 1
    restored = restore_backup(BackupTarget(str(data / "backups")), data / "restored", "", replace=False)
    assert (restored.name, restored.seq) == (second["name"], second["seq"])


def test_what_a_gateway_was_not_started_for_is_refused(data: Path) -> None:
    with real_gateway(data / "plain", AGENTS) as plain, client(plain) as asked:
        for path, words in (("/api/backup", "--backups"), ("/api/stop", "perdure stop")):
            refused = asked.post(path, json={})
            assert (refused.status_code, refused.json()["error"]["type"]) == (403, "Forbidden")
            assert words in refused.json()["error"]["message"]


def test_a_place_for_backups_that_has_lost_a_slash_is_refused_where_it_is_given() -> None:
    with pytest.raises(BadRequest, match=r"^backups: .*give an address as a text"):
        Gateway(backups=Path("s3://bucket/backups"))
    assert Gateway(backups=Path("backups")).backend


@pytest.fixture
def log(data: Path) -> ProcessLog:
    return ProcessLog(data / "data" / "logs", "h1", 1e9)


def test_logs_are_told_by_run_level_and_age(gateway: RealGateway, log: ProcessLog) -> None:
    now = time.time()
    log.write(log.record(now - 60, "INFO", "stdout", "old", Whose("r1@m:Clerk", "r1", "r1")))
    log.write(log.record(now - 2, "ERROR", "desk", "new", Whose("r1@m:Clerk", "r1", "r1")))
    with perdure.connect(gateway.url) as remote:
        assert [each["text"] for each in remote.logs("r1")] == ["old", "new"]
        assert [each["text"] for each in remote.logs("r1", level="error")] == ["new"]
        assert [each["text"] for each in remote.logs("r1", since_ms=int(now * 1000) - 30_000)] == ["new"]
        assert [each["text"] for each in remote.logs("r1", last=1)] == ["new"]
        assert remote.logs("nobody") == []
        with pytest.raises(perdure.BadRequest, match="level"):
            remote.logs(level="loud")


def test_logs_are_followed_and_a_client_that_comes_again_misses_nothing(gateway: RealGateway, log: ProcessLog) -> None:
    now = time.time()
    log.write(log.record(now - 60, "INFO", "desk", "before", None, ["follow"]))

    def followed(**headers: str) -> Iterator[tuple[str, list[str]]]:
        with client(gateway) as asked, asked.stream("GET", "/api/logs/live?of=follow", headers=headers) as answer:
            lines, number = answer.iter_lines(), ""
            for line in lines:
                number = line.removeprefix("id: ") if line.startswith("id: ") else number
                if line.startswith("data: "):
                    told: Any = json.loads(line.removeprefix("data: "))
                    yield number, [each["text"] for each in told["records"]]

    first = followed(**{"last-event-id": str(int(now * 1000) - 70_000)})
    assert next(first)[1] == ["before"]
    log.write(log.record(now, "INFO", "desk", "during", None, ["follow"]))
    number, texts = next(first)
    assert (int(number), texts) == (int(now * 1000), ["during"])
    first.close()
    log.write(log.record(now - 1, "INFO", "desk", "late", None, ["follow"]))
    log.write(log.record(now + 1, "INFO", "desk", "between", None, ["follow"]))
    assert next(followed(**{"last-event-id": number}))[1] == ["late", "during", "between"]
