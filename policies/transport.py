"""Why a model request failed: one verdict from an exception and its causes.

*Could the same request succeed later?* is answered here, from the error alone. *May it be sent again?* depends on what had already
happened, and is answered in `policies.phases`.

The first test that holds decides, in this order:

| | class | known by | transient |
|---|---|---|---|
| E1 | `aborted` | we raised it | no |
| E2 | `missing_key` | the client says that it has no key | no |
| – | `local_pressure` | our own pool or limiter was full; nothing was sent, so it costs no budget | yes |
| E3 | `transport` | a class or an errno of a lost connection, with no HTTP status above it | yes; unknown host, bad certificate: no |
| E4 | `decompression` | the body could not be unpacked | yes |
| E5 | `http` | an HTTP status of 400 or more | by kind, see `ApiKind` |
| – | `http` | a redirect that the client did not follow | no |
| E6 | `in_band` | an error object inside a stream that began well | by its code; an unknown code is terminal |
| E7 | `context_overflow` | a code or a phrase, whatever the status (but for 429) | no: the transcript must shrink |
| E8 | `too_large` | 413 | no: the request must shrink |
| E9 | `bare_phrase` | the whole message is a known phrase | yes |
| E10 | `connect_stall` | the watchdog: nothing came | yes |
| E11 | `silent_stall` | the watchdog: nothing more came | yes |
| – | `stream_end` | the stream ended before the answer | yes |
| – | `no_answer` | a whole response without any of an answer, such as a page for people | yes; for how long, see `policies.phases` |
| E12 | `setup` | the request could not be built | no |
| E13 | `unknown` | none of these | no |

E7 and then E8 are looked for inside an answer (E5, E6). Of a status and a socket code, the outer one counts: a status with a socket code as
its cause is an answer, and a socket code with a status as its cause came after an earlier answer. Words about billing outrank a status,
except for 5xx and 429.

A refusal that would pass is terminal if the provider asks for a longer pause than `HINT_MAX_MS`.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from perdure.policies.failures import ApiKind, Failure, FailureKind, Raised, mentions, one_line
from perdure.policies.retry import backoff_ms, hinted_ms, jittered_ms

CHAIN_MAX = 8
FIRST_DELAY_MS = 2_000
DELAY_MAX_MS = 30_000
HINT_MAX_MS = 3_600_000
"""The longest pause that a provider may ask of a turn. Who asks for more means a day or a month, and would refuse an earlier request."""

# ---------------------------------------------------------------- what failures are known by

# Classes are named `package.Class`; httpx2 and httpcore2 count as httpx and httpcore. Codes and words are lower case. Codes must match
# whole.


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# --- classes of exceptions ---------------------------------------------------------------------------------------

ABORTS = frozenset(
    {"asyncio.CancelledError", "builtins.GeneratorExit", "ray.TaskCancelledError", "pydantic_ai.RunCancelled"}
)

LOCAL_PRESSURE = frozenset({"httpx.PoolTimeout", "httpcore.PoolTimeout", "pydantic_ai.ConcurrencyLimitExceeded"})

# A server with a bad certificate stays untrusted.
BAD_CERTIFICATES = frozenset({"ssl.SSLCertVerificationError", "aiohttp.ServerFingerprintMismatch"})

DROPS = _words("""
    httpx.NetworkError httpx.TimeoutException httpx.ProxyError httpcore.NetworkError httpcore.TimeoutException
    httpcore.ProxyError httpx.RemoteProtocolError httpcore.RemoteProtocolError h11.RemoteProtocolError h2.ProtocolError
    openai.APIConnectionError openai.WebSocketConnectionClosedError anthropic.APIConnectionError
    pydantic_ai.ModelConnectionError pydantic_ai.ModelRequestTimeout
    aiohttp.ClientConnectionError aiohttp.ClientPayloadError anyio.EndOfStream anyio.BrokenResourceError
    botocore.EndpointConnectionError botocore.ConnectTimeoutError botocore.ReadTimeoutError
    botocore.ResponseStreamingError urllib3.ProtocolError urllib3.ReadTimeoutError ssl.SSLError
    builtins.ConnectionError builtins.TimeoutError asyncio.IncompleteReadError
    httpx.SSEError json.JSONDecodeError builtins.UnicodeDecodeError
    ray.RayActorError ray.WorkerCrashedError ray.NodeDiedError ray.LocalRayletDiedError ray.OwnerDiedError
    ray.OutOfMemoryError ray.GetTimeoutError ray.RpcError
