"""TLS with a certificate that no public authority has signed: the Python client, and keys that nobody can open."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

import perdure
from perdure.actors import check_certificate
from perdure.actors.gateway.security import host_names, page_origins
from perdure.ledger import BadRequest, SupervisorUnreachable
from tests.gateway.certificates import certified
from tests.gateway.real import real_gateway


def test_a_client_believes_the_authority_that_it_is_given_and_no_other(tmp_path: Path) -> None:
    ours = certified(tmp_path)
    (tmp_path / "other").mkdir()
    other = certified(tmp_path / "other")
    plan = {"certfile": ours.cert, "keyfile": ours.key}
    with real_gateway(tmp_path / "data", ["tests.gateway.cast:Counter"], plan=plan) as gateway:
        url = f"https://localhost:{gateway.port}"
        with perdure.connect(url, authority=ours.authority) as remote:
            assert remote.agent("counter", "tls").add(2) == 2
            assert remote.chat("counter", "tls")
        for wrong in (None, other.authority):
            began_s = time.monotonic()
            with perdure.connect(url, authority=wrong) as remote:
                with pytest.raises(
                    SupervisorUnreachable, match=r"is not believed: .*name who has signed it by authority="
                ):
                    remote.overview()
                with pytest.raises(SupervisorUnreachable, match="is not believed"):
                    next(remote.events("run"))
                with pytest.raises(SupervisorUnreachable, match="is not believed"):
                    remote.agent("counter", "tls").add(2)
            assert time.monotonic() - began_s < 30  # what may be repeated is repeated for two minutes

        async def story() -> None:
            async with perdure.connect_async(url, authority=Path(ours.authority)) as remote:
                assert await remote.agent("counter", "tls").add(2) == 4
            async with perdure.connect_async(url.replace("https", "http")) as remote:
                with pytest.raises(BadRequest, match="speaks TLS alone"):
                    await remote.agent("counter", "tls").add(2)
                with pytest.raises(BadRequest, match="speaks TLS alone"):
                    await remote.overview()

        asyncio.run(story())
        for authority in (None, ours.authority):
            with perdure.connect(url.replace("https", "http"), authority=authority) as remote:
                for ask in (remote.agent("counter", "tls").add, remote.overview, iter(remote.events("run")).__next__):
                    with pytest.raises(BadRequest, match=r"url: .*localhost:\d+ speaks TLS alone; give https://"):
                        ask()
    with pytest.raises(BadRequest, match="authority: nowhere is no file with a certificate"):
        perdure.connect("https://localhost", authority="nowhere")
    with pytest.raises(BadRequest, match="authority"):
        perdure.connect("https://localhost", authority=ours.key)


def test_a_client_that_speaks_tls_to_one_who_does_not_is_told_so_at_once(tmp_path: Path) -> None:
    with real_gateway(tmp_path, ["tests.gateway.cast:Counter"]) as gateway:
        secret = gateway.url.replace("http", "https")
        with perdure.connect(secret) as remote:
            for ask in (remote.overview, lambda: next(remote.events("run")), remote.agent("counter", "tls").add):
                with pytest.raises(BadRequest, match=r"url: .*127.0.0.1:\d+ speaks no TLS; give http://"):
                    ask()

        async def story() -> None:
            async with perdure.connect_async(secret) as remote:
                with pytest.raises(BadRequest, match="speaks no TLS"):
                    await remote.overview()

        asyncio.run(story())


def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    ours, locked = certified(tmp_path), tmp_path / "locked.pem"
    key = serialization.load_pem_private_key(Path(ours.key).read_bytes(), None)
    form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    locked.write_bytes(key.private_bytes(*form, serialization.BestAvailableEncryption(b"secret")))
    with pytest.raises(BadRequest, match="keyfile: the key is encrypted"):
        check_certificate(ours.cert, str(locked))


def test_names_that_a_browser_can_send_are_taken() -> None:
    assert host_names(["Agents.Example.org", "*", "::1"]) == {"agents.example.org", "*", "::1"}
    given = ["https://Shop.example.org/", "http://localhost:3000", "http://[::1]:3000", "null", "*", "app://x"]
    assert "https://shop.example.org" in page_origins(given)
