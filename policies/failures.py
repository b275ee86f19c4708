"""What is known of a model request that failed: the exceptions as plain data, and the verdict on them.

`policies.transport` judges; the names are here because the judgement of a connection and that of an answer both speak them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

TEXT_MAX = 500


@dataclass(frozen=True)
class Raised:
    """One exception as plain data: the one that was raised, or one behind it (`__cause__`, else a `__context__` not suppressed).

    `lineage` names its classes from its own to the root as `package.Class`, the package being the first name of the module's path.
    `code` is an errno's name (`ECONNRESET`, `EAI_NONAME`), an SSL reason, or the code that an API gave. `retry_after_ms` is what the
    library itself read of a hint; headers are read first.
    """

    lineage: tuple[str, ...]
    message: str = ""
    status: int | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: object = None
    retry_after_ms: float | None = None

    def is_any(self, names: frozenset[str]) -> bool:
        """Whether it is, or descends from, one of these classes. The numbered packages count as their elders."""
        return any(_elder(each) in names for each in self.lineage)


class FailureKind(StrEnum):
    """The class of a failure: E1–E13 of the table in `policies.transport`, by name."""

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
    SETUP = "setup"
    UNKNOWN = "unknown"


class ApiKind(StrEnum):
    """What a provider's answer means (spec transport-recovery §1.3)."""

    AUTH = "auth"
    QUOTA_EXHAUSTED = "quota_exhausted"
    INVALID_REQUEST = "invalid_request"
    RATE_LIMIT = "rate_limit"
    SERVER_OVERLOAD = "server_overload"
    TRANSPORT_DISCONNECT = "transport_disconnect"
    UNKNOWN = "unknown"


_TRANSPORT = frozenset({"transport", "decompression", "bare_phrase", "connect_stall", "silent_stall", "stream_end"})


@dataclass(frozen=True)
class Failure:
    """Why a model request failed. `text` is one line for people; `is_transient`: the same request could succeed later."""

    kind: FailureKind
    text: str
    is_transient: bool
    api: ApiKind | None = None
    status: int | None = None
    code: str | None = None
    retry_after_ms: float | None = None

    @property
    def is_transport(self) -> bool:
        """Whether it was the connection, and not what the provider said."""
        return self.kind in _TRANSPORT or self.api is ApiKind.TRANSPORT_DISCONNECT

    @property
    def burns_budget(self) -> bool:
        """Whether another try counts. A full pool of our own does not: nothing was sent."""
        return self.kind is not FailureKind.LOCAL_PRESSURE

    @property
    def is_out_of_memory(self) -> bool:
        """Whether the process that streamed was killed for its memory; such deaths have a budget of their own."""
        return self.code == "OUT_OF_MEMORY"


def _elder(name: str) -> str:
    package, _, each = name.partition(".")
    return f"{package.removesuffix('2') if package in ('httpx2', 'httpcore2') else package}.{each}"


def mentions(text: str, phrases: Iterable[str]) -> bool:
    """Whether one of the phrases stands in the text."""
    return any(phrase in text for phrase in phrases)


_SECRETS = re.compile(r"\b(?:sk|pk|rk)-[\w*-]{6,}|\bAIza[\w-]{10,}|(?<=[?&]key=)[^&\s]+|(?i:(?<=\bbearer )\S+)")


def one_line(text: str) -> str:
    """One line of bounded length, for people, the model and whoever observes: what looks like a key is left out (case 55)."""
    flat = _SECRETS.sub("[key]", " ".join(text.split()))
    return flat if len(flat) <= TEXT_MAX else flat[: TEXT_MAX - 1] + "…"
