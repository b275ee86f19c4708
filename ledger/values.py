"""Values: what authors hand over, as it is kept and sent. A value arrives as it was, or is refused where it is handed over.

Plain data (None, booleans, numbers, text, bytes, lists, dictionaries) is msgpack. Python's other types of values are extension types of it,
one row of `_KINDS` each, so that a tuple stays a tuple, a set a set, and a key keeps its type. Nothing is ever pickled, and no class is
looked up by a name that came with the data: objects of an author's classes travel where an annotation says which classes they may have
(`Objects`), and everywhere else they are refused.

Three readers read one encoding:

- `unpack_value` gives the value. Given the classes, it makes objects again without calling `__init__` or a validator.
- Without the classes an object is shown by its fields: a model is a dictionary, an enum its value. So the command, the page, REST, SQL and
  other programs can look at everything, and nothing of an author's code is imported for that.
- `Kept` is a value within a message or a fact, which stays encoded where that is only passed on.

A subclass of a plain type (`numpy.float64`, a text enum, a named tuple) would arrive as its base, so it is refused too. Only a word of
Perdure's own, such as a status, arrives as the text that it equals, and a `bytearray` or a `memoryview` as bytes.
"""

from __future__ import annotations

import builtins
import json
import reprlib
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from ipaddress import IPv4Address, IPv4Interface, IPv4Network, IPv6Address, IPv6Interface, IPv6Network
from pathlib import Path, PosixPath, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID
from zoneinfo import ZoneInfo

import msgpack

from perdure.ledger.errors import BadRequest, TooLarge
from perdure.ledger.secret import Secret, without_secrets

DEPTH_MAX: Final = 100
"""Levels of containers in a value. Some readers of JSON give up there."""

FINGERPRINT_BYTES: Final = 8
"""Of the annotation that a value was checked against."""

DIGITS_MAX: Final = 4_300
"""Digits of an integer: what Python reads and writes as text."""

_IDLE: list[_Encoder] = []  # one of several threads gets each; to make one takes longer than most packing
_ROOM_BYTES = 1 << 10
_KEPT_BYTES_MAX = 1 << 16  # an encoder keeps room for the longest value that it has encoded
_CONTAINERS = {*range(0x80, 0xA0), *range(0xDC, 0xE0)}  # the bytes with which msgpack begins one
_NO_CONTAINER = bytes({*range(256)} - _CONTAINERS)
_PLACE_MAX = 200  # characters
_LEVELS_READ = 1_023  # by msgpack
_SECRET, _KEPT, _OBJECT, _CHECKED, _FIRST = 1, 2, 3, 4, 10
_BITS_MAX = 14_284  # an integer of more bits has more digits
_FACTORIES = {each.__name__: each for each in (int, float, str, bool, list, dict, set, tuple)}
_PLAIN = (type(None), bool, int, float, str, bytes, list, dict)
_WAYS: Final = {
    "__attrs_attrs__": "attrs.asdict(…)",
    "__struct_fields__": "msgspec.to_builtins(…)",
    "tolist": "….tolist()",
    "to_pydatetime": "….to_pydatetime()",
    "to_pytimedelta": "….to_pytimedelta()",
    "to_pylist": "….to_pylist()",
    "to_dicts": "….to_dicts()",
    "to_dict": "….to_dict()",
}
_OWN_WAYS: Final = {
    "model_fields": "say `….model_dump()`",
    "__dataclass_fields__": "say `dataclasses.asdict(…)`",
    "__members__": "say `….value`",
}
SECRETIVE: Final = (
    "the value of a secret is never kept; pass `perdure.Secret(name)`, and call its `reveal()` where it is needed"
)


# A value that is encoded already, within other data.
class Kept:
    __slots__ = ("body",)

    def __init__(self, body: bytes) -> None:
        self.body = body

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Kept) and other.body == self.body

    def __hash__(self) -> int:
        return hash(self.body)

    def __repr__(self) -> str:
        return repr(shown(self.body))


