from __future__ import annotations

import asyncio
import itertools
import pickle
import socket
import ssl
from typing import Any, ClassVar

import httpx2
import pytest
from pydantic_ai.exceptions import FallbackExceptionGroup, ModelAPIError, ModelHTTPError, UnexpectedModelBehavior

from perdure.actors.chat.turn_failures import CHAIN_MAX, ModelFailed, chain_of, failure_of, raised
from perdure.ledger import BadRequest
from perdure.policies import Failure, FailureKind
from perdure.policies.failures import ApiKind


def behind(*problems: BaseException) -> BaseException:
    """The first of them, with each of the others as the cause of the one before."""
    for outer, inner in itertools.pairwise(problems):
        outer.__cause__ = inner
    return problems[0]


def certificate() -> ssl.SSLError:
    problem = ssl.SSLCertVerificationError(1, "certificate verify failed")
    problem.reason = "CERTIFICATE_VERIFY_FAILED"
    return problem


class Aws(Exception):
    """As botocore raises it."""

    response: ClassVar[dict[str, Any]] = {
        "Error": {"Code": "ThrottlingException", "Message": "slow"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    }


REQUEST = httpx2.Request("GET", "http://a.example")
LIMITED = httpx2.Response(429, headers={"Retry-After": "3"}, request=REQUEST)


@pytest.mark.parametrize(
    ("problem", "field", "expected"),
    [
        (ConnectionResetError(104, "reset"), "code", "ECONNRESET"),
        (socket.gaierror(socket.EAI_NONAME, "no name"), "code", "EAI_NONAME"),
        (certificate(), "code", "CERTIFICATE_VERIFY_FAILED"),
        (ModelHTTPError(529, "m", {"code": "overloaded"}, headers={"X-A": "b"}), "status", 529),
        (ModelHTTPError(529, "m", {"code": "overloaded"}, headers={"X-A": "b"}), "headers", {"x-a": "b"}),
        (ModelHTTPError(529, "m", {"code": "overloaded"}), "body", {"code": "overloaded"}),
        (ModelHTTPError(429, "m", None, headers={"retry-after": "2"}), "retry_after_ms", 2000.0),
        (httpx2.HTTPStatusError("no", request=REQUEST, response=LIMITED), "status", 429),
        (httpx2.HTTPStatusError("no", request=REQUEST, response=LIMITED), "headers", {"retry-after": "3"}),
        (Aws("slow"), "status", 400),
        (Aws("slow"), "code", "ThrottlingException"),
        (
            KeyError("x"),
            "lineage",
            ("builtins.KeyError", "builtins.LookupError", "builtins.Exception", "builtins.BaseException"),
        ),
        (httpx2.ReadTimeout("slow"), "message", "slow"),
    ],
)
def test_what_an_exception_knows_is_taken_out(problem: BaseException, field: str, expected: object) -> None:
    assert getattr(raised(problem), field) == expected


def test_the_chain_goes_by_cause_and_else_by_context_and_ends() -> None:
    loop = behind(KeyError("a"), KeyError("b"))
    assert loop.__cause__ is not None
    loop.__cause__.__cause__ = loop
    assert [each.message for each in chain_of(loop)] == ["'a'", "'b'"]
    hidden = KeyError("a")
    hidden.__context__, hidden.__suppress_context__ = KeyError("b"), True
    assert len(list(chain_of(hidden))) == 1
    hidden.__suppress_context__ = False
    assert len(list(chain_of(hidden))) == 2
    assert len(list(chain_of(behind(*(KeyError(at) for at in range(20)))))) == CHAIN_MAX


@pytest.mark.parametrize(
    ("problem", "kind", "is_transient"),
    [
        (
            behind(ModelAPIError("m", "Connection error."), httpx2.ReadError(""), ConnectionResetError(104, "x")),
            FailureKind.TRANSPORT,
            True,
        ),
        (behind(ModelAPIError("m", "Connection error."), httpx2.PoolTimeout("")), FailureKind.LOCAL_PRESSURE, True),
        (behind(ModelAPIError("m", "x"), httpx2.ConnectError("x"), certificate()), FailureKind.TRANSPORT, False),
        (behind(ModelAPIError("m", "x"), socket.gaierror(socket.EAI_NONAME, "x")), FailureKind.TRANSPORT, False),
        (behind(ModelAPIError("m", "x"), socket.gaierror(socket.EAI_AGAIN, "x")), FailureKind.TRANSPORT, True),
        (httpx2.RemoteProtocolError("incomplete chunked read"), FailureKind.TRANSPORT, True),
        (
            behind(ModelHTTPError(401, "m", {"code": "invalid_api_key"}), ConnectionResetError(104, "x")),
            FailureKind.HTTP,
            False,
        ),
        (ModelHTTPError(503, "m", None), FailureKind.HTTP, True),
        (asyncio.CancelledError(), FailureKind.ABORTED, False),
        (UnexpectedModelBehavior("odd"), FailureKind.SETUP, False),
    ],
)
def test_each_failure_has_its_class(problem: BaseException, kind: FailureKind, is_transient: bool) -> None:
    failure = failure_of(problem)
    assert (failure.kind, failure.is_transient) == (kind, is_transient), failure


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (KeyError("user_id"), "KeyError: 'user_id'"),
        (AssertionError(None), "AssertionError: None"),
        (ValueError(), "ValueError"),
        (behind(ValueError("no user"), KeyError("user_id")), "ValueError: no user (caused by KeyError: 'user_id')"),
        (BadRequest("model", "is none"), "model: is none"),
    ],
)
def test_a_mistake_in_the_setup_is_told_with_its_type(problem: Exception, text: str) -> None:
    assert failure_of(problem).text == text


@pytest.mark.parametrize(
    "problem", [UnexpectedModelBehavior("odd"), IndexError("list index out of range"), ValueError("bad")]
)
def test_an_answer_that_cannot_be_read_is_a_fault_of_the_connection(problem: Exception) -> None:
    failure = failure_of(problem, is_reading=True)
    assert (failure.kind, failure.is_transient, failure.is_transport) == (FailureKind.STREAM_END, True, True)
    assert str(problem) in failure.text


def test_of_several_models_that_failed_one_that_may_pass_decides() -> None:
    bad, busy = ModelHTTPError(401, "a", None), ModelHTTPError(503, "b", None)
    assert failure_of(FallbackExceptionGroup("all failed", [bad, busy])).api is ApiKind.SERVER_OVERLOAD
    worse = ModelHTTPError(400, "c", None)
    assert failure_of(FallbackExceptionGroup("all failed", [bad, worse])).api is ApiKind.AUTH, "else the first"
    assert failure_of(behind(KeyError("x"), ExceptionGroup("of tasks", [busy]))).api is ApiKind.SERVER_OVERLOAD


def test_a_verdict_stays_one() -> None:
    failed = ModelFailed(Failure(FailureKind.UNKNOWN, "odd", is_transient=False))
    assert failure_of(failed, is_reading=True) is failed.failure
    again: Any = pickle.loads(pickle.dumps(failed))
    assert (again.failure, str(again)) == (failed.failure, "odd")
