"""Secrets in agents: no byte of one that an agent has revealed is found in what stays, in what is told, or in an explanation."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.ledger import Secret
from perdure.ledger.storage.agent_storages import FileDisk
from tests.actors.secret_cast import MARK, NAME, Careful, Careless, Door, Echo, found_in
from tests.kit import ROOMY, Laboratory


def test_no_byte_of_a_secret_stays_or_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    value = "sk-" + secrets.token_hex(16)
    monkeypatch.setenv(NAME, value)
    with Laboratory(1, limits=ROOMY) as laboratory:
        laboratory.disk = FileDisk(tmp_path)
        failed = laboratory.play(lambda client: client.run(Careless, {"key": Secret(NAME)}, run_id="one"))
        answer = laboratory.play(lambda client: client.run(Careful, Door(key=Secret(NAME)), run_id="two"))
        chat = laboratory.play(lambda client: client.agent(Echo, "e").chat("What?"))
        wrote = laboratory.play(lambda client: client.call(Careless, "one", "told", (), {}))
        shown = laboratory.play(lambda client: client.ask("explain", "one"))
        events = laboratory.play(lambda client: all_of(client.follow("one")))
        laboratory.rest()
    stars = "*" * len(value)
    assert failed.failure.error == f"RuntimeError: the provider refused {MARK} {stars}"
    assert answer.output == {"key": Secret(NAME), "length": len(value)}
    assert wrote == [Secret(NAME), f"{MARK} {stars}", [f"{MARK} {stars}"] * 2]
    assert stars in chat.text
    told = str([failed, answer, chat, wrote, shown, events])
    kept = pickle.dumps(vars(laboratory.store))
    for text, is_there in ((MARK, True), (value, False)):
        assert (text in told, text.encode() in kept, bool(found_in(tmp_path, text))) == (is_there,) * 3


async def all_of(events: AsyncIterator[Any]) -> list[Any]:
    return [event async for event in events]
