"""Who asks, and what that one may.

Every request and every connection has a principal, which `authenticate` names. A principal has scopes; each route and each frame asks for
one. Before that come the checks that browsers make necessary: which host name was asked for (DNS rebinding), and from which page
(`Origin`).
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address, ip_network
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.requests import HTTPConnection

from perdure.actors.gateway.hooks import HookFailed, call_hook
from perdure.actors.gateway.refusals import Forbidden, Unauthenticated
from perdure.ledger import BadRequest, check_text
from perdure.policies import Answerer

PUBLIC: Final = "/dashboard/"
"""Where files are that hold no data. Who asks for them may be nobody, who has no scope."""
PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Nobody is asked for a name there, so that a probe depends on no hook."""
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
ANYONE: Final = "anyone"
"""The name of whoever reaches a gateway that asks for none."""
BEARER: Final = "token"
"""The name of whoever has the one token of a gateway."""
STDIO: Final = "stdio"
"""The name of whoever has started `perdure mcp`, and so has the directory."""
IN_QUERY: Final = "token"
"""The name of the token in a query."""


class Scope(StrEnum):
    """What a principal may. Each includes nothing of the others."""

    READ = "read"  # see runs, events, transcripts, states
    CHAT = "chat"  # call agents: turns, exposed methods, states; answer what runs ask
    OPERATE = "operate"  # start, cancel, retry, clear, examine
    ADMIN = "admin"  # forget, kill, upgrade, back up, stop


@dataclass(frozen=True)
class Principal:
    """Who asks. `name` is told to gates and stands in logs; it is no secret. `groups` are those whose questions this one may answer.
    Raises `BadRequest` for a scope that there is not."""

    name: str = ANYONE
    scopes: frozenset[Scope] = field(default_factory=lambda: frozenset(Scope))
    groups: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        check_text("name", self.name)
        scopes, groups = _words("scopes", self.scopes), _words("groups", self.groups)
        if unknown := scopes - {*Scope}:
            raise BadRequest("scopes", f"{min(unknown)!r:.80} is none; there are {', '.join(Scope)}")
        object.__setattr__(self, "scopes", frozenset(map(Scope, scopes)))
        object.__setattr__(self, "groups", groups)

    @property
    def is_person(self) -> bool:
        """Whether the name is that of somebody, rather than of all who reach the gateway."""
        return self.name not in (ANYONE, BEARER, STDIO)

    @property
    def began_by(self) -> str:
        """Who begins what this one asks for, as runs are told it; empty if nobody knows."""
        return self.name if self.is_person else ""

    def check(self, scope: Scope) -> None:
        if scope not in self.scopes:
            raise Forbidden(f"{self.name} has not the scope {scope.value!r}")

    def answerer(self, named: str | None = None) -> Answerer:
        """Who this is where people are asked something. One whose name is nobody's may answer everything, and says who answers (`named`).
        Raises `BadRequest` for one who answers for somebody else."""
        if not self.is_person:
            return Answerer(named or self.name, is_operator=True)
        if named not in (None, self.name):
            raise BadRequest("who", f"{self.name} answers for nobody else; leave it out")
        return Answerer(self.name, self.groups, is_admin=Scope.ADMIN in self.scopes)


def _words(field: str, given: object) -> frozenset[str]:
    if not isinstance(given, AbstractSet | list | tuple) or not all(isinstance(each, str) for each in given):
        raise BadRequest(field, f"{given!r:.80} is no set of words; give one, as {{'read', 'chat'}}")
    return frozenset(given)


NOBODY: Final = Principal("nobody", frozenset())
AUTHENTICATE: Final = "authenticate"

Authenticate = Callable[[HTTPConnection], Principal | Awaitable[Principal | None] | None]
"""Names the principal of a request or a connection; None if it is nobody's."""


def bearer(tokens: Mapping[str, Principal]) -> Authenticate:
    """Principals by their tokens: `Authorization: Bearer TOKEN`, or `?token=TOKEN` where a browser can send no headers. Every token is
    compared, each in constant time. Raises `BadRequest` for an empty token."""
    if not all(tokens):
        raise BadRequest("tokens", "a token is empty")
    return by_digest({token_digest(token): who for token, who in tokens.items()})


def token_digest(token: str) -> str:
    # A digest may be kept and handed on: it can be compared, and cannot be used as the token.
    return hashlib.sha256(token.encode(errors="surrogatepass")).hexdigest()


def by_digest(digests: Mapping[str, Principal]) -> Authenticate:
    # Digests are of one length, so not even the length of a token is told by the time.
    def authenticate(connection: HTTPConnection) -> Principal | None:
        kind, _, said = connection.headers.get("authorization", "").partition(" ")
        given = said.strip() if kind.lower() == "bearer" else connection.query_params.get(IN_QUERY, "")
        asked = token_digest(given)
        found = [who for digest, who in digests.items() if hmac.compare_digest(digest, asked)]
        return found[0] if found and given else None

    return authenticate


