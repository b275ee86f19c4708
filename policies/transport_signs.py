"""The names, codes and words by which `policies.transport` classifies a failed model request.

Classes are named `package.Class`; httpx2 and httpcore2 count as httpx and httpcore. Codes and words are lower case. Codes must match whole.
"""

from __future__ import annotations

import re


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
