"""Whether what served a directory has ended is told from its being late to answer."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from perdure.actors.ray_world import cluster_record
from perdure.actors.ray_world.cluster_record import write_record
from perdure.scenarios.faults.observer import KNOCKS, serves


def test_a_ray_that_is_late_to_answer_is_still_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster_record, "KNOCK_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        write_record(tmp_path, address)

        def late() -> None:
            knocking = [server.accept()[0] for _ in range(KNOCKS)]
            knocking[-1].sendall(b"!")
            for each in knocking:
                each.close()

        answering = threading.Thread(target=late)
        answering.start()
        try:
            assert serves(address, tmp_path)
        finally:
            answering.join()
        write_record(tmp_path, "127.0.0.1:1")
        assert not serves(address, tmp_path), "another one serves it, or none"
    assert not serves(address, tmp_path), "nobody listens there any more"