# The classes whose objects may travel in one place.
class Objects(Protocol):
    def take(self, value: object) -> list[Any] | None:
        """The fields of an object, its class's name first; None if its class is none of these. Raises `Unfit`."""

    def make(self, fields: list[Any]) -> object: ...


class Unfit(TypeError):
    """Why a value cannot travel."""


# A type of values: what is kept of one, and how it is made of that.
class _Kind(NamedTuple):
    type: type
    take: Callable[[Any], Any]
    make: Callable[[Any], Any]


_Zone: TypeAlias = str | float | list[Any] | None  # the key of a place, or seconds, with a name if it was given one


def _zone(zone: tzinfo | None, at: datetime | None) -> _Zone:
    if zone is None or isinstance(zone, ZoneInfo):
        return None if zone is None else _key(zone)
    offset = zone.utcoffset(at)
    if offset is None or type(zone).__module__ not in ("datetime", "pydantic_core._pydantic_core"):
        raise Unfit(f"the time zone {reprlib.repr(zone)} cannot travel; use `zoneinfo.ZoneInfo` or `datetime.timezone`")
    return _fixed(zone) if isinstance(zone, timezone) else offset.total_seconds()


def _fixed(zone: timezone) -> _Zone:
    offset, name = zone.utcoffset(None), zone.tzname(None)
    return offset.total_seconds() if name == timezone(offset).tzname(None) else [offset.total_seconds(), name]


def _key(zone: ZoneInfo) -> str:
    if not isinstance(zone.key, str):
        raise Unfit("a time zone that was read from a file has no name to travel under")
    return zone.key


def _in_zone(zone: _Zone) -> tzinfo | None:
    if isinstance(zone, str):
        return ZoneInfo(zone)
    if isinstance(zone, list):
        return timezone(timedelta(seconds=zone[0]), zone[1])
    return None if zone is None else timezone(timedelta(seconds=zone)) if zone else UTC


def _moment(value: datetime | time) -> list[object]:
    zone = _zone(value.tzinfo, value if isinstance(value, datetime) else None)
    return [value.replace(tzinfo=None).isoformat(), zone, value.fold]


def _moment_of(kind: type[Any]) -> Callable[[Any], Any]:
    return lambda kept: kind.fromisoformat(kept[0]).replace(tzinfo=_in_zone(kept[1]), fold=kept[2])


def _factory(value: defaultdict[object, object]) -> str | None:
    factory = value.default_factory
    if factory is None:
        return None
    name = getattr(factory, "__name__", "")
    if _FACTORIES.get(name) is not factory:
        raise Unfit(f"its default_factory {reprlib.repr(factory)} cannot travel; use a builtin type, or `dict(…)`")
    return str(name)


def _path_of(kind: type[PurePath]) -> _Kind:
    # A file may have a name that is no UTF-8.
    return _Kind(
        kind,
        lambda path: str(path).encode(errors="surrogateescape"),
        lambda kept: kind(kept.decode(errors="surrogateescape")),
    )


