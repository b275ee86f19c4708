"""A failed model request: the exceptions as plain data, and the verdict on them. `policies.transport` judges."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

TEXT_MAX = 500


@dataclass(frozen=True)
class Raised:
    """One exception as plain data: the one that was raised, or a cause (`__cause__`, else a `__context__` that is not suppressed).

    `lineage` names its class and the base classes as `package.Class`. `code` is an errno's name (`ECONNRESET`), an SSL reason, or a code of
    the API. `retry_after_ms` is the hint that the library read; headers come first.
    """

    lineage: tuple[str, ...]
    message: str = ""
    status: int | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    retry_after_ms: float | None = None

    def is_any(self, names: frozenset[str]) -> bool:
        return any(_elder(each) in names for each in self.lineage)


# The classes of the table in `policies.transport`.
class FailureKind(StrEnum):
    ABORTED = "aborted"
    MISSING_KEY = "missing_key"
    LOCAL_PRESSURE = "local_pressure"
    TRANSPORT = "transport"
    DECOMPRESSION = "decompression"
    HTTP = "http"
    IN_BAND = "in_band"
    CONTEXT_OVERFLOW = "context_overflow"
    TOO_LARGE = "too_large"
    BARE_PHRASE = "bare_phrase"
    CONNECT_STALL = "connect_stall"
    SILENT_STALL = "silent_stall"
    STREAM_END = "stream_end"
    NO_ANSWER = "no_answer"
    SETUP = "setup"
    UNKNOWN = "unknown"


class ApiKind(StrEnum):
    AUTH = "auth"
    QUOTA_EXHAUSTED = "quota_exhausted"
    INVALID_REQUEST = "invalid_request"
    RATE_LIMIT = "rate_limit"
    SERVER_OVERLOAD = "server_overload"
    TRANSPORT_DISCONNECT = "transport_disconnect"
    UNKNOWN = "unknown"


_TRANSPORT = frozenset({"transport", "decompression", "bare_phrase", "connect_stall", "silent_stall", "stream_end"})


# `text` is one line for people. `is_transient`: the same request could succeed later.
@dataclass(frozen=True)
class Failure:
    kind: FailureKind
    text: str
    is_transient: bool
    api: ApiKind | None = None
    retry_after_ms: float | None = None

    @property
    def is_transport(self) -> bool:
        return self.kind in _TRANSPORT or self.api is ApiKind.TRANSPORT_DISCONNECT

    @property
    def burns_budget(self) -> bool:
        return self.kind is not FailureKind.LOCAL_PRESSURE  # then nothing was sent


# `httpx2` and `httpcore2` count as `httpx` and `httpcore`.
def _elder(name: str) -> str:
    package, _, each = name.partition(".")
    return f"{package.removesuffix('2') if package in ('httpx2', 'httpcore2') else package}.{each}"


def mentions(text: str, phrases: Iterable[str]) -> bool:
    return any(phrase in text for phrase in phrases)


# Clients quote keys and addresses in their messages, and a failure is shown and stored.
_SECRETS = re.compile(r"\b(?:sk|pk|rk)-[\w*-]{6,}|\bAIza[\w-]{10,}|(?<=[?&]key=)[^&\s]+|(?i:(?<=\bbearer )\S+)")


def one_line(text: str) -> str:
    flat = _SECRETS.sub("[key]", " ".join(text.split()))
    return flat if len(flat) <= TEXT_MAX else flat[: TEXT_MAX - 1] + "…"