""")
"""A frame that cannot be read was cut off. Nothing of ours was executed in a Ray process that streamed, so its end is a lost connection."""
GARBLED = _words("httpx.SSEError json.JSONDecodeError builtins.UnicodeDecodeError")

DECOMPRESSION = frozenset(
    {"zlib.error", "httpx.DecodingError", "brotli.error", "brotlicffi.error", "zstandard.ZstdError"}
)

# --- codes of the operating system -------------------------------------------------------------------------------

SOCKET_CODES = _words("""
    econnreset econnrefused etimedout econnaborted epipe ehostunreach ehostdown enetunreach enetdown enetreset
    enotconn eshutdown eaddrnotavail eai_again
""")
# Clients pass these on as text only: after `[Errno n]` or `[SSL: …]`, the words of the system's resolver, or the verdict on a certificate.
PERMANENT_TEXTS = re.compile(
    r"\[errno -?\d+\] (name or service not known|nodename nor servname provided, or not known|no address associated with hostname"
    r"|getaddrinfo failed)$|\[ssl: certificate_verify_failed\]"
)
PERMANENT_SOCKET_CODES = frozenset({"eai_noname", "eai_nodata", "certificate_verify_failed"})

# --- what providers answer ---------------------------------------------------------------------------------------

CONTEXT_CODES = frozenset({"context_length_exceeded", "model_context_window_exceeded", "context_window_exceeded"})
CONTEXT_CLASSES = frozenset({"pydantic_ai.ModelContextWindowExceededError"})
CONTEXT_PHRASES = (  # looked for inside the text
    "maximum context length",
    "reduce the length of the messages",
    "prompt is too long",
    "input is too long",
    "input tokens exceeded",
    "input token count",
    "number of tokens allowed",
    "exceeds the context window",
    "exceeds the model's context",
    "exceeds the available context size",
    "context window exceeds limit",
    "context window is full",
    "context length exceeded",
    "context size has been exceeded",
    "greater than the context length",
    "exceeded model token limit",
    "maximum prompt length is",
    "maximum input length",
    "exceeds the limit of tokens",
)

TOO_LARGE_CODES = frozenset({"request_too_large", "payload_too_large", "413"})
TOO_LARGE_PHRASES = (
    "request entity too large",
    "payload too large",
    "request exceeds the maximum size",
    "content too large",
)

QUOTA_CODES = _words("""
    insufficient_quota billing_hard_limit_reached billing_not_active billing_error credit_balance_exhausted
    insufficient_balance organization_spend_limit_exceeded project_spend_limit_exceeded
    organization_usage_limit_exceeded exceeded_current_quota_error servicequotaexceededexception quota_exceeded
    payment_required
""")
AUTH_CODES = _words("""
    invalid_api_key authentication_error permission_error permission_denied unauthenticated account_deactivated
    invalid_organization accessdeniedexception unrecognizedclientexception invalidsignatureexception
    expiredtokenexception expiredtoken
""")
RATE_CODES = _words("""
    rate_limit_exceeded rate_limit_error rate_limit_reached_error rate_limited too_many_requests throttlingexception
    resource_exhausted
""")
OVERLOAD_CODES = _words("""
    overloaded overloaded_error server_error server_is_overloaded service_unavailable service_unavailable_error
    slow_down internal_error internal_server_error api_error timeout_error engine_overloaded unavailable internal
    deadline_exceeded serviceunavailableexception modelnotreadyexception modelstreamerrorexception
    internalserverexception mpagreementbeingcreated
""")
INVALID_CODES = _words("""
    invalid_request_error invalid_prompt invalid_argument validationexception model_not_found not_found_error
    content_filter content_policy_violation unsupported_parameter unsupported_value