_KINDS: Final = (  # the position of a kind is its number on the disk
    _Kind(tuple, list, tuple),
    _Kind(set, list, set),  # in another order: see `_packed_set`
    _Kind(frozenset, list, frozenset),
    _Kind(datetime, _moment, _moment_of(datetime)),
    _Kind(date, date.isoformat, date.fromisoformat),
    _Kind(time, _moment, _moment_of(time)),
    _Kind(timedelta, lambda it: [it.days, it.seconds, it.microseconds], lambda kept: timedelta(*kept)),
    _Kind(Decimal, str, Decimal),
    _Kind(UUID, lambda it: it.bytes, lambda kept: UUID(bytes=kept)),
    _Kind(complex, lambda it: [it.real, it.imag], lambda kept: complex(*kept)),
    _Kind(Fraction, lambda it: [it.numerator, it.denominator], lambda kept: Fraction(*kept)),
    _path_of(PosixPath)._replace(make=lambda kept: Path(kept.decode(errors="surrogateescape"))),
    _path_of(PurePosixPath),
    _path_of(PureWindowsPath),
    *(_Kind(each, str, each) for each in (IPv4Address, IPv4Network, IPv4Interface, IPv6Address, IPv6Network, IPv6Interface)),
    _Kind(deque, lambda it: [list(it), it.maxlen], lambda kept: deque(*kept)),
    _Kind(OrderedDict, dict, OrderedDict),
    _Kind(Counter, dict, Counter),
    _Kind(defaultdict, lambda it: [_factory(it), dict(it)], lambda kept: defaultdict(_FACTORIES.get(kept[0]), kept[1])),
    _Kind(range, lambda it: [it.start, it.stop, it.step], lambda kept: range(*kept)),
    _Kind(ZoneInfo, _key, ZoneInfo),
    _Kind(timezone, _fixed, _in_zone),
    _Kind(int, str, int),  # one that msgpack has no room for
)  # fmt: skip
_CODES: Final = {kind.type: (_FIRST + number, kind.take) for number, kind in enumerate(_KINDS)}
_SETS: Final = (_CODES[set][0], _CODES[frozenset][0])
_MADE: Final = {_FIRST + number: kind.make for number, kind in enumerate(_KINDS)}


def pack_value(field: str, value: object, bytes_max: float = float("inf"), objects: Objects | None = None) -> bytes:
    """Encode a value exactly. Raises `BadRequest` that names what in it cannot travel and why, or `TooLarge` with the limit."""
    if (type(value) is int and -_INT_MAX <= value <= _INT_MAX) or type(value) in _SCALARS:
        body = _scalar(value)
        if len(body) <= bytes_max:
            return body
    try:
        body = _scalar(value) if type(value) is str and len(value) <= _ROOM_BYTES else _packed(value, objects, 0)
    except (TypeError, ValueError, OverflowError, RecursionError, AttributeError) as problem:
        place, why = _offence(value, objects, problem)
        place = place if len(place) <= _PLACE_MAX else f"{place[:_PLACE_MAX]}…"
        raise BadRequest(field, f"{place}: {why}" if place else why) from problem
    if len(body) > bytes_max:
        raise TooLarge(field, f"has {len(body)} bytes encoded; the limit is {bytes_max}")
    return without_secrets(body)


def packed_if_short(value: object, bytes_max: int) -> bytes | None:
    """A value encoded; None if it is longer, or no plain data. A long one is not encoded for that, and no `repr` of an author is called."""
    room = bytes_max
    waiting: list[Any] = [value]
    for part in waiting:  # grows while it is walked
        kind: Any = type(part)
        room -= len(part) if kind in _SIZED else 1
        if room < 0 or (kind not in _SIZED and kind not in _SCALARS and kind not in _CODES and kind is not Secret):
            return None
        if kind in _MAPPINGS:
            waiting += [*part, *part.values()]
        elif kind in _SIZED and kind not in (str, bytes):
            waiting += part
    try:
        body = pack_value("value", value)
    except BadRequest:
        return None
    return body if len(body) <= bytes_max else None


_MAPPINGS: Final = frozenset({dict, OrderedDict, Counter})
_SIZED: Final = frozenset({str, bytes, list, tuple, set, frozenset, deque}) | _MAPPINGS


def unpack_value(body: bytes, objects: Objects | None = None) -> Any:
    """Decode a value. Without their classes, objects are shown by their fields."""
    hook = _opened if objects is None else _making(objects)
    return msgpack.unpackb(body, raw=False, strict_map_key=False, ext_hook=hook)


def shown(body: bytes) -> Any:
    """A value to be looked at: what cannot be read is said in its place, and hides nothing else."""
    try:
        return unpack_with(body, _opened)
    except (ValueError, TypeError, LookupError, msgpack.UnpackException) as problem:
        return f"(a value of {len(body)} bytes that cannot be read: {problem})"


