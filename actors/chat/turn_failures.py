"""The verdict on an exception of a model request.

An exception and those behind it become plain data (`Raised`), and `policies.transport` judges. No library of a provider is imported: the
attributes of its errors are read by their names.
"""

from __future__ import annotations

import errno
import socket
import ssl
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from json import JSONDecodeError
from pathlib import Path

from perdure.actors.code.author_call import behind, in_words, kind_of, members_of, own, text_of, tried_now
from perdure.ledger import PerdureError
from perdure.policies import Failure, FailureKind, Raised, classify, is_number, one_line, stream_ended

CHAIN_MAX = 8

_INSTALLED = frozenset({"site-packages", "dist-packages"})
_RESOLVER_CODES = {getattr(socket, name): name for name in dir(socket) if name.startswith("EAI_")}


class ChatTurnFailed(Exception):
    """The turn of a run did not complete."""

    def __init__(self, status: str, error: str) -> None:
        super().__init__(status, error)
        self.status, self.error = status, error

    def __str__(self) -> str:
        return self.error or f"the turn was {self.status}"


class ModelFailed(PerdureError):
    """A model request failed; `failure` says how, and whether the same request could succeed later."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure

    def __str__(self) -> str:
        return self.failure.text


def too_long(bytes_max: int) -> ModelFailed:
    words = f"the answer has more than {bytes_max} bytes, so it was broken off"
    return ModelFailed(Failure(FailureKind.UNKNOWN, words, is_transient=False))


def failure_of(problem: BaseException, *, is_reading: bool = False) -> Failure:
    """The verdict on an exception. Of several that were raised together (a fallback from model to model), a transient one decides.

    Args:
        problem: the exception.
        is_reading: whether the answer had begun. An unknown error then means a garbled answer, which is a fault of the connection (spec
            transport-recovery §1.4), unless the author's own code raised it.
    """
    if isinstance(problem, ModelFailed):
        return problem.failure
    if isinstance(problem, BaseExceptionGroup):
        found = [failure_of(each, is_reading=is_reading) for each in problem.exceptions]
        return next((each for each in found if each.is_transient), found[0])
    is_authors = _is_authors(problem)
    if is_authors and isinstance(problem, JSONDecodeError | UnicodeDecodeError):  # of a library's, a frame was cut off
        return Failure(FailureKind.UNKNOWN, one_line(in_words(problem)), is_transient=False)
    failure = classify(list(chain_of(problem)), is_setup=not is_reading)
    if failure.kind in (FailureKind.SETUP, FailureKind.UNKNOWN) and not isinstance(problem, PerdureError):
        failure = replace(failure, text=one_line(in_words(problem)))  # a mistake, which its message alone may not tell
    if is_reading and failure.kind is FailureKind.UNKNOWN and not is_authors:
        return stream_ended(f"the provider's answer could not be read: {failure.text}")
    return failure


def _is_authors(problem: BaseException) -> bool:
    # It was raised in a file of the author's, or in what Python brings and that file had called. What is installed may ask a provider.
    for frame, _ in reversed([*traceback.walk_tb(own(problem, "__traceback__"))]):
        top = str(frame.f_globals.get("__name__")).partition(".")[0]
        if top not in sys.stdlib_module_names:
            return top != "perdure" and _INSTALLED.isdisjoint(Path(frame.f_code.co_filename).parts)
    return False


def chain_of(problem: BaseException) -> Iterator[Raised]:
    seen: set[int] = set()
    current: BaseException | None = problem
    while current is not None and id(current) not in seen and len(seen) < CHAIN_MAX:
        seen.add(id(current))
        found, _ = tried_now(partial(raised, current))
        yield found or Raised(lineage=(kind_of(current),), message=text_of(current))  # what its attributes are raises
        further = behind(current)
        current = next(iter(members_of(further)), further) if further is not None else None


def raised(problem: BaseException) -> Raised:
    response = getattr(problem, "response", None)
    headers = getattr(problem, "headers", None)
    headers = getattr(response, "headers", None) if headers is None else headers
    message, pause_s = getattr(problem, "message", None), getattr(problem, "retry_after", None)
    lineage = [kind for kind in type(problem).__mro__ if kind is not object]
    body = getattr(problem, "body", None)
    body = _aws(response).get("Error") if body is None else body
    return Raised(
        lineage=tuple(f"{kind.__module__.partition('.')[0]}.{kind.__qualname__}" for kind in lineage),
        message=text_of(message if isinstance(message, str) else problem),
        status=_status(problem, response),
        code=_code(problem, response),
        headers={str(name): str(value) for name, value in headers.items()} if isinstance(headers, Mapping) else {},
        body=dict(body) if isinstance(body, Mapping) else body if isinstance(body, str) else None,
        retry_after_ms=pause_s * 1000.0 if is_number(pause_s) else None,
    )


def _status(problem: BaseException, response: object) -> int | None:
    for found in (getattr(problem, "status_code", None), getattr(response, "status_code", None)):
        if isinstance(found, int) and not isinstance(found, bool):
            return found
    told = _aws(response).get("ResponseMetadata")
    status = told.get("HTTPStatusCode") if isinstance(told, Mapping) else None
    return status if isinstance(status, int) else None


def _code(problem: BaseException, response: object) -> str | None:
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


def _aws(response: object) -> Mapping[str, object]:
    # botocore's response is a plain mapping.
    return response if isinstance(response, Mapping) else {}
