"""Secrets under a real Ray: no byte of one in the data directory or in the logs of the session."""

from __future__ import annotations

import secrets
from pathlib import Path

import pytest
import ray

from perdure.actors import Runtime
from perdure.ledger import Secret
from perdure.policies import Limits
from tests.actors.secret_cast import MARK, NAME, Careful, Careless, Door, Echo, found_in


@pytest.mark.thorough
def test_no_byte_of_a_secret_is_in_the_data_directory_or_in_ray_s_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "sk-" + secrets.token_hex(16)
    monkeypatch.setenv(NAME, value)
    with Runtime(tmp_path, limits=Limits(hosts_max=1, hosts_warm=1)) as runtime:
        logs = Path(ray._private.worker.global_worker.node.get_session_dir_path())  # noqa: SLF001 - nothing public tells
        failed = runtime.run(Careless, {"key": Secret(NAME)}, run_id="one")
        assert failed.failure is not None
        assert failed.failure.error == f"RuntimeError: the provider refused {MARK} {'*' * len(value)}"
        assert runtime.run(Careful, Door(key=Secret(NAME)), run_id="two").output["length"] == len(value)
        assert MARK in runtime.agent(Echo, "e").chat("What?").text
        assert value not in str([runtime.explain("one"), list(runtime.events("one")), runtime.inspect("one")])
    assert found_in(logs, MARK), "what the host printed is in the logs"
    assert found_in(tmp_path, MARK)
    assert found_in(logs, value) + found_in(tmp_path, value) == []