def taken_out(value: Any) -> Any:
    return shown(value.body) if isinstance(value, Kept) else value


def checked_value(fingerprint: bytes, body: bytes) -> bytes:
    packed: bytes = msgpack.packb(msgpack.ExtType(_CHECKED, fingerprint + body))
    return packed


def unchecked(body: bytes) -> tuple[bytes, bytes]:
    """The fingerprint of the annotation that a value was checked against, and the value; no fingerprint if it never was."""
    if body[:1] in _EXTENSIONS:
        found = msgpack.unpackb(body, ext_hook=lambda code, data: data if code == _CHECKED else None)
        if found is not None:
            return found[:FINGERPRINT_BYTES], found[FINGERPRINT_BYTES:]
    return b"", body


_EXTENSIONS = frozenset(bytes([each]) for each in (0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8))


def reference(value: object) -> object:
    """What msgpack's packer writes for data within messages and facts that it does not know."""
    if type(value) is Kept:
        return msgpack.ExtType(_KEPT, value.body)
    return _extension(value, None, 0)


def referred(code: int, data: bytes) -> object:
    """What its unpacker reads of that: what authors handed over stays encoded, to be passed on."""
    return Kept(data) if code == _KEPT else _opened(code, data)


def opened(code: int, data: bytes) -> object:
    """What its unpacker reads of that: what authors handed over is decoded, to be looked at."""
    return shown(data) if code == _KEPT else _opened(code, data)


def unpack_with(body: bytes, hook: Callable[[int, bytes], object]) -> Any:
    """Decode msgpack. A key that Python has no hash for is shown as text: an object by its fields."""
    try:
        return msgpack.unpackb(body, raw=False, strict_map_key=False, ext_hook=hook)
    except TypeError:
        return msgpack.unpackb(body, raw=False, strict_map_key=False, ext_hook=hook, object_pairs_hook=_with_any_keys)


def _with_any_keys(pairs: list[tuple[object, object]]) -> dict[object, object]:
    return {key if _has_hash(key) else str(key): value for key, value in pairs}


def _has_hash(key: object) -> bool:
    try:
        hash(key)
    except TypeError:
        return False
    return True


_SCALARS, _INT_MAX = frozenset({type(None), bool, float}), (1 << 63) - 1
# One call that runs no Python, so threads may share it.
_scalar: Callable[[object], bytes] = msgpack.Packer(buf_size=_ROOM_BYTES).pack


# It encodes one value at a time: the parts of a value are encoded by another one.
class _Encoder:
    __slots__ = ("depth", "objects", "pack")

    def __init__(self) -> None:
        self.pack: Callable[[object], bytes] = msgpack.Packer(
            default=self.extension, strict_types=True, buf_size=_ROOM_BYTES
        ).pack
        self.objects: Objects | None = None
        self.depth = 0

    def extension(self, value: object) -> object:
        return _extension(value, self.objects, self.depth)


