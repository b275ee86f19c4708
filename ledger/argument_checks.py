"""Arguments of requests, checked by the rules of `policies`: what is refused there is a `BadRequest` here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import ParamSpec, TypeVar

from perdure.ledger.errors import BadRequest
from perdure.ledger.values import class_name, pack_value
from perdure.policies import InvalidValue, number, whole

P = ParamSpec("P")
T = TypeVar("T")
Word = TypeVar("Word", bound=str)


def _refusing(check: Callable[P, T]) -> Callable[P, T]:
    @wraps(check)
    def refusing(*args: P.args, **options: P.kwargs) -> T:
        try:
            return check(*args, **options)
        except InvalidValue as problem:
            raise BadRequest(problem.field, problem.why) from None

    return refusing


@_refusing
def checked(check: Callable[[], T]) -> T:
    return check()


check_whole, check_number = _refusing(whole), _refusing(number)
"""`policies.whole` and `policies.number`, which raise `BadRequest` here."""


def check_text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise BadRequest(field, f"{value!r:.200} is {class_name(type(value))}, not text")
    pack_value(field, text := str.__str__(value))
    return text


def check_bool(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise BadRequest(field, f"{value!r:.200} is neither True nor False")
    return value


def check_word(field: str, value: object, words: Iterable[Word]) -> Word:
    known = {str(word): word for word in words}
    if not isinstance(value, str) or value not in known:
        raise BadRequest(field, f"{value!r:.200} is none of {', '.join(known)}")
    return known[value]


def check_words(field: str, value: object, words: Iterable[Word]) -> frozenset[Word]:
    """Return some of these words: one, several, or all of them (None). Raises `BadRequest` for any other."""
    if value is None:
        return frozenset(words)
    wanted = list(value) if isinstance(value, list | tuple | set | frozenset) else [value]
    return frozenset(check_word(field, each, words) for each in wanted)


def check_ms(field: str, value: object) -> float:
    return check_number(field, value, unit="milliseconds")
