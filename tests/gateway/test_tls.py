"""TLS with a certificate that no public authority has signed: the Python client, and keys that nobody can open."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from pathlib import Path

import pytest

import perdure
from perdure.actors import check_certificate
from perdure.actors.gateway.security import host_names, page_origins
from perdure.ledger import BadRequest, SupervisorUnreachable
from tests.gateway.real import real_gateway


def made(folder: Path, name: str) -> tuple[str, str]:
    """A certificate that has signed itself, and its key."""
    openssl = shutil.which("openssl")
    assert openssl, "openssl is missing; install it, for instance Debian's package openssl"
    cert, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    command = [openssl, "req", "-x509", *kind, "-out", cert, "-keyout", key, *subject]
    subprocess.run(command, check=True, capture_output=True)
    return cert, key


def test_a_client_believes_the_authority_that_it_is_given_and_no_other(tmp_path: Path) -> None:
    cert, key = made(tmp_path, "ours")
    other, _ = made(tmp_path, "other")
    plan = {"certfile": cert, "keyfile": key}
    with real_gateway(tmp_path / "data", ["tests.gateway.cast:Counter"], plan=plan) as gateway:
        url = f"https://localhost:{gateway.port}"
        with perdure.connect(url, authority=cert) as remote:
            assert remote.agent("counter", "tls").add(2) == 2
            assert remote.chat("counter", "tls")
        for wrong in (None, other):
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
            async with perdure.connect_async(url, authority=Path(cert)) as remote:
                assert await remote.agent("counter", "tls").add(2) == 4

        asyncio.run(story())
    with pytest.raises(BadRequest, match="authority: nowhere is no file with a certificate"):
        perdure.connect("https://localhost", authority="nowhere")
    with pytest.raises(BadRequest, match="authority"):
        perdure.connect("https://localhost", authority=key)


def test_a_key_with_a_pass_phrase_is_refused_and_nobody_is_asked_for_it(tmp_path: Path) -> None:
    cert, key = made(tmp_path, "ours")
    locked = tmp_path / "locked.key"
    command = ["openssl", "ec", "-aes256", "-passout", "pass:secret", "-in", key, "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(BadRequest, match="keyfile: the key is encrypted"):
        check_certificate(cert, str(locked))


def test_names_that_a_browser_can_send_are_taken() -> None:
    assert host_names(["Agents.Example.org", "*", "::1"]) == {"agents.example.org", "*", "::1"}
    given = ["https://Shop.example.org/", "http://localhost:3000", "http://[::1]:3000", "null", "*", "app://x"]
    assert "https://shop.example.org" in page_origins(given)