""")

STRONG_BILLING = (  # looked for inside the text
    "insufficient quota",
    "insufficient balance",
    "insufficient credit",
    "exceeded your current quota",
    "credit balance is too low",
    "billing hard limit",
    "payment required",
    "out of credits",
)
WEAK_BILLING = ("quota", "billing", "credits", "payment")
RATE_WORDS = ("rate limit", "too many requests", "per minute", "try again later")

CATEGORIES = {  # pydantic-ai's own reading, used where there is neither a status nor a code
    "pydantic_ai.ModelQuotaExceededError": "quota_exhausted",
    "pydantic_ai.ModelRateLimitError": "rate_limit",
    "pydantic_ai.ModelUnavailableError": "server_overload",
    "pydantic_ai.ModelServerError": "server_overload",
    "pydantic_ai.ModelAuthenticationError": "auth",
    "pydantic_ai.ModelRequestRejectedError": "invalid_request",
}

# --- texts that are known only as a whole ------------------------------------------------------------------------

DROP_PHRASES = frozenset(
    {
        "connection error",
        "network connection lost",
        "server disconnected without sending a response",
        "peer closed connection without sending complete message body (incomplete chunked read)",
        "streamed response ended without a `finish_reason`",
        "streamed response ended without content or tool calls",
    }
)

MISSING_KEY_CLASSES = frozenset({"openai.OpenAIError", "pydantic_ai.UserError"})
MISSING_KEY_WORDS = ("api_key", "api key")


# ---------------------------------------------------------------- what a provider's refusal means
# Codes are read first, then words about money, then the status, then the class of the client library's exception.


_QUOTING = frozenset({"pydantic_ai.ModelHTTPError"})  # its message is the status, the model's name and the body


# A provider's status or error object, or both.
@dataclass(frozen=True)
class ProviderResponse:
    status: int | None
    codes: tuple[str, ...]
    text: str
    raised: Raised


def _answer_in(raised: Raised) -> ProviderResponse | None:
    """The provider's answer in this exception: a status, an error object, or the class that its library chose."""
    error = _error_object(raised.body) or _error_object(raised.message)
    codes = [raised.code, *((error.get("code"), error.get("type"), error.get("status")) if error else ())]
    known = tuple(str(code).lower() for code in codes if isinstance(code, str | int))
    if not _is_error(raised.status):
        category = next((name for name in raised.lineage if name in CATEGORIES), None)
        if error is None and category is None and not raised.is_any(CONTEXT_CLASSES):
            return None
    status = raised.status if _is_error(raised.status) else _status_in(known)
    return ProviderResponse(status, known, _words_in(error, raised), raised)


def _words_in(error: Mapping[str, object] | None, raised: Raised) -> str:
    # An error object without a code has its words, and a page of a gateway is words; libraries put the status and more around them.
    body = raised.body
    bodies = [error, body if isinstance(body, Mapping) else None]
    said = [each.get(name) for each in bodies if each for name in ("message", "detail")]
    found = next((each for each in [*said, body] if isinstance(each, str) and each.strip()), None)
    if found is None and raised.is_any(_QUOTING):
        return str(body) if body else ""
    return found or raised.message


def _is_error(status: int | None) -> bool:
    return status is not None and 400 <= status < 600  # noqa: PLR2004 - the range of HTTP's errors


# Gateways send a status in place of a code when the stream had begun with 200.
def _status_in(codes: Iterable[str]) -> int | None:
    return next((int(code) for code in codes if code.isdecimal() and len(code) == 3 and _is_error(int(code))), None)  # noqa: PLR2004


def _error_object(body: object) -> dict[str, object] | None:
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


def _judge_answer(answer: ProviderResponse) -> Failure:
    text = one_line(answer.text)
    hint = hinted_ms(answer.raised.headers)
    bare = Failure(
        FailureKind.HTTP if _is_error(answer.raised.status) else FailureKind.IN_BAND,
        f"the provider answered {answer.status}: {text or 'no reason'}"
        if answer.status
        else f"the provider said: {text}",
        is_transient=False,
        api=ApiKind.INVALID_REQUEST,
        retry_after_ms=hint if hint is not None else answer.raised.retry_after_ms,
    )
    lower = f"{answer.text} {answer.raised.message}".lower()
    if answer.raised.is_any(CONTEXT_CLASSES) or _overflows(answer, lower):
        return replace(bare, kind=FailureKind.CONTEXT_OVERFLOW)
    if _is_too_large(answer, lower):
        return replace(bare, kind=FailureKind.TOO_LARGE)
    api = _kind_of(answer, lower)
    pause_ms = bare.retry_after_ms or 0
    if _may_pass(api, answer) and pause_ms > HINT_MAX_MS:
        words = f"it asks to wait for {math.ceil(pause_ms / 360_000) / 10:g} h, and a turn waits for {HINT_MAX_MS / 3_600_000:g} h at most"
        return replace(bare, api=api, text=f"{bare.text}; {words}")
    return replace(bare, api=api, is_transient=_may_pass(api, answer))


