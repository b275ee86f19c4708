"""From whatever a model request raised to one verdict on it.

Everything that is known of an exception, and of those behind it, is taken out as plain data (`Raised`); `policies.transport` judges. No
library is imported for it: attributes are what they are called.
"""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Iterator, Mapping

from perdure.ledger import PerdureError
from perdure.policies import Failure, FailureKind, Raised, classify, is_number, stream_ended

CHAIN_MAX = 8

_RESOLVER_CODES = {getattr(socket, name): name for name in dir(socket) if name.startswith("EAI_")}


class ModelFailed(PerdureError):
    """A model request failed; `failure` says how, and whether the same request could succeed later."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.text


def too_long(bytes_max: int) -> ModelFailed:
    """The failure of an answer that is longer than it may be. To ask again would bring it again."""
    words = f"the answer has more than {bytes_max} bytes, so it was broken off"
    return ModelFailed(Failure(FailureKind.UNKNOWN, words, is_transient=False, code="answer_too_long"))


def failure_of(
    problem: BaseException, *, now_ms: float | None = None, is_aborting: bool = False, is_reading: bool = False
) -> Failure:
    """The verdict on an exception. Of several that were raised together (a fallback from model to model), one that may pass decides.

    Args:
        problem: what was raised.
        now_ms: the time, for hints that are dates.
        is_aborting: whether we were closing the stream ourselves.
        is_reading: whether the answer had begun. What then stumbles over it without a sign of the network has met an answer that is
            garbled, which is a fault of the connection (spec transport-recovery §1.4), and not of ours.
    """
    if isinstance(problem, ModelFailed):
        return problem.failure
    if isinstance(problem, BaseExceptionGroup):
        found = [
            failure_of(each, now_ms=now_ms, is_aborting=is_aborting, is_reading=is_reading)
            for each in problem.exceptions
        ]
        return next((each for each in found if each.is_transient), found[0])
    failure = classify(list(chain_of(problem)), now_ms=now_ms, is_aborting=is_aborting, is_setup=not is_reading)
    if is_reading and failure.kind is FailureKind.UNKNOWN:
        return stream_ended(f"the answer could not be read: {failure.text}")
    return failure


def chain_of(problem: BaseException) -> Iterator[Raised]:
    """An exception and those behind it, outermost first."""
    seen: set[int] = set()
    current: BaseException | None = problem
    while current is not None and id(current) not in seen and len(seen) < CHAIN_MAX:
        seen.add(id(current))
        yield raised(current)
        behind = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
        current = behind.exceptions[0] if isinstance(behind, BaseExceptionGroup) else behind


def raised(problem: BaseException) -> Raised:
    """One exception as plain data."""
    response = getattr(problem, "response", None)
    headers = _first(problem, response, "headers")
    message = getattr(problem, "message", None)
    return Raised(
        lineage=tuple(_name(kind) for kind in type(problem).__mro__ if kind is not object),
        message=message if isinstance(message, str) else str(problem),
        status=_status(problem, response),
        code=_code(problem, response),
        headers=_plain_headers(headers),
        body=_body(problem, response),
        retry_after_ms=_milliseconds(getattr(problem, "retry_after", None)),
    )


def _name(kind: type) -> str:
    return f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}"


def _first(problem: BaseException, response: object, name: str) -> object:
    found = getattr(problem, name, None)
    return found if found is not None else getattr(response, name, None)


def _status(problem: BaseException, response: object) -> int | None:
    for found in (getattr(problem, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    told = _aws(response).get("ResponseMetadata")
    status = told.get("HTTPStatusCode") if isinstance(told, Mapping) else None
    return status if isinstance(status, int) else None


def _code(problem: BaseException, response: object) -> str | None:
    """An errno's name, an SSL reason, or the code of an API, whichever there is."""
    if isinstance(problem, ssl.SSLError) and problem.reason:
        return problem.reason
    if isinstance(problem, socket.gaierror):
        return _RESOLVER_CODES.get(problem.errno or 0)
    if isinstance(problem, OSError) and problem.errno is not None:
        return errno.errorcode.get(problem.errno)
    for name in ("code", "provider_error_code"):
        found = getattr(problem, name, None)
        if isinstance(found, str | int) and not isinstance(found, bool):
            return str(found)
    error = _aws(response).get("Error")
    code = error.get("Code") if isinstance(error, Mapping) else None
    return code if isinstance(code, str) else None


def _body(problem: BaseException, response: object) -> object:
    body = getattr(problem, "body", None)
    if body is None:
        body = _aws(response).get("Error")
    return dict(body) if isinstance(body, Mapping) else body if isinstance(body, str) else None


def _aws(response: object) -> Mapping[str, object]:
    """What botocore calls a response is a plain mapping."""
    return response if isinstance(response, Mapping) else {}


def _plain_headers(headers: object) -> dict[str, str]:
    if not isinstance(headers, Mapping):
        return {}
    return {str(name): str(value) for name, value in headers.items()}


def _milliseconds(seconds: object) -> float | None:
    return seconds * 1000.0 if is_number(seconds) else None
