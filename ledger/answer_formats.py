"""Whether an answer fits a JSON schema. What that says by `format` is read by pydantic's type of that name, as the run reads it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from functools import cache
from importlib.util import find_spec
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from re import Pattern
from typing import Any, Final, get_args
from zoneinfo import ZoneInfo

from perdure.ledger.errors import BadRequest

_PYTHONS: Final = (
    date, time, datetime, timedelta, IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network, Pattern, ZoneInfo
)  # fmt: skip
_UUIDS: Final = tuple(f"UUID{version}" for version in (1, 3, 4, 5, 6, 7, 8))


def check_fits(schema: Mapping[str, object], value: object) -> None:
    """Raise a `BadRequest` that names the place if a value does not fit a JSON schema."""
    from jsonschema import Draft202012Validator  # noqa: PLC0415 - it takes a third of a second, and few answer
    from jsonschema.exceptions import best_match  # noqa: PLC0415 - as above

    problem = best_match(Draft202012Validator(schema, format_checker=_formats()).iter_errors(value))
    if problem is not None:
        place = ".".join(map(str, ("value", *problem.absolute_path)))
        why = "" if problem.cause is None else f": {problem.cause.errors()[0]['msg']:.300}"
        raise BadRequest(place[:200], f"{problem.message:.300}{why}")


@cache
def _formats() -> Any:
    from jsonschema import FormatChecker  # noqa: PLC0415 - as above
    from pydantic import TypeAdapter, ValidationError  # noqa: PLC0415 - as above

    found = FormatChecker(())
    for kind in _types():
        adapter = TypeAdapter[Any](kind)
        found.checks(adapter.json_schema()["format"], ValidationError)(_read_by(adapter.validate_python))
    return found


def _types() -> Iterator[Any]:
    # The widest of each format: what a narrower one refuses besides, the run does. No fraction, since a short text may say a huge one.
    import pydantic  # noqa: PLC0415 - as above

    yield from _PYTHONS
    yield from (pydantic.AnyUrl, pydantic.Base64Bytes)
    yield from (pydantic.IPvAnyAddress, pydantic.IPvAnyInterface, pydantic.IPvAnyNetwork)
    yield get_args(pydantic.UUID4)[0]  # of any version
    yield from (getattr(pydantic, name) for name in _UUIDS)
    if find_spec("email_validator"):
        yield from (pydantic.EmailStr, pydantic.NameEmail)


def _read_by(read: Callable[[object], object]) -> Callable[[object], bool]:
    def reads(value: object) -> bool:
        if isinstance(value, str):  # what else there may be, a schema says by `type`
            read(value)
        return True

    return reads