def _judge_redirect(raised: Raised) -> Failure:
    target = {name.lower(): value for name, value in raised.headers.items()}.get("location", "")
    words = (
        f"the provider answered {raised.status}, a redirect to {one_line(target) or 'nowhere'}, which is not followed"
    )
    text = f"{words}: set the provider's address to one that answers itself"
    return Failure(FailureKind.HTTP, text, is_transient=False)


def _overflows(answer: ProviderResponse, lower: str) -> bool:
    if {*answer.codes} & CONTEXT_CODES:
        return True
    return answer.status != 429 and mentions(lower, CONTEXT_PHRASES)  # noqa: PLR2004 - tokens a minute are no context


def _is_too_large(answer: ProviderResponse, lower: str) -> bool:
    if answer.status == 413 or {*answer.codes} & TOO_LARGE_CODES:  # noqa: PLR2004 - Content Too Large
        return True
    return answer.status in (None, 400) and mentions(lower, TOO_LARGE_PHRASES)


_BY_CODE = (
    (QUOTA_CODES, ApiKind.QUOTA_EXHAUSTED),
    (OVERLOAD_CODES, ApiKind.SERVER_OVERLOAD),
    (RATE_CODES, ApiKind.RATE_LIMIT),
    (AUTH_CODES, ApiKind.AUTH),
    (SOCKET_CODES, ApiKind.TRANSPORT_DISCONNECT),
)
_BY_STATUS = {401: ApiKind.AUTH, 403: ApiKind.AUTH, 402: ApiKind.QUOTA_EXHAUSTED, 429: ApiKind.RATE_LIMIT}
_PASSING = frozenset({ApiKind.RATE_LIMIT, ApiKind.SERVER_OVERLOAD, ApiKind.TRANSPORT_DISCONNECT})
_ASK_AGAIN = frozenset({408, 409, 425})  # the request came too slowly, too early, or in somebody's way


def _kind_of(answer: ProviderResponse, lower: str) -> ApiKind:
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
    if {*answer.codes} & INVALID_CODES:
        return ApiKind.INVALID_REQUEST
    category = next((CATEGORIES[name] for name in answer.raised.lineage if name in CATEGORIES), None)
    return ApiKind(category) if category else ApiKind.UNKNOWN


def _is_about_money(status: int | None, lower: str) -> bool:
    if mentions(lower, STRONG_BILLING):
        return True
    return status in (400, 402, 403) and mentions(lower, WEAK_BILLING) and not mentions(lower, RATE_WORDS)


def _may_pass(api: ApiKind, answer: ProviderResponse) -> bool:
    advice = {name.lower(): value for name, value in answer.raised.headers.items()}.get("x-should-retry", "").lower()
    if api in (ApiKind.AUTH, ApiKind.QUOTA_EXHAUSTED):
        return False
    if advice in ("true", "false"):
        return advice == "true"
    return api in _PASSING or (api is ApiKind.UNKNOWN and answer.status in _ASK_AGAIN)


# ---------------------------------------------------------------- the verdict


