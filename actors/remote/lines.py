"""Lines to a gateway: what one is made of, and what it means that one broke."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path
from typing import Final, cast

import httpx

from perdure.actors.gateway.refusals import AnswerOverdue
from perdure.actors.link.questions import Told
from perdure.ledger import BadRequest, SupervisorUnreachable, check_number, class_name

TRIES: Final = 60
"""How often a request that may be repeated is made while nobody answers."""
TRIED_S: Final = 120.0
"""After that it is not made again, though there have been fewer tries: each of them may have waited for its answer."""
TOLD_AT: Final = 3
"""After so many of them it is logged what is waited for: by then it is no mere hiccup."""
PORT_MAX: Final = 65_535
TIMEOUTS_S: Final = (0.001, 1e9)  # sockets know no longer time
NO_TLS: Final = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"})
"""What versions of OpenSSL say of an answer that is none of TLS."""

log = logging.getLogger("perdure.connect")


# ---------------------------------------------------------------- what is handed over


def http_options(url: str, token: str | None, timeout_s: float | None, authority: str | Path | None) -> Told:
    """What a client of httpx is made with. Raises `BadRequest`."""
    try:
        verify = True if authority is None else ssl.create_default_context(cafile=authority)
    except OSError as problem:
        raise BadRequest("authority", f"{authority} is no file with a certificate: {problem}") from problem
    if timeout_s is not None:
        check_number("timeout_s", timeout_s, *TIMEOUTS_S, unit="seconds")
    headers = {} if token is None else {"authorization": f"Bearer {_checked_token(token)}"}
    # `trust_env`: neither a proxy nor a netrc file of the environment comes between, which httpx would take by itself.
    return {
        "base_url": _checked_url(url), "headers": headers, "timeout": timeout_s, "trust_env": False, "verify": verify,
    }  # fmt: skip


def _checked_url(url: object) -> httpx.URL:
    try:
        given = httpx.URL(cast("str", url))
    except (TypeError, ValueError, httpx.InvalidURL) as problem:
        raise BadRequest("url", f"{url!r:.200} is no address: {problem}") from None
    if b"?" in given.raw_path or given.fragment:  # which is not shown: it may be a token
        raise BadRequest("url", "has something behind a ? or a #, which no request would take along; see `token=`")
    if given.scheme not in ("http", "https") or not given.host:
        words = f"{url!r:.200} is no address of a gateway; give one with its scheme, as http://127.0.0.1:8787"
        raise BadRequest("url", words)
    if given.port is not None and not 0 < given.port <= PORT_MAX:
        raise BadRequest("url", f"has the port {given.port}, and there are those from 1 to {PORT_MAX}")
    return given


def _checked_token(token: object) -> str:
    # A gateway takes no white space around it for a part, and files and shells end it with a line's end. What is wrong is not shown.
    if not isinstance(token, str):
        raise BadRequest("token", f"is {class_name(type(token))}, not text")
    said = token.strip()
    if not said:
        raise BadRequest("token", "is empty; leave it out where the gateway asks for none")
    if not (said.isascii() and said.isprintable()):
        raise BadRequest("token", "has a character that is no printable ASCII, which a header cannot hold")
    return said


# ---------------------------------------------------------------- what has broken


def is_last(tries: int, tried_s: float) -> bool:
    return tries >= TRIES or tried_s >= TRIED_S


def lost(problem: httpx.TransportError, tries: int, uncertain: tuple[str, str] | None, tried_s: float = 0.0) -> None:
    """A request met nobody, or its line broke. Raises what its caller is told, unless it is to be made again.

    Args:
        uncertain: the agent and the method, or the path and the method, of what may not be made again if somebody may have heard it.
    """
    check_mendable(problem)
    if uncertain and isinstance(problem, httpx.ConnectTimeout | httpx.PoolTimeout):
        raise _unreached(problem) from problem  # so it was not sent
    if uncertain and not isinstance(problem, httpx.ConnectError):
        raise AnswerOverdue(*uncertain, _unanswered(problem)) from problem
    go_on(problem, tries, tried_s)


def go_on(problem: httpx.TransportError, tries: int, tried_s: float = 0.0) -> None:
    """Raises `SupervisorUnreachable` after the last try, and what no further one could mend."""
    check_mendable(problem)
    if is_last(tries, tried_s):
        raise _unreached(problem, f"; it was tried {tries + 1} times") from problem
    if tries == TOLD_AT:
        log.warning("%s; it is tried again for two minutes", _unreached(problem))


def check_mendable(problem: httpx.TransportError) -> None:
    # If a certificate is not believed, or no TLS is spoken, to ask again would change nothing.
    cause = _tls_error(problem)
    if isinstance(cause, ssl.SSLCertVerificationError):
        told = f"the certificate of the gateway is not believed: {cause.verify_message}"
        raise SupervisorUnreachable(f"{told}; name who has signed it by authority=") from problem
    if cause is not None and cause.reason in NO_TLS:
        raise BadRequest(
            "url", f"what listens at {_place(problem)} speaks no TLS; give http:// for https://"
        ) from problem


def unheard(problem: httpx.TransportError) -> BadRequest:
    """What a client is told that speaks no TLS where TLS is spoken."""
    return BadRequest("url", f"what listens at {_place(problem)} speaks TLS alone; give https:// for http://")


def is_of_tls(problem: httpx.TransportError) -> bool:
    """Whether somebody has answered by TLS, whom this client does not believe."""
    return isinstance(_tls_error(problem), ssl.SSLCertVerificationError)


def _tls_error(problem: BaseException) -> ssl.SSLError | None:
    cause: BaseException | None = problem
    while cause is not None and not isinstance(cause, ssl.SSLError):
        cause = cause.__cause__ or cause.__context__
    return cause


def _unreached(problem: httpx.TransportError, then: str = "") -> SupervisorUnreachable:
    return SupervisorUnreachable(f"the gateway at {_place(problem)} cannot be reached: {_seen(problem)}{then}")


def _place(problem: httpx.TransportError) -> str:
    url = problem.request.url
    return f"{url.scheme}://{url.netloc.decode()}"


def _seen(problem: httpx.TransportError) -> str:
    if isinstance(problem, httpx.TimeoutException):
        return f"no answer within {_timeout_s(problem)} s"
    return str(problem).rstrip(".") or type(problem).__name__


def _unanswered(problem: httpx.TransportError) -> str:
    if isinstance(problem, httpx.TimeoutException):
        words = "give `timeout_s=` to `connect` for what takes longer"
        return f"no answer within timeout_s={_timeout_s(problem)}; {words}"
    return _seen(problem)


def _timeout_s(problem: httpx.TransportError) -> str:
    return f"{problem.request.extensions['timeout']['read']:g}"
