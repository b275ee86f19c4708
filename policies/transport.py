"""Why a model request failed: one verdict from an exception and its causes.

*Could the same request succeed later?* is answered here, from the error alone. *May it be sent again?* depends on what had already
happened, and is answered in `policies.phases`.

The first test that holds decides, in this order:

| | class | known by | transient |
|---|---|---|---|
| E1 | `aborted` | we raised it, or the connection broke while we were aborting | no |
| E2 | `missing_key` | the client says that it has no key | no |
| – | `local_pressure` | our own pool or limiter was full; nothing was sent, so it costs no budget | yes |
| E3 | `transport` | a class or an errno of a lost connection, with no HTTP status above it | yes; unknown host, bad certificate: no |
| E4 | `decompression` | the body could not be unpacked | yes |
| E5 | `http` | an HTTP status of 400 or more | by kind, see `ApiKind` |
| E6 | `in_band` | an error object inside a stream that began well | by its code; an unknown code is terminal |
| E7 | `context_overflow` | a code or a phrase, whatever the status (but for 429) | no: the transcript must shrink |
| E8 | `too_large` | 413 | no: the request must shrink |
| E9 | `bare_phrase` | the whole message is a known phrase | yes |
| E10 | `connect_stall` | the watchdog: nothing came | yes |
| E11 | `silent_stall` | the watchdog: nothing more came | yes |
| – | `stream_end` | the stream ended before the answer | yes |
| E12 | `setup` | the request could not be built | no |
| E13 | `unknown` | none of these | no |

E7 and then E8 are looked for inside an answer (E5, E6). Of a status and a socket code, the outer one counts: a status with a socket code as
its cause is an answer, and a socket code with a status as its cause came after an earlier answer. Words about billing outrank a status,
except for 5xx and 429.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.policies import transport_signs as signs
from perdure.policies.failures import Failure, FailureKind, Raised, mentions, one_line
from perdure.policies.provider_errors import answer_in, judge_answer
from perdure.policies.retry import backoff_ms, jittered_ms

CHAIN_MAX = 8
FIRST_DELAY_MS = 2_000
DELAY_MAX_MS = 30_000
HINT_MAX_MS = 600_000


def classify(
    raised: Sequence[Raised], *, now_ms: float | None = None, is_aborting: bool = False, is_setup: bool = False
) -> Failure:
    """The class of a failure, from an exception and its causes, outermost first.

    `now_ms` is needed for hints that are dates. `is_aborting`: we were closing the stream. `is_setup`: nothing was sent yet.
    """
    assert raised, "a failure has at least one exception"
    chain = list(raised[:CHAIN_MAX])
    top = chain[0]
    if top.is_any(signs.ABORTS):
        return Failure(FailureKind.ABORTED, "the request was aborted here", is_transient=False)
    if any(_is_missing_key(each) for each in chain):
        return Failure(FailureKind.MISSING_KEY, one_line(top.message), is_transient=False)
    answers = [(index, answer_in(each)) for index, each in enumerate(chain)]
    at, answer = next(((index, each) for index, each in answers if each is not None), (len(chain), None))
    lost = _lost(chain[:at])
    if lost is not None:
        return Failure(FailureKind.ABORTED, lost.text, is_transient=False) if is_aborting else lost
    if answer is not None:
        return judge_answer(answer, now_ms)
    return _judge_bare(chain, is_aborting=is_aborting, is_setup=is_setup)


def stalled(after_ms: float, *, has_progress: bool) -> Failure:
    """The failure that the watchdog declares (E10, E11)."""
    kind = FailureKind.SILENT_STALL if has_progress else FailureKind.CONNECT_STALL
    what = "nothing more" if has_progress else "nothing"
    return Failure(kind, f"{what} came from the provider for {after_ms / 1000:g} s", is_transient=True)


def stream_ended(what: str = "the stream ended before the answer did") -> Failure:
    """The failure of a stream that ended without a terminal `finish_reason`."""
    return Failure(FailureKind.STREAM_END, what, is_transient=True)


def next_delay_ms(attempt: int, failure: Failure, roll: float) -> float:
    """The pause before recovery attempt `attempt` (1, 2, …): what the provider asked for, up to `HINT_MAX_MS`, else a jittered backoff."""
    if failure.retry_after_ms is not None:
        return min(failure.retry_after_ms, HINT_MAX_MS)
    return jittered_ms(backoff_ms(attempt, FIRST_DELAY_MS, DELAY_MAX_MS), roll)


# --- lost connections --------------------------------------------------------------------------------------------


def _is_missing_key(raised: Raised) -> bool:
    is_theirs = bool(raised.lineage) and raised.lineage[0] in signs.MISSING_KEY_CLASSES
    return is_theirs and mentions(raised.message.lower(), signs.MISSING_KEY_WORDS)


def _lost(chain: list[Raised]) -> Failure | None:
    """A broken connection, a body that could not be unpacked, or a full pool; None if these exceptions say none of it."""
    if not chain:
        return None
    codes = [each.code.lower() for each in chain if each.code and each.status is None]
    text = one_line(next((each.message for each in reversed(chain) if each.message), chain[0].message))
    if any(each.is_any(signs.LOCAL_PRESSURE) for each in chain):
        return Failure(FailureKind.LOCAL_PRESSURE, f"no connection was free: {text}", is_transient=True)
    permanent = next((code for code in codes if code in signs.PERMANENT_SOCKET_CODES), None)
    if permanent or any(_is_permanent(each) for each in chain):
        return Failure(FailureKind.TRANSPORT, f"the provider cannot be reached: {text}", False, code=permanent)
    passing = next((code for code in codes if code in signs.SOCKET_CODES), None)
    if any(each.is_any(frozenset({"ray.OutOfMemoryError"})) for each in chain):
        return Failure(FailureKind.TRANSPORT, f"out of memory: {text}", is_transient=True, code="OUT_OF_MEMORY")
    if any(each.is_any(signs.DECOMPRESSION) for each in chain):
        return Failure(FailureKind.DECOMPRESSION, f"the answer could not be unpacked: {text}", is_transient=True)
    if passing or any(each.is_any(signs.DROPS) for each in chain):
        return Failure(FailureKind.TRANSPORT, f"the connection was lost: {text}", is_transient=True, code=passing)
    return None


def _is_permanent(raised: Raised) -> bool:
    return raised.is_any(signs.BAD_CERTIFICATES) or bool(signs.PERMANENT_TEXTS.match(raised.message.lower()))


def _judge_bare(chain: list[Raised], *, is_aborting: bool, is_setup: bool) -> Failure:
    """The last tests, for exceptions without a sign of the network or an answer."""
    messages = {each.message.strip().rstrip(".").lower() for each in chain}
    text = one_line(chain[0].message or (chain[0].lineage or ("an exception",))[0])
    if messages & signs.DROP_PHRASES:
        if is_aborting:
            return Failure(FailureKind.ABORTED, text, is_transient=False)
        if any(message.startswith("streamed response ended") for message in messages):
            return stream_ended(text)
        return Failure(FailureKind.BARE_PHRASE, f"the connection was lost: {text}", is_transient=True)
    kind = FailureKind.SETUP if is_setup else FailureKind.UNKNOWN
    return Failure(kind, text, is_transient=False)
