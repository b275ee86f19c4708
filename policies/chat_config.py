"""How a chat agent is configured: how it recovers and what its hooks are told, and what it does when a conversation grows too long."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

from perdure.policies.numbers import INFINITY, is_number, number, whole
from perdure.policies.ui_messages import Part

T = TypeVar("T")

TERMINAL_MESSAGE = "The assistant was interrupted and could not recover. Please try again."


@dataclass(frozen=True, kw_only=True)
class ChatRecovery:
    """The bounds of recovery, in ms. With `chat_recovery = False` an interrupted turn ends instead.

    `max_attempts` counts recoveries in a row, after the first attempt: with 3, a turn that ends its process each time is begun 4 times. A
    finished step or a settled call begins the count anew, and after a death also words that were streamed. Deaths before the turn was at
    work again count once in 30 s. A turn may stall 20 times in all. `stable_timeout_ms` is how
    long a recovery waits for the calls that are under way, before it tells of the interruption and asks the hooks; what is still at work
    goes on, and the next request waits for it.

    Numbers are clamped: `max_attempts` to at least 1 and durations to at least 0, both rounded down. A `max_recovery_work` or
    `max_oom_retries` below 0 means the default; infinity switches the former off. A value that is not a number is a TypeError.
    `should_keep_recovering(context)` may be sync or async. Only False ends the recovery; an exception does not. `on_exhausted(context)` is
    awaited before people are told. `parked_deadline_ms` is how long a turn waits for a person.
    """

    max_attempts: int = 10
    stable_timeout_ms: int = 10_000
    terminal_message: str = TERMINAL_MESSAGE
    no_progress_timeout_ms: int = 300_000
    max_recovery_work: float = 1_000
    max_oom_retries: int = 3
    parked_deadline_ms: float = INFINITY
    should_keep_recovering: Callable[[ProgressContext], Any] | None = None
    on_exhausted: Callable[[ExhaustedContext], Any] | None = None
    is_on: bool = True

    def __post_init__(self) -> None:
        self._clamp("max_attempts", least=1, is_whole=True)
        self._clamp("stable_timeout_ms", least=0, is_whole=True)
        self._clamp("no_progress_timeout_ms", least=0, is_whole=True)
        self._clamp("parked_deadline_ms", least=0)
        self._clamp("max_recovery_work", least=None)
        self._clamp("max_oom_retries", least=None, is_whole=True)
        if not isinstance(self.is_on, bool):
            raise TypeError(f"is_on: {self.is_on!r} is neither True nor False")
        if not isinstance(self.terminal_message, str):
            raise TypeError(f"terminal_message: {self.terminal_message!r} is not a text")
        for name in ("should_keep_recovering", "on_exhausted"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise TypeError(f"{name}: {getattr(self, name)!r} cannot be called")

    def _clamp(self, name: str, *, least: int | None, is_whole: bool = False) -> None:
        # Without a `least`, a value below 0 means the default.
        value, default = getattr(self, name), _DEFAULTS[name]
        if not is_number(value):
            raise TypeError(f"{name}: {value!r} is not a number")
        if math.isnan(value) or (least is None and value < 0):
            value = default
        if is_whole and math.isfinite(value):
            value = math.floor(value)
        object.__setattr__(self, name, value if least is None else max(least, value))

    @classmethod
    def of(cls, value: object) -> ChatRecovery:
        """Read what an author wrote: a `ChatRecovery`, a mapping of its fields, None or True for the defaults, or False for none at all."""
        return _authored(cls, "chat_recovery", "is_on", value)


_DEFAULTS = {each.name: each.default for each in fields(ChatRecovery)}


@dataclass(frozen=True, kw_only=True)
class RecoveryContext:
    """One recovery of one turn."""

    incident_id: str
    request_id: str
    recovery_root_request_id: str
    attempt: int
    max_attempts: int
    recovery_kind: str


@dataclass(frozen=True, kw_only=True)
class ProgressContext(RecoveryContext):
    """What `should_keep_recovering` is asked about. `work` is progress since the incident opened, `age_ms` the time since."""

    work: int
    age_ms: float


@dataclass(frozen=True, kw_only=True)
class ExhaustedContext(RecoveryContext):
    """What `on_exhausted` is told. `stream_id` is empty if nothing was streamed."""

    stream_id: str
    created_at_ms: float
    reason: str
    terminal_message: str
    partial_text: str = ""
    partial_parts: list[Part] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class ContextOverflow:
    """What becomes of a conversation that has grown too long for its model.

    Its older part is summarised for the model, durably. The transcript stays whole.

    Args:
        reactive: whether to summarise after the provider has refused a request for its length, and to ask again.
        max_retries: how often one turn may do that.
        max_input_tokens: a request of more estimated tokens is made shorter before it is sent. By default none is.
        keep_tokens: about how many tokens of the newest part are kept as they are, and at most half of what was sent.
    """

    reactive: bool = True
    max_retries: int = 1
    max_input_tokens: float = INFINITY
    keep_tokens: int = 20_000

    def __post_init__(self) -> None:
        if not isinstance(self.reactive, bool):
            raise TypeError(f"reactive: {self.reactive!r} is neither True nor False")
        whole("max_retries", self.max_retries, least=0)
        whole("keep_tokens", self.keep_tokens, least=0)
        number("max_input_tokens", self.max_input_tokens, unit="tokens", above=True)

    @classmethod
    def of(cls, value: object) -> ContextOverflow:
        """Read what an author wrote: a `ContextOverflow`, a mapping of its fields, None or True for the defaults, or False for none."""
        return _authored(cls, "context_overflow", "reactive", value)


def _authored(kind: type[T], name: str, switch: str, value: object) -> T:
    """Read what an author wrote under `name`: a `kind`, a mapping of its fields, None or True for the defaults, or False, by `switch`.

    Raises `TypeError` for anything else. `kind` is a dataclass.
    """
    if isinstance(value, kind):
        return value
    if value is None or isinstance(value, bool):
        return kind(**{switch: value is not False})
    if not isinstance(value, Mapping):
        raise TypeError(f"{name}: {value!r:.200} is neither a {kind.__name__} nor a mapping of its fields")
    known: Any = kind
    unknown = sorted(map(str, set(value) - {each.name for each in fields(known)}))
    if unknown:
        raise TypeError(f"{name}: {unknown[0]!r} is none of its fields")
    return kind(**value)
