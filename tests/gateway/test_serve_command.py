"""`perdure serve`: what cannot be served is told before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from perdure.actors import bound
from perdure.ledger import BadRequest
from perdure.scenarios.cli import app

CAST = "tests.gateway.cast"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "name a module with agents"),
        (["nowhere"], "there is no module 'nowhere'"),
        (["agents.py"], "is not module"),
        ([f"{CAST}:nobody"], "has no 'nobody'"),
        ([f"{CAST}:script"], "no class of agents and no list of these"),
        (["tests.gateway.door"], "defines no agents"),
        ([CAST, "--host", "192.0.2.7"], "give a token or an `authenticate` hook"),
        ([CAST, "--host", "192.0.2.7", "--token", "a" * 20], "cannot be listened on"),
        ([CAST, "--host", "x" * 64], "cannot be listened on"),
        ([CAST, "--token", "short"], "so it could be guessed"),
        ([CAST, "--token", "a" * 20, "--token-file", "token"], "not by both"),
        ([CAST, "--token-file", "nowhere"], "cannot be read"),
        ([CAST, "--certfile", "nowhere.pem"], "no certificate"),
        ([CAST, "--keyfile", "nowhere.pem"], "there is a key, and no certificate"),
        ([CAST, "--allow-host", "http://example.org"], "hosts: 'http://example.org' is no host name"),
        ([CAST, "--allow-host", "example.org:8787"], "is no host name"),
        ([CAST, "--allow-host", "*.example.org"], "is no host name"),
        ([CAST, "--allow-origin", "example.org"], "origins: 'example.org' is no origin"),
        ([CAST, "--allow-origin", "https://example.org/shop"], "is no origin"),
        ([CAST, "--forwarded-allow-ips", "127.0.0.1, proxy"], "forwarded_allow_ips: 'proxy' is no address"),
        ([CAST, "--forwarded-allow-ips", "10.0.0.1/8"], "has host bits set"),
    ],
)
def test_what_cannot_be_served_is_told_before_anything_is_started(
    tmp_path: Path, options: list[str], told: str
) -> None:
    data = tmp_path / "data"
    answer = CliRunner().invoke(app, ["serve", *options, "--port", "0", "--data", str(data)])
    assert isinstance(answer.exception, BadRequest), answer.output
    assert told in str(answer.exception)
    assert not data.exists()


def test_a_port_that_somebody_listens_on_is_not_shared(tmp_path: Path) -> None:
    with bound("127.0.0.1", 0) as taken:
        taken.listen()
        port = str(taken.getsockname()[1])
        answer = CliRunner().invoke(app, ["serve", CAST, "--port", port, "--data", str(tmp_path / "data")])
    assert f"127.0.0.1:{port} cannot be listened on" in str(answer.exception)
