"""A gateway as a process of its own, over real sockets: killed, and started again on what it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gateway.real import client, real_gateway


@pytest.mark.thorough
def test_a_gateway_that_was_killed_goes_on_with_what_it_left(tmp_path: Path) -> None:
    with real_gateway(tmp_path, ["tests.gateway.cast:Walker"]) as gateway:
        with client(gateway) as asked:
            assert asked.get("/api/runs/nobody").status_code == 404
        gateway.kill()
        gateway.start()
        with client(gateway) as asked:
            assert asked.get("/api/runs/nobody").status_code == 404