def _packed(value: object, objects: Objects | None, depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise RecursionError
    try:
        encoder = _IDLE.pop()
    except IndexError:
        encoder = _Encoder()
    encoder.objects, encoder.depth = objects, depth
    body = encoder.pack(value)
    if len(body) <= _KEPT_BYTES_MAX:
        _IDLE.append(encoder)  # one that has raised is left to the collector
    if len(body) > DEPTH_MAX and len(body.translate(None, _NO_CONTAINER)) > DEPTH_MAX:
        _refuse_depth(body)
    return body


_array_of: Callable[[int], bytes] = msgpack.Packer().pack_array_header


# The members are in the order of what is kept of them: their own differs between processes, because hashes of text do.
def _packed_set(value: set[object] | frozenset[object], objects: Objects | None, depth: int) -> bytes:
    if depth > DEPTH_MAX:
        raise RecursionError
    return _array_of(len(value)) + b"".join(sorted(_packed(each, objects, depth) for each in value))


def _refuse_depth(body: bytes) -> None:
    # msgpack steps through the body as if it stood within as many lists as leave room for the levels that it may have.
    skipping = msgpack.Unpacker(max_buffer_size=len(body) + _LEVELS_READ)
    skipping.feed(b"\x91" * (_LEVELS_READ - DEPTH_MAX) + body)
    try:
        skipping.skip()
    except msgpack.StackError:
        raise RecursionError from None


def _extension(value: Any, objects: Objects | None, depth: int) -> object:
    kind = type(value)
    row = _CODES.get(kind)
    if row is not None:
        if kind is int and value.bit_length() > _BITS_MAX:
            raise Unfit(f"an integer of {value.bit_length()} bits; at most {DIGITS_MAX} digits travel")
        is_set = kind is set or kind is frozenset
        kept = _packed_set(value, objects, depth + 1) if is_set else _packed(row[1](value), objects, depth + 1)
        return msgpack.ExtType(row[0], kept)
    if kind is Secret:
        return msgpack.ExtType(_SECRET, value.name.encode())
    if objects is not None and (fields := objects.take(value)) is not None:
        return msgpack.ExtType(_OBJECT, _packed(fields, objects, depth + 1))
    if isinstance(value, StrEnum) and kind.__module__.startswith("perdure."):
        return str(value)
    raise Unfit(_refusal(value))


def _opened(code: int, data: bytes) -> object:
    if code == _OBJECT:
        return unpack_with(data, _opened)[1]  # an object by what may be shown of it: see `Objects.take`
    try:
        return _made(code, data, _opened)
    except TypeError:
        if code not in _SETS:
            raise
        return unpack_with(data, _opened)  # an object is shown by its fields, which no set can have


def _made(code: int, data: bytes, hook: Callable[[int, bytes], object]) -> object:
    if code in _MADE:
        return _MADE[code](unpack_with(data, hook))
    if code == _SECRET:
        return Secret(data.decode())
    if code in (_CHECKED, _KEPT):
        return unpack_with(data[FINGERPRINT_BYTES if code == _CHECKED else 0 :], hook)
    return msgpack.ExtType(code, data)


def _making(objects: Objects) -> Callable[[int, bytes], object]:
    def made(code: int, data: bytes) -> object:
        return objects.make(unpack_with(data, made)) if code == _OBJECT else _made(code, data, made)

    return made


# Words for what is refused.


def _offence(value: object, objects: Objects | None, problem: Exception, depth: int = 0) -> tuple[str, str]:
    for name, part in _parts(value, objects) if depth < DEPTH_MAX else ():
        try:
            _packed(part, objects, depth)
        except (TypeError, ValueError, OverflowError, RecursionError, AttributeError) as closer:
            place, why = _offence(part, objects, closer, depth + 1)
            return ".".join(filter(None, (name, place))), why
    return "", _why(problem)


def _parts(value: object, objects: Objects | None) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and type(value) is not Counter:
        for key, each in value.items():
            yield f"the key {said(key)}", key
            yield said(key) if type(key) is not str else key[:60].encode(errors="backslashreplace").decode(), each
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((str(at), each) for at, each in enumerate(value))
    elif objects is not None and type(value) not in _CODES:
        try:
            fields = objects.take(value)
        except (TypeError, ValueError, AttributeError):
            fields = None
        for each in fields[1:] if fields is not None else ():
            yield from _parts(each, objects) if isinstance(each, dict) else (("", each),)


def _why(problem: Exception) -> str:
    if isinstance(problem, RecursionError) or "recursion" in str(problem):
        return f"is nested deeper than {DEPTH_MAX} levels, or contains itself"
    if isinstance(problem, UnicodeEncodeError):
        return (
            f"contains half of a surrogate pair at position {problem.start}, which is no text; bytes travel as they are"
        )
    return str(problem) if isinstance(problem, Unfit) else f"cannot be encoded as plain data: {problem}"


def _refusal(value: object) -> str:
    kind = type(value)
    what = f"{said(value)} is {class_name(kind)}, which is no plain data"
    if "Secret" in kind.__name__ and kind.__module__.startswith("pydantic"):
        return f"is {kind.__name__}; {SECRETIVE}"
    base = next((each for each in _PLAIN if isinstance(value, each)), None)
    if base is not None and not hasattr(kind, "__members__"):
        return f"{what}; it would arrive as {base.__name__}, so say `{base.__name__}(…)`"
    if hasattr(kind, "model_fields") or hasattr(kind, "__dataclass_fields__") or hasattr(kind, "__members__") or base:
        own = next((way for mark, way in _OWN_WAYS.items() if hasattr(kind, mark)), "pass its parts")
        named = f"where the annotation of an input or an output names {class_name(kind)}, its objects travel"
        return f"{what}; {named}; elsewhere {own}"
    way = _way_of(value)
    return f"{what}; {f'say `{way}`' if way else 'pass its parts, or what it can be made of again'}"


def _way_of(value: Any) -> str:
    kind = type(value)
    if kind.__name__ in ("NaTType", "NAType"):  # pandas has no value there
        return "None"
    if hasattr(kind, "dtype") and getattr(value, "shape", None) == () and hasattr(kind, "item"):  # a number of an array
        with suppress(Exception):
            plain = type(value.item())
            return f"{plain.__name__}(…)" if plain in _PLAIN else "….item()" if plain in _CODES else ""
    return way_to_plain(kind)


def way_to_plain(kind: type) -> str:
    """What makes plain data, or a value of Python's own types, of an object of this class, where other libraries have a way to say it."""
    return next((way for mark, way in _WAYS.items() if hasattr(kind, mark)), "")


def class_name(kind: type, other: type | None = None) -> str:
    """The name of a class for people; with its module where it would be read as one of Python's own, or as the other one."""
    taken = vars(builtins).get(kind.__name__) if other is None or other.__name__ != kind.__name__ else other
    return kind.__name__ if taken is None or taken is kind else f"{kind.__module__}.{kind.__name__}"


_SHORT_WORDS, _WHOLE = 80, 1 << 30


def said(value: object, chars_max: int = _SHORT_WORDS) -> str:
    """The start of what `repr` says; of an object whose `repr` raises, that it is there."""
    words = reprlib.Repr()
    words.maxstring = words.maxother = words.maxlong = chars_max if chars_max <= _SHORT_WORDS else _WHOLE
    words.maxlist = words.maxtuple = words.maxdict = words.maxset = words.maxfrozenset = words.maxdeque = chars_max
    return words.repr(value)[:chars_max].encode(errors="backslashreplace").decode()


_PREVIEW_CHARS: Final = 500
_CUT: Final = "..."
_as_json: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def preview_of(value: object) -> str | None:
    """A text as it is, anything else as JSON, None for no input; at most 500 characters of it."""
    if value is None:
        return None
    if isinstance(value, str):
        return value[:_PREVIEW_CHARS]
    if type(value) is int and abs(value) < 1 << 63:
        return str(value)[:_PREVIEW_CHARS]
    try:
        text = _as_json(value)
    except (TypeError, ValueError, RecursionError):  # bytes or a set, which JSON does not know
        return said(value, _PREVIEW_CHARS)
    return text if len(text) <= _PREVIEW_CHARS else text[: _PREVIEW_CHARS - len(_CUT)] + _CUT


def shown_input(options: Mapping[str, object], inline: bytes | None) -> object:
    """What to display of a run's input: what its parent chose, or else a preview of the input."""
    # For an input that is too large for its fact, the parent has made the preview already, so the payload is not read.
    told = options.get("preview")
    if isinstance(told, Kept):
        return told
    return told if told is not None or inline is None else preview_of(shown(inline))
