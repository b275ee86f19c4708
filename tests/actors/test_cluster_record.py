"""What is remembered of a directory's Ray, and what is said when it cannot be joined."""

from __future__ import annotations

import pytest

from actors.cluster_record import AUTH, shut_out
from ledger import SupervisorUnreachable

REFUSED = SupervisorUnreachable("Ray cannot be started or joined: Failed to connect")


def test_who_is_not_let_into_a_named_cluster_is_told_of_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH, raising=False)
    assert "set RAY_AUTH_MODE=token" in str(shut_out(REFUSED, "10.0.0.1:6379"))
    monkeypatch.setenv(AUTH, "token")
    assert "see that ~/.ray/auth_token holds" in str(shut_out(REFUSED, "10.0.0.1:6379"))


def test_nobody_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(AUTH, raising=False)
    assert shut_out(REFUSED, None) is REFUSED
    silence = SupervisorUnreachable("no Ray answers at 10.0.0.1:6379")
    assert shut_out(silence, "10.0.0.1:6379") is silence
