"""Each way in which a model request fails has one class (E1–E13, spec transport-recovery §1.2), and waits as long as it should."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.policies import Failure, FailureKind, Raised, classify, next_delay_ms, stalled, stream_ended
from perdure.policies.failures import ApiKind
from perdure.policies.transport import (
    AUTH_CODES,
    CONTEXT_PHRASES,
    DROPS,
    GARBLED,
    OVERLOAD_CODES,
    PERMANENT_SOCKET_CODES,
    QUOTA_CODES,
    RATE_CODES,
    SOCKET_CODES,
)

Kind = FailureKind
LOST = Failure(Kind.TRANSPORT, "the connection was lost", is_transient=True)


def raised(name: str = "builtins.Exception", message: str = "it broke", **more: object) -> Raised:
    """An exception of one class; `status=…, code=…, headers=…, body=…, also=[…]` (its ancestors)."""
    also = more.pop("also", ())
    return Raised((name, *also, "builtins.Exception"), message, **more)  # type: ignore[arg-type]


OS_ERROR = "builtins.OSError"
API_DROP = raised("openai.APIConnectionError", "Connection error.")
READ_ERROR = raised("httpx2.ReadError", "", also=["httpx2.NetworkError", "httpx2.TransportError"])
MODEL_DROP = raised("pydantic_ai.ModelConnectionError", "Connection error.", also=["pydantic_ai.ModelAPIError"])


def http(status: int, message: str = "no", **more: object) -> Raised:
    """What pydantic-ai raises for an HTTP status."""
    return raised("pydantic_ai.ModelHTTPError", message, status=status, **more)


def in_band(code: str, message: str = "no") -> Raised:
    """An error object in a stream that began with 200."""
    return raised("openai.APIError", message, body={"code": code, "message": message})


# --- one row a class ---------------------------------------------------------------------------------------------

ROWS = {
    "E1 our own abort": ([raised("asyncio.CancelledError")], Kind.ABORTED, False),
    "E1 a closed generator": ([raised("builtins.GeneratorExit")], Kind.ABORTED, False),
    "E2 no key at the client": (
        [raised("openai.OpenAIError", "The api_key client option must be set")],
        Kind.MISSING_KEY,
        False,
    ),
    "E2 no key at the library": (
        [raised("pydantic_ai.UserError", "Set the OPENAI_API_KEY environment variable")],
        Kind.MISSING_KEY,
        False,
    ),
    "E3 deep in the chain": ([MODEL_DROP, API_DROP, READ_ERROR], Kind.TRANSPORT, True),
    "E3 a name that nobody has": (
        [MODEL_DROP, API_DROP, raised("socket.gaierror", code="EAI_NONAME", also=[OS_ERROR])],
        Kind.TRANSPORT,
        False,
    ),
    "E3 a name server that is busy": ([MODEL_DROP, raised("socket.gaierror", code="EAI_AGAIN")], Kind.TRANSPORT, True),
    "E3 a certificate": (
        [API_DROP, raised("ssl.SSLCertVerificationError", also=["ssl.SSLError"])],
        Kind.TRANSPORT,
        False,
    ),
    "E3 another TLS error": (
        [API_DROP, raised("ssl.SSLError", code="SSLV3_ALERT_BAD_RECORD_MAC")],
        Kind.TRANSPORT,
        True,
    ),
    "E3 a frame that was cut": ([raised("json.JSONDecodeError", also=["builtins.ValueError"])], Kind.TRANSPORT, True),
    "E3 the actor that streamed": (
        [raised("ray.ActorDiedError", also=["ray.RayActorError", "ray.RayError"])],
        Kind.TRANSPORT,
        True,
    ),
    "pool": (
        [raised("openai.APITimeoutError", also=["openai.APIConnectionError"]), raised("httpx2.PoolTimeout")],
        Kind.LOCAL_PRESSURE,
        True,
    ),
    "E4 zlib": ([raised("httpx2.DecodingError"), raised("zlib.error")], Kind.DECOMPRESSION, True),
    "E5 overload": ([http(503), raised("openai.InternalServerError", status=503), READ_ERROR], Kind.HTTP, True),
    "E5 refusal": ([http(400)], Kind.HTTP, False),
    "E6 a known code": ([in_band("rate_limit_exceeded")], Kind.IN_BAND, True),
    "E6 an unknown code": ([in_band("something_rate_limit_like")], Kind.IN_BAND, False),
    "E6 as the text of an error": (
        [raised(message='{"error": {"code": "overloaded_error", "message": "busy"}}')],
        Kind.IN_BAND,
        True,
    ),
    "E6 in the body of the cause": (
        [raised("my.Wrapper"), raised("my.Cause", body={"error": {"type": "overloaded_error", "message": "busy"}})],
        Kind.IN_BAND,
        True,
    ),
    "E7 by code": ([in_band("context_length_exceeded")], Kind.CONTEXT_OVERFLOW, False),
    "E7 wins over 413": ([http(413, "prompt is too long: 210000 tokens")], Kind.CONTEXT_OVERFLOW, False),
    "E8 by status": ([http(413)], Kind.TOO_LARGE, False),
    "E8 by the words alone": ([http(400, "Request Entity Too Large")], Kind.TOO_LARGE, False),
    "E9 the whole message": ([raised(message=" Network connection lost. ")], Kind.BARE_PHRASE, True),
    "stream end": (
        [raised("pydantic_ai.UnexpectedModelBehavior", "Streamed response ended without content or tool calls")],
        Kind.STREAM_END,
        True,
    ),
    "E13 a bug": ([raised("builtins.KeyError", "'x'")], Kind.UNKNOWN, False),
}


@pytest.mark.parametrize(("chain", "kind", "is_transient"), ROWS.values(), ids=ROWS)
def test_each_failure_has_its_class(chain: list[Raised], kind: FailureKind, is_transient: bool) -> None:
    failure = classify(chain)
    assert (failure.kind, failure.is_transient) == (kind, is_transient)
    assert failure.text
    assert "\n" not in failure.text


def test_the_watchdogs_failures_and_a_stream_without_an_end_are_transient_losses() -> None:
    """E10, E11 and §1.5: at the system we answer the last two passed for success (weakness B5)."""
    first, later, end = stalled(30_000, has_progress=False), stalled(600_000, has_progress=True), stream_ended()
    assert [each.kind for each in (first, later, end)] == [Kind.CONNECT_STALL, Kind.SILENT_STALL, Kind.STREAM_END]
    assert all(each.is_transient and each.is_transport and each.burns_budget for each in (first, later, end))
    assert first.text == "nothing came from the provider for 30 s, the limit of chat_first_token_timeout_ms"
    assert later.text == "nothing more came from the provider for 600 s, the limit of chat_stream_stall_timeout_ms"


@pytest.mark.parametrize("name", sorted(GARBLED))
def test_a_frame_that_cannot_be_read_is_told_as_such_and_is_a_loss_like_any(name: str) -> None:
    failure = classify([raised(name, "Expecting value")])
    assert (failure.kind, failure.is_transient) == (Kind.TRANSPORT, True)
    assert failure.text == "the provider's answer could not be read: Expecting value"
    reset = raised("builtins.ConnectionResetError", "reset", code="ECONNRESET")
    for lost in ([READ_ERROR], [raised(name, "Expecting value"), reset]):
        assert classify(lost).text.startswith("the connection was lost")


QUOTED = "status_code: 429, model_name: m, body: …"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"message": "Rate limit"}, "Rate limit"),
        ({"detail": "Not here"}, "Not here"),
        ({"message": "", "detail": "Not here"}, "Not here"),
        ("<html>Bad gateway</html>", "<html>Bad gateway</html>"),
        ({"odd": 1}, "{'odd': 1}"),
        ({"detail": [1]}, "{'detail': [1]}"),
        (None, "no reason"),
        ("", "no reason"),
    ],
)
def test_of_a_refusal_people_are_told_the_providers_words_alone(body: object, words: str) -> None:
    """Also where it has no code, so that it is no error object; not what a library has put around it."""
    assert classify([http(429, QUOTED, body=body)]).text == f"the provider answered 429: {words}"


def test_a_refusal_of_another_library_has_its_words() -> None:
    assert classify([raised("my.Error", "Slow down", status=429)]).text == "the provider answered 429: Slow down"


@pytest.mark.parametrize("body", [None, "<html>Moved</html>", {"message": "moved", "type": "x"}])
def test_a_redirect_is_told_with_its_target_and_ends_the_turn(body: object) -> None:
    headers = {"Location": "https://login.example/?key=abcdefgh"}
    moved = raised("openai.APIStatusError", "Error code: 302", status=302, headers=headers, body=body)
    failure = classify([raised("pydantic_ai.ModelAPIError", "Error code: 302"), moved], is_setup=True)
    assert (failure.kind, failure.is_transient) == (Kind.HTTP, False)
    assert "answered 302, a redirect to https://login.example/?key=[key], which is not followed" in failure.text
    assert "a redirect to nowhere" in classify([raised("my.Error", status=308)]).text
    assert "answered 400" in classify([http(400), moved]).text, "the outer one counts"


def test_e12_what_breaks_before_anything_is_sent_is_a_failure_of_the_setup() -> None:
    failure = classify([raised("builtins.TypeError", "bad settings")], is_setup=True)
    assert (failure.kind, failure.is_transient) == (Kind.SETUP, False)


def test_a_cancellation_behind_a_timeout_is_the_timeout() -> None:
    chain = [raised("httpx2.ReadTimeout", also=["httpx2.TimeoutException"]), raised("asyncio.CancelledError")]
    assert classify(chain).kind is Kind.TRANSPORT


def test_a_full_pool_of_our_own_uses_up_no_budget() -> None:
    assert not classify([raised("httpx2.PoolTimeout")]).burns_budget
    assert LOST.burns_budget


def test_a_process_that_was_killed_for_its_memory_is_told_apart() -> None:
    assert classify([raised("ray.OutOfMemoryError", "killed")]).text == "out of memory: killed"


# --- case 58 -----------------------------------------------------------------------------------------------------


@pytest.mark.shows(transport_recovery="58")
@pytest.mark.parametrize("code", sorted(SOCKET_CODES))
@pytest.mark.parametrize("depth", range(5))
def test_case_58_every_socket_code_is_transient_at_the_top_and_down_the_chain(code: str, depth: int) -> None:
    chain = [*[raised("my.Wrapper")] * depth, raised(OS_ERROR, code=code.upper())]
    failure = classify(chain)
    assert (failure.kind, failure.is_transient) == (Kind.TRANSPORT, True)


@pytest.mark.parametrize("code", sorted(PERMANENT_SOCKET_CODES))
def test_case_58_a_host_that_does_not_exist_or_cannot_be_trusted_is_not_asked_again(code: str) -> None:
    failure = classify([MODEL_DROP, raised(OS_ERROR, code=code.upper())])
    assert failure.is_transport
    assert not failure.is_transient


@pytest.mark.parametrize(
    "text",
    [
        "[Errno -2] Name or service not known",
        "[Errno 8] nodename nor servname provided, or not known",
        "[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
    ],
)
def test_case_58_the_same_is_known_by_the_words_of_the_system_when_the_client_lost_the_code(text: str) -> None:
    drop = raised("httpx2.ConnectError", text, also=["httpx2.NetworkError"])
    assert not classify([MODEL_DROP, API_DROP, drop]).is_transient
    assert classify(
        [API_DROP, raised("httpx2.ConnectError", f"proxy said: {text}", also=["httpx2.NetworkError"])]
    ).is_transient


@pytest.mark.parametrize("name", sorted(DROPS))
def test_case_58_every_class_of_a_lost_connection_is_known_and_so_are_its_descendants(name: str) -> None:
    assert classify([raised("my.Own", also=[name])]).kind is Kind.TRANSPORT


@pytest.mark.parametrize("status", [400, 401, 404])
def test_case_58_an_http_status_outranks_a_socket_code_behind_it(status: int) -> None:
    failure = classify([http(status), raised(OS_ERROR, code="ECONNRESET")])
    assert (failure.kind, failure.is_transient) == (Kind.HTTP, False)


def test_a_socket_code_outranks_the_answer_to_an_earlier_request_behind_it() -> None:
    assert classify([READ_ERROR, http(401)]).kind is Kind.TRANSPORT


@pytest.mark.parametrize(
    "text", ["terminated", "We saw: Connection error. Please pay.", "network connection lost and found"]
)
def test_case_58_a_phrase_counts_only_as_the_whole_message(text: str) -> None:
    assert classify([raised(message=text)]).kind is Kind.UNKNOWN


def test_a_chain_is_read_to_a_bounded_depth() -> None:
    assert classify([*[raised("my.Wrapper")] * 50, READ_ERROR]).kind is Kind.UNKNOWN


# --- case 59 -----------------------------------------------------------------------------------------------------

A = ApiKind
BY_STATUS = {
    400: (A.INVALID_REQUEST, False),
    401: (A.AUTH, False),
    402: (A.QUOTA_EXHAUSTED, False),
    403: (A.AUTH, False),
    404: (A.INVALID_REQUEST, False),
    405: (A.INVALID_REQUEST, False),
    408: (A.UNKNOWN, True),
    409: (A.UNKNOWN, True),
    422: (A.INVALID_REQUEST, False),
    425: (A.UNKNOWN, True),
    429: (A.RATE_LIMIT, True),
    500: (A.SERVER_OVERLOAD, True),
    502: (A.SERVER_OVERLOAD, True),
    503: (A.SERVER_OVERLOAD, True),
    504: (A.SERVER_OVERLOAD, True),
    524: (A.SERVER_OVERLOAD, True),
    529: (A.SERVER_OVERLOAD, True),
}


@pytest.mark.shows(transport_recovery="59")
@pytest.mark.parametrize(("status", "expected"), BY_STATUS.items())
def test_case_59_a_bare_status_has_its_kind(status: int, expected: tuple[ApiKind, bool]) -> None:
    failure = classify([http(status)])
    assert (failure.api, failure.is_transient) == expected
    assert not failure.is_transport


CODES = {
    **dict.fromkeys(QUOTA_CODES, A.QUOTA_EXHAUSTED),
    **dict.fromkeys(AUTH_CODES, A.AUTH),
    **dict.fromkeys(RATE_CODES, A.RATE_LIMIT),
    **dict.fromkeys(OVERLOAD_CODES, A.SERVER_OVERLOAD),
    **dict.fromkeys(SOCKET_CODES, A.TRANSPORT_DISCONNECT),
    "invalid_prompt": A.INVALID_REQUEST,
    "never_heard_of": A.UNKNOWN,
    "429": A.RATE_LIMIT,
    "503": A.SERVER_OVERLOAD,
}


@pytest.mark.parametrize(("code", "kind"), sorted(CODES.items()), ids=sorted(CODES))
def test_case_59_a_typed_code_inside_a_stream_has_its_kind(code: str, kind: ApiKind) -> None:
    failure = classify([in_band(code)])
    assert failure.api is kind
    assert failure.is_transient is (kind in (A.RATE_LIMIT, A.SERVER_OVERLOAD, A.TRANSPORT_DISCONNECT))


SPECIAL = {
    "a 429 whose code says that the money is gone": (http(429, code="insufficient_quota"), A.QUOTA_EXHAUSTED),
    "a 401 whose code says that there is no capacity": (http(401, code="engine_overloaded"), A.SERVER_OVERLOAD),
    "strong words about money on a 400": (http(400, "Your credit balance is too low"), A.QUOTA_EXHAUSTED),
    "the same words on a 500": (http(500, "Your credit balance is too low"), A.SERVER_OVERLOAD),
    "the same words on a 429": (http(429, "You exceeded your current quota"), A.RATE_LIMIT),
    "weak words about money on a 403": (http(403, "Check your billing"), A.QUOTA_EXHAUSTED),
    "weak words beside a rate limit": (http(403, "quota of requests per minute"), A.AUTH),
    "weak words on a 404": (http(404, "no billing page"), A.INVALID_REQUEST),
    "pydantic-ai's own reading": (
        raised("pydantic_ai.ModelOverloadedError", also=["pydantic_ai.ModelUnavailableError"]),
        A.SERVER_OVERLOAD,
    ),
}


@pytest.mark.parametrize(("error", "kind"), SPECIAL.values(), ids=SPECIAL)
def test_case_59_codes_then_words_about_money_then_the_status_decide(error: Raised, kind: ApiKind) -> None:
    assert classify([error]).api is kind


@pytest.mark.shows(chat_recovery="C-0855")
@pytest.mark.parametrize("phrase", CONTEXT_PHRASES)
def test_e7_every_phrase_of_an_overflow_is_known_but_not_in_a_rate_limit(phrase: str) -> None:
    assert classify([http(400, f"Sorry: {phrase}!")]).kind is Kind.CONTEXT_OVERFLOW
    assert classify([http(429, f"Sorry: {phrase}!")]).kind is Kind.HTTP


@pytest.mark.shows(chat_recovery="C-0856")
@pytest.mark.parametrize(
    "words", ["Invalid tool schema", "The file is too large", "Unknown model", "No credit is left", ""]
)
def test_e7_what_is_said_of_other_things_is_no_overflow(words: str) -> None:
    assert classify([http(400, words)]).kind is not Kind.CONTEXT_OVERFLOW
    assert classify([in_band("invalid_request_error")]).kind is not Kind.CONTEXT_OVERFLOW


def test_a_server_that_says_whether_to_retry_is_believed_but_not_about_keys_and_money() -> None:
    yes, no = {"X-Should-Retry": "true"}, {"x-should-retry": "false"}
    assert classify([http(404, headers=yes)]).is_transient
    assert not classify([http(503, headers=no)]).is_transient
    assert not classify([http(401, headers=yes)]).is_transient


# --- case 56 -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("roll", "expected"), [(0.0, 1_000), (0.5, 1_500), (0.999, 1_999)])
def test_case_56_the_first_pause_is_two_seconds_with_equal_jitter(roll: float, expected: float) -> None:
    assert next_delay_ms(1, LOST, roll) == pytest.approx(expected)


def test_case_56_pauses_double_up_to_thirty_seconds() -> None:
    assert [next_delay_ms(n, LOST, 0) * 2 for n in range(1, 8)] == [2_000, 4_000, 8_000, 16_000, 30_000, 30_000, 30_000]


AT_40_S = "Thu, 01 Jan 1970 00:00:40 GMT"
HINTS = {
    "milliseconds": ({"retry-after-ms": "1500"}, 1_500),
    "milliseconds before seconds": ({"retry-after-ms": "1500", "Retry-After": "9"}, 1_500),
    "seconds": ({"Retry-After": "60"}, 60_000),
    "a fraction": ({"RETRY-AFTER": "0.5"}, 500),
    "a date": ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT", "date": AT_40_S}, 60_000),
    "a date that has passed": ({"Retry-After": "Thu, 01 Jan 1970 00:00:01 GMT", "date": AT_40_S}, 0),
    "a date in an answer without one": ({"Retry-After": "Thu, 01 Jan 1970 00:01:40 GMT"}, None),
    "words": ({"Retry-After": "soon"}, None),
    "a negative number": ({"Retry-After": "-5"}, None),
    "not a number": ({"Retry-After": "nan"}, None),
    "infinity": ({"Retry-After": "inf"}, None),
    "milliseconds that cannot be read": ({"retry-after-ms": "x", "retry-after": "2"}, 2_000),
    "for ever": ({"Retry-After": "99999999999"}, 2**31 - 1),
    "nothing": ({}, None),
}


@pytest.mark.shows(transport_recovery="56")
@pytest.mark.parametrize(("headers", "expected"), HINTS.values(), ids=HINTS)
def test_case_56_a_servers_hint_is_read_in_every_form(headers: dict[str, str], expected: float | None) -> None:
    assert classify([http(429, headers=headers)]).retry_after_ms == expected


@pytest.mark.parametrize("asked_s", [60, 601, 3_600])
def test_case_56_a_hint_is_kept_exactly_for_an_hour_at_most(asked_s: int) -> None:
    patient = classify([http(429, headers={"retry-after": f"{asked_s}"})])
    assert patient.is_transient
    assert [next_delay_ms(1, patient, roll) for roll in (0, 0.9)] == [asked_s * 1000] * 2


@pytest.mark.parametrize(("asked_s", "hours"), [(3_601, "1.1"), (86_400, "24")])
def test_a_provider_that_asks_for_a_longer_pause_has_refused(asked_s: int, hours: str) -> None:
    """It would refuse whoever came back earlier, again and again."""
    for refused in (http(429, headers={"retry-after": f"{asked_s}"}), http(503, retry_after_ms=asked_s * 1000.0)):
        failure = classify([refused])
        assert not failure.is_transient
        assert failure.text.endswith(f"; it asks to wait for {hours} h, and a turn waits for 1 h at most")


def test_a_hint_that_only_the_library_could_read_is_kept_too() -> None:
    assert classify([http(429, retry_after_ms=14_000.0)]).retry_after_ms == 14_000


@pytest.mark.shows(transport_recovery="A11")
def test_a11_two_agents_that_lose_the_same_provider_do_not_return_at_the_same_instant() -> None:
    assert next_delay_ms(3, LOST, 0.1) != next_delay_ms(3, LOST, 0.7)


@given(st.integers(1, 10**6), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 1e12))
def test_a_pause_is_always_bounded(attempt: int, roll: float, hint: float | None) -> None:
    delay = next_delay_ms(attempt, Failure(Kind.HTTP, "no", is_transient=True, retry_after_ms=hint), roll)
    assert 0 <= delay <= (30_000 if hint is None else 3_600_000)


RAISED = st.builds(
    Raised,
    lineage=st.lists(
        st.sampled_from([*sorted(DROPS), "my.Own", "openai.APIError", "asyncio.CancelledError"]), max_size=3
    ).map(tuple),
    message=st.text(max_size=40),
    status=st.none() | st.integers(0, 700),
    code=st.none() | st.text(max_size=12),
    headers=st.dictionaries(
        st.sampled_from(["Retry-After", "retry-after-ms", "x-should-retry", "date"]), st.text(max_size=12)
    ),
    body=st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: st.dictionaries(st.sampled_from(["error", "code", "type", "message"]), inner),
    ),
)


@given(st.lists(RAISED, min_size=1, max_size=12), st.booleans())
def test_whatever_is_raised_has_a_class_and_one_line(chain: list[Raised], setup: bool) -> None:
    failure = classify(chain, is_setup=setup)
    assert isinstance(failure.kind, FailureKind)
    assert "\n" not in failure.text
