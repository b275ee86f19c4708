"""Errors of Perdure as HTTP statuses and WebSocket close codes.

A refusal of a status 4xx closes a WebSocket by 4000 + status, which clients take as final. One of 5xx closes it by 1011, after which they
try again (client protocols A.3).
"""

from __future__ import annotations

import logging
import math
import time
from http import HTTPStatus
from typing import Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.actors.code.author_call import in_words, text_of
from perdure.actors.gateway.hooks import HookFailed
from perdure.actors.gateway.refusals import (
    Forbidden,
    GatewayStopped,
    NoSuchAgent,
    NotNow,
    TooManyRequests,
    TooSlow,
    Unauthenticated,
    UnknownEncoding,
)
from perdure.actors.link.wire import RemoteError
from perdure.ledger import (
    AdmissionRefused,
    AgentAborted,
    AgentForbidden,
    AgentUnreachable,
    AnswerForbidden,
    AnswerRefused,
    AskClosed,
    AskRefused,
    BadRequest,
    BucketUnreachable,
    ConflictingRequest,
    EventRefused,
    HostUnavailable,
    LedgerError,
    OutcomeUnknown,
    Overloaded,
    PauseRefused,
    PerdureError,
    RetryRefused,
    RuntimeClosed,
    StorageConflict,
    StorageLost,
    SupervisorUnreachable,
    TooLarge,
    UnknownAsk,
    UnknownRun,
    VersionMismatch,
)
from perdure.policies import JsonObject


class AgentRaised(PerdureError):
    # The author's code raised. The words are those of its exception, without a traceback.

    def __init__(self, problem: Exception) -> None:
        super().__init__(in_words(problem))


logger = logging.getLogger("perdure.gateway")

STATUSES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (Unauthenticated, 401),
    (Forbidden, 403),
    (AgentForbidden, 403),
    (NoSuchAgent, 404),
    (UnknownRun, 404),
    (AgentUnreachable, 404),
    (TooLarge, 413),
    (UnknownEncoding, 415),
    (ConflictingRequest, 409),
    (RetryRefused, 409),
    (EventRefused, 409),
    (PauseRefused, 409),
    (AnswerForbidden, 403),
    (UnknownAsk, 404),
    (AskClosed, 409),
    (AnswerRefused, 409),
    (AskRefused, 409),
    (NotNow, 409),
    (AgentAborted, 409),
    (TooSlow, 408),
    (TooManyRequests, 429),
    (AdmissionRefused, 429),
    (Overloaded, 429),
    (RuntimeClosed, 503),
    (BadRequest, 400),
    (StorageLost, 503),
    (StorageConflict, 409),
    (GatewayStopped, 503),
    (SupervisorUnreachable, 503),
    (HostUnavailable, 503),
    (BucketUnreachable, 503),
    (LedgerError, 503),
    (OutcomeUnknown, 502),
    (RemoteError, 422),
    (AgentRaised, 422),
)
"""The first row that fits is taken."""
INTERNAL: Final = 500
AGAIN_S: Final = 2
"""After so long it may be better to ask again, where nobody could be asked."""
WARN_EVERY_S: Final = 60.0
WARNED_MAX: Final = 100
_WARNED: dict[str, float] = {}  # when each cause was logged last
NOT_NOW: Final = (SupervisorUnreachable, HostUnavailable, BucketUnreachable, LedgerError)
"""What is not the asker's mistake, and may be over in a while."""
REASON_BYTES: Final = 123  # a close frame has at most 125, of which two are the code
AGAIN: Final = 1013
"""The close code after which clients connect again in a while."""


def status_of(problem: Exception) -> int:
    return next((status for kind, status in STATUSES if isinstance(problem, kind)), INTERNAL)


def public(problem: Exception) -> Exception:
    # Clients elsewhere are not told the path of the data directory.
    if isinstance(problem, LedgerError) and not isinstance(problem, VersionMismatch):
        return type(problem)("the data directory", problem.problem, problem.advice)
    if isinstance(problem, BucketUnreachable):
        return BucketUnreachable("the bucket", problem.unanswered_s, "", problem.retry_after_ms)
    return problem


def told(problem: Exception) -> dict[str, str]:
    # A bug of ours, or of an author's hook, is logged, and the client is told only that.
    if isinstance(problem, HookFailed):
        logger.error("%s", problem)
        return {"type": "InternalError", "message": "a hook of this gateway failed; its log has the details"}
    if status_of(problem) == INTERNAL:
        logger.error("a request failed", exc_info=problem)
        return {"type": "InternalError", "message": "this is an error of the gateway; its log has the details"}
    if isinstance(problem, NOT_NOW):
        warn_once(problem)
    problem = public(problem)
    found = {"type": type(problem).__name__, "message": text_of(problem)}
    field = getattr(problem, "field", None)
    return found | ({"field": text_of(field)} if field else {})


def problem_text(problem: Exception) -> str:
    return told(problem)["message"]


def warn_once(problem: Exception) -> None:
    # Each cause is logged once a minute, because every request that comes meanwhile has the same one.
    words, now_s = f"{type(problem).__name__}: {problem}", time.monotonic()
    if now_s - _WARNED.get(words, -WARN_EVERY_S) >= WARN_EVERY_S:
        if len(_WARNED) >= WARNED_MAX:
            _WARNED.clear()
        _WARNED[words] = now_s
        logger.warning("requests are refused, since nobody can be asked: %s", words)


def refusal(problem: Exception) -> JSONResponse:
    """The answer to a request that failed: `{"error": {"type", "message", "field"?, "args"?}}`."""
    error: JsonObject = {**told(problem)}
    shown = public(problem)
    args = (shown.kind, shown.words) if isinstance(shown, RemoteError) else shown.args
    is_plain = isinstance(shown, PerdureError) and all(isinstance(each, str | int | float) for each in args)
    if is_plain and status_of(shown) != INTERNAL:
        error["args"] = list(args)  # of which a client of Perdure makes the same error again
    return JSONResponse({"error": error}, status_code=status_of(problem), headers=_advice(problem))


def unrouted(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    kind = HTTPStatus(problem.status_code).phrase.replace(" ", "")
    message = f"{request.method} {request.url.path:.200} is nothing that is served here"
    return JSONResponse({"error": {"type": kind, "message": message}}, problem.status_code, headers=problem.headers)


def _advice(problem: Exception) -> dict[str, str]:
    if isinstance(problem, Unauthenticated):
        return {"www-authenticate": "Bearer"}
    if isinstance(problem, NOT_NOW):
        return {"retry-after": str(AGAIN_S)}
    return {"retry-after": str(math.ceil(problem.again_s))} if isinstance(problem, TooManyRequests) else {}


def close_code(problem: Exception) -> tuple[int, str]:
    status = status_of(problem)
    code = AGAIN if isinstance(problem, TooManyRequests) else 4000 + status if status < INTERNAL else 1011
    reason = problem_text(problem).encode()[:REASON_BYTES].decode(errors="ignore")
    return code, reason


def is_known(problem: Exception) -> bool:
    return isinstance(problem, PerdureError) and status_of(problem) != INTERNAL
