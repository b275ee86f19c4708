"""Who asks through a proxy, as the gateway sees it."""

from __future__ import annotations

from starlette.requests import HTTPConnection

from perdure.gateway import Principal, Scope


def by_address(connection: HTTPConnection) -> Principal:
    """Whoever asks may do all but an administrator's work, and is named by the scheme and the address that it comes from."""
    assert connection.client is not None
    return Principal(f"{connection.url.scheme}://{connection.client.host}", frozenset(Scope) - {Scope.ADMIN})