def without_token(query: bytes) -> bytes:
    # No log shall have the token.
    kept = (each for each in query.split(b"&") if unquote_to_bytes(each.partition(b"=")[0]) != IN_QUERY.encode())
    return b"&".join(kept)


@dataclass(frozen=True)
class Security:
    """How requests are checked.

    Args:
        authenticate: names the principal; None lets in whoever reaches the address, which must then be one of loopback.
        hosts: the host names that may be asked for, beside those of loopback; `*` for any.
        origins: the pages that may ask, as `https://example.org`, beside those of the host that is asked; `*` for any.
    """

    authenticate: Authenticate | None = None
    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()

    def check_host(self, host: str) -> None:
        # Under a name that is not ours a page elsewhere asks, whose own name was pointed to us (DNS rebinding). An address in numbers is
        # no name that somebody could point elsewhere.
        name = _name_of(host)
        if name not in LOOPBACK and "*" not in self.hosts and name not in self.hosts and not _is_number(name):
            raise Forbidden(f"the host {host!r:.80} is not one of this gateway's; name it in `hosts`")

    def allows_origin(self, origin: str, host: str) -> bool:
        origin = origin.lower()
        return "*" in self.origins or origin in self.origins or origin.partition("://")[2] == host.lower()

    async def principal(self, connection: HTTPConnection) -> Principal:
        # Who asks, or nobody at a probe. Raises `Unauthenticated` and `Forbidden`.
        host, origin = connection.headers.get("host", ""), connection.headers.get("origin")
        is_probe = path_within(connection.scope) in PROBES
        if not is_probe or "host" in connection.headers:  # load balancers name none; every browser does
            self.check_host(host)
        if origin is not None and not self.allows_origin(origin, host):
            raise Forbidden(f"pages of {origin:.80} may not ask this gateway; name them in `origins`")
        return NOBODY if is_probe else await self.named(connection)

    async def named(self, connection: HTTPConnection) -> Principal:
        # Raises `Unauthenticated`.
        if self.authenticate is None:
            return Principal()
        who = await call_hook(AUTHENTICATE, self.authenticate, connection)
        if who is not None and not isinstance(who, Principal):
            raise HookFailed(AUTHENTICATE, self.authenticate, f"returned {who!r:.80}; return a `Principal`, or None")
        if who is None and path_within(connection.scope).startswith(PUBLIC):
            return NOBODY
        if who is None:
            raise Unauthenticated("the request names nobody: it has no valid token")
        return who


def _name_of(host: str) -> str:
    if "@" in host:
        return ""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _is_number(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def path_within(scope: Mapping[str, object]) -> str:
    # The application may be mounted in another one.
    return str(scope["path"]).removeprefix(str(scope.get("root_path", "")))


def resolved(host: str, port: int | None = None) -> list[tuple[Any, ...]]:
    """What stands for a host and a port. Raises `BadRequest` for a name that is none."""
    try:
        return [*socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)]
    except (OSError, UnicodeError) as problem:
        words = getattr(problem, "strerror", None) or problem
        raise BadRequest("host", f"{host:.200} cannot be listened on: {words}") from problem


def check_exposed(host: str, security: Security) -> None:
    if host not in LOOPBACK and security.authenticate is None:
        resolved(host)
        raise BadRequest("host", f"{host} is reachable from elsewhere: give a token or an `authenticate` hook first")


def host_names(given: Iterable[str]) -> frozenset[str]:
    # Raises `BadRequest` for a name that no request can ask for.
    found = frozenset(each.lower() for each in given)
    for each in found - {"*"}:
        if (_name_of(each) != each or "*" in each) and not _is_number(each):
            raise BadRequest(
                "hosts", f"{each!r:.80} is no host name; give it without scheme, port and path, as example.org"
            )
    return found


def page_origins(given: Iterable[str]) -> frozenset[str]:
    # Raises `BadRequest` for an origin that no browser can send.
    found = frozenset(each.rstrip("/").lower() for each in given)
    for each in found - {"*", "null"}:
        scheme, _, rest = each.partition("://")
        if not scheme or _name_of(rest) in ("", "*") or set("/?#*@") & set(rest):
            raise BadRequest("origins", f"{each!r:.80} is no origin; give scheme and name, as https://example.org")
    return found


def check_proxies(given: str) -> None:
    for each in () if given in ("", "*") else given.split(","):
        try:
            ip_network(each.strip())
        except ValueError as problem:
            raise BadRequest(
                "forwarded_allow_ips", f"{each.strip()!r:.80} is no address and no network: {problem}"
            ) from None
