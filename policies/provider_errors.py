"""What a provider's refusal means, and whether a retry may succeed.

Codes are read first, then words about money, then the status, then the class of the client library's exception.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from perdure.policies import transport_signs as signs
from perdure.policies.failures import ApiKind, Failure, FailureKind, Raised, mentions, one_line
from perdure.policies.retry import hinted_ms


@dataclass(frozen=True)
class Answer:
    """A provider's status or error object, or both."""

    status: int | None
    codes: tuple[str, ...]
    text: str
    raised: Raised


def answer_in(raised: Raised) -> Answer | None:
    """The provider's answer in this exception: a status, an error object, or the class that its library chose."""
    error = _error_object(raised.body) or _error_object(raised.message)
    codes = [raised.code, *((error.get("code"), error.get("type"), error.get("status")) if error else ())]
    known = tuple(str(code).lower() for code in codes if isinstance(code, str | int))
    if not _is_error(raised.status):
        category = next((name for name in raised.lineage if name in signs.CATEGORIES), None)
        if error is None and category is None and not raised.is_any(signs.CONTEXT_CLASSES):
            return None
    said = error.get("message") if error else None
    status = raised.status if _is_error(raised.status) else _status_in(known)
    return Answer(status, known, said if isinstance(said, str) else raised.message, raised)


def _is_error(status: int | None) -> bool:
    return status is not None and 400 <= status < 600  # noqa: PLR2004 - the range of HTTP's errors


def _status_in(codes: Iterable[str]) -> int | None:
    """A status in place of a code: gateways do so when the stream had begun with 200."""
    return next((int(code) for code in codes if code.isdecimal() and len(code) == 3 and _is_error(int(code))), None)  # noqa: PLR2004


def _error_object(body: object) -> dict[str, Any] | None:
    """The error in a body or its JSON text: `{"error": {…}}`, or an object with a message and a code or type."""
    if isinstance(body, str):
        if not body.lstrip().startswith("{"):
            return None
        try:
            body = json.loads(body)
        except (ValueError, RecursionError):
            return None
    if not isinstance(body, dict):
        return None
    inner = body.get("error")
    if isinstance(inner, dict):
        return inner
    if isinstance(inner, str):
        return {**body, "message": body.get("message", inner), "code": body.get("code", inner)}
    return body if "message" in body and ("code" in body or "type" in body) else None


def judge_answer(answer: Answer, now_ms: float | None) -> Failure:
    """The failure for an answer. `now_ms` is needed for hints that are dates."""
    text = one_line(answer.text)
    hint = hinted_ms(answer.raised.headers, now_ms)
    bare = Failure(
        FailureKind.HTTP if _is_error(answer.raised.status) else FailureKind.IN_BAND,
        f"the provider answered {answer.status}: {text}" if answer.status else f"the provider said: {text}",
        is_transient=False,
        api=ApiKind.INVALID_REQUEST,
        status=answer.status,
        code=next((each for each in answer.codes if each != str(answer.status)), None),
        retry_after_ms=hint if hint is not None else answer.raised.retry_after_ms,
    )
    lower = f"{answer.text} {answer.raised.message}".lower()
    if answer.raised.is_any(signs.CONTEXT_CLASSES) or _overflows(answer, lower):
        return replace(bare, kind=FailureKind.CONTEXT_OVERFLOW)
    if _is_too_large(answer, lower):
        return replace(bare, kind=FailureKind.TOO_LARGE)
    api = _kind_of(answer, lower)
    return replace(bare, api=api, is_transient=_may_pass(api, answer))


def _overflows(answer: Answer, lower: str) -> bool:
    if {*answer.codes} & signs.CONTEXT_CODES:
        return True
    return answer.status != 429 and mentions(lower, signs.CONTEXT_PHRASES)  # noqa: PLR2004 - tokens a minute are no context


def _is_too_large(answer: Answer, lower: str) -> bool:
    if answer.status == 413 or {*answer.codes} & signs.TOO_LARGE_CODES:  # noqa: PLR2004 - Content Too Large
        return True
    return answer.status in (None, 400) and mentions(lower, signs.TOO_LARGE_PHRASES)


_BY_CODE = (
    (signs.QUOTA_CODES, ApiKind.QUOTA_EXHAUSTED),
    (signs.OVERLOAD_CODES, ApiKind.SERVER_OVERLOAD),
    (signs.RATE_CODES, ApiKind.RATE_LIMIT),
    (signs.AUTH_CODES, ApiKind.AUTH),
    (signs.SOCKET_CODES, ApiKind.TRANSPORT_DISCONNECT),
)
_BY_STATUS = {401: ApiKind.AUTH, 403: ApiKind.AUTH, 402: ApiKind.QUOTA_EXHAUSTED, 429: ApiKind.RATE_LIMIT}
_PASSING = frozenset({ApiKind.RATE_LIMIT, ApiKind.SERVER_OVERLOAD, ApiKind.TRANSPORT_DISCONNECT})
_ASK_AGAIN = frozenset({408, 409, 425})  # the request came too slowly, too early, or in somebody's way


def _kind_of(answer: Answer, lower: str) -> ApiKind:
    """By codes, then words about money, then the status, then the exception's class."""
    for codes, kind in _BY_CODE:
        if {*answer.codes} & codes:
            return kind
    status = answer.status
    if status != 429 and (status or 0) < 500 and _is_about_money(status, lower):  # noqa: PLR2004
        return ApiKind.QUOTA_EXHAUSTED
    if status is not None:
        if status >= 500:  # noqa: PLR2004
            return ApiKind.SERVER_OVERLOAD
        return _BY_STATUS.get(status, ApiKind.UNKNOWN if status in _ASK_AGAIN else ApiKind.INVALID_REQUEST)
    if {*answer.codes} & signs.INVALID_CODES:
        return ApiKind.INVALID_REQUEST
    category = next((signs.CATEGORIES[name] for name in answer.raised.lineage if name in signs.CATEGORIES), None)
    return ApiKind(category) if category else ApiKind.UNKNOWN


def _is_about_money(status: int | None, lower: str) -> bool:
    if mentions(lower, signs.STRONG_BILLING):
        return True
    return status in (400, 402, 403) and mentions(lower, signs.WEAK_BILLING) and not mentions(lower, signs.RATE_WORDS)


def _may_pass(api: ApiKind, answer: Answer) -> bool:
    """Whether a retry may succeed. `x-should-retry` decides, except for keys and money."""
    advice = {name.lower(): value for name, value in answer.raised.headers.items()}.get("x-should-retry", "").lower()
    if api in (ApiKind.AUTH, ApiKind.QUOTA_EXHAUSTED):
        return False
    if advice in ("true", "false"):
        return advice == "true"
    return api in _PASSING or (api is ApiKind.UNKNOWN and answer.status in _ASK_AGAIN)