def classify(raised: Sequence[Raised], *, is_setup: bool = False) -> Failure:
    """The class of a failure, from an exception and its causes, outermost first. `is_setup`: nothing was sent yet."""
    assert raised, "a failure has at least one exception"
    chain = list(raised[:CHAIN_MAX])
    top = chain[0]
    if top.is_any(ABORTS):
        return Failure(FailureKind.ABORTED, "the request was aborted here", is_transient=False)
    if any(_is_missing_key(each) for each in chain):
        return Failure(FailureKind.MISSING_KEY, one_line(top.message), is_transient=False)
    answers = [(index, _answer_in(each)) for index, each in enumerate(chain)]
    at, answer = next(((index, each) for index, each in answers if each is not None), (len(chain), None))
    lost = _lost(chain[:at])
    if lost is not None:
        return lost
    redirect = next((each for each in chain[: at + 1] if each.status is not None and each.status // 100 == 3), None)  # noqa: PLR2004
    if redirect is not None:
        return _judge_redirect(redirect)
    return _judge_bare(chain, is_setup=is_setup) if answer is None else _judge_answer(answer)


def stalled(after_ms: float, *, has_progress: bool, is_alive: bool = False) -> Failure:
    # `is_alive`: there were signs that the provider is there.
    kind = FailureKind.SILENT_STALL if has_progress else FailureKind.CONNECT_STALL
    what = "nothing more" if has_progress else "nothing"
    option = "chat_stream_stall_timeout_ms" if has_progress else "chat_first_token_timeout_ms"
    kept_alive = " but keep-alives" if is_alive else ""
    words = f"{what}{kept_alive} came from the provider for {after_ms / 1000:g} s, the limit of {option}"
    return Failure(kind, words, is_transient=True)


def stream_ended(what: str = "the stream ended before the answer did") -> Failure:
    """The failure of a stream that ended without a terminal `finish_reason`."""
    return Failure(FailureKind.STREAM_END, what, is_transient=True)


def no_answer(received: str) -> Failure:
    """The failure of a response that was whole and held no answer. `received` describes it."""
    words = f"what came has no answer in it: {received}; check the provider's address, and that it can stream"
    return Failure(FailureKind.NO_ANSWER, words, is_transient=True)


def next_delay_ms(attempt: int, failure: Failure, roll: float) -> float:
    if failure.retry_after_ms is not None:
        return min(failure.retry_after_ms, HINT_MAX_MS)
    return jittered_ms(backoff_ms(attempt, FIRST_DELAY_MS, DELAY_MAX_MS), roll)


# --- lost connections --------------------------------------------------------------------------------------------


def _is_missing_key(raised: Raised) -> bool:
    is_theirs = bool(raised.lineage) and raised.lineage[0] in MISSING_KEY_CLASSES
    return is_theirs and mentions(raised.message.lower(), MISSING_KEY_WORDS)


def _lost(chain: list[Raised]) -> Failure | None:
    if not chain:
        return None
    codes = [each.code.lower() for each in chain if each.code and each.status is None]
    text = one_line(next((each.message for each in reversed(chain) if each.message), chain[0].message))
    if any(each.is_any(LOCAL_PRESSURE) for each in chain):
        return Failure(FailureKind.LOCAL_PRESSURE, f"no connection was free: {text}", is_transient=True)
    is_permanent = any(code in PERMANENT_SOCKET_CODES for code in codes)
    if is_permanent or any(
        each.is_any(BAD_CERTIFICATES) or PERMANENT_TEXTS.match(each.message.lower()) for each in chain
    ):
        return Failure(FailureKind.TRANSPORT, f"the provider cannot be reached: {text}", is_transient=False)
    if any(each.is_any(frozenset({"ray.OutOfMemoryError"})) for each in chain):
        return Failure(FailureKind.TRANSPORT, f"out of memory: {text}", is_transient=True)
    if any(each.is_any(DECOMPRESSION) for each in chain):
        return Failure(FailureKind.DECOMPRESSION, f"the answer could not be unpacked: {text}", is_transient=True)
    is_passing = any(code in SOCKET_CODES for code in codes)
    if is_passing or any(each.is_any(DROPS) for each in chain):
        is_garbled = not is_passing and any(each.is_any(GARBLED) for each in chain)
        what = "the provider's answer could not be read" if is_garbled else "the connection was lost"
        return Failure(FailureKind.TRANSPORT, f"{what}: {text}", is_transient=True)
    return None


def _judge_bare(chain: list[Raised], *, is_setup: bool) -> Failure:
    messages = {each.message.strip().rstrip(".").lower() for each in chain}
    text = one_line(chain[0].message or (chain[0].lineage or ("an exception",))[0])
    if messages & DROP_PHRASES:
        if any(message.startswith("streamed response ended") for message in messages):
            return stream_ended(text)
        return Failure(FailureKind.BARE_PHRASE, f"the connection was lost: {text}", is_transient=True)
    kind = FailureKind.SETUP if is_setup else FailureKind.UNKNOWN
    return Failure(kind, text, is_transient=False)
