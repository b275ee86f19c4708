"""One boundary for values: what is handed over is checked and encoded where it is handed over. Where a class has a say in how its
objects are made again, it is also decoded and compared there.

What has no annotation is plain data and Python's own types of values (`ledger.values`). With an annotation, pydantic checks what is handed
over, once: that very value arrives, objects of the classes that the annotation names included. What would arrive otherwise
is a `BadRequest` that names the field, before anything is durable.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import re
import typing
from collections.abc import Callable, Container, Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from operator import is_
from types import MemberDescriptorType
from typing import Any, Final, Protocol, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    PydanticUserError,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, PydanticUndefined, SchemaValidator, to_jsonable_python
from typing_extensions import TypeAliasType, get_type_hints, is_typeddict

from perdure.ledger import (
    FINGERPRINT_BYTES,
    BadRequest,
    Kept,
    Unfit,
    checked_value,
    class_name,
    digest_of,
    pack_value,
    preview_of,
    unchecked,
    unpack_value,
)

_SHORT, _SHORT_BYTES = 255, 257  # characters of a text, and the bytes of one that is encoded
_INT_MAX = (1 << 63) - 1
_EXACT: Final[dict[object, Callable[[Any], object]]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    list: list,
}
_PLAIN = (None, type(None), bool, int, float, str, bytes, list, dict, Any)


# ---------------------------------------------------------------- objects
# The classes whose objects may travel where an annotation stands, and how an object of each is taken apart and made again.
#
# An object is made of what was kept of it without its `__init__` or a validator: it was checked where it was handed over, and a check that
# changes a value must not be made twice. That holds as long as the classes have the fields that they had then (`fingerprint`). If they have
# others, what was kept is given to pydantic as a dictionary, as if it were handed over now.


_NEVER = (SecretStr, SecretBytes, Secret)
_SHOWABLE = (bool, int, float, str)


class Admitted:
    """The classes that an annotation names, in its type arguments and in the fields of other classes too."""

    def __init__(self, annotation: object, schema: object) -> None:
        self._ways: dict[type, tuple[str, _Way]] = {}
        self._classes: dict[str, _Way] = {}
        texts = [_text(annotation)]
        waiting = [annotation, *_named_in(schema)]
        seen: set[int] = set()
        for hint in waiting:  # grows while it is walked
            if id(hint) in seen:
                continue
            seen.add(id(hint))
            fields = self._admit(hint) if isinstance(hint, type) else {}
            texts.append(f"{_text(hint)}{[f'{name}: {_text(each)}' for name, each in fields.items()]}")
            waiting += [*fields.values(), *_within(hint)]
        self.fingerprint = blake2b("\n".join(texts).encode(errors="replace"), digest_size=FINGERPRINT_BYTES).digest()

    @cached_property
    def is_unsure(self) -> bool:
        # Such a class has a say in how its objects are made, so what is made again has to be compared.
        return any(each.is_unsure for each in self._classes.values())

    def _admit(self, kind: type) -> dict[str, object]:
        if is_typeddict(kind):
            return _hints(kind)
        way = _way_of(kind)
        if way is not None and kind not in self._ways:
            name, nth = kind.__qualname__, 1
            while name in self._classes:
                nth += 1
                name = f"{kind.__qualname__}#{nth}"
            self._ways[kind], self._classes[name] = (name, way), way
        return way.hints if way is not None else {}

    def take(self, value: Any) -> list[object] | None:
        known = self._ways.get(type(value))
        if known is not None:
            return [known[0], *known[1].take(value)]
        if type(value).__name__ == "ValidatorIterator":  # what pydantic makes of an iterable
            return ["", list(value)]
        base = next((each for each in self._ways if isinstance(value, each) and _way_of(type(value))), None)
        if base is not None and not issubclass(base, enum.Enum):
            mine, its = class_name(type(value), base), class_name(base, type(value))
            advice = f"it arrives as itself where the annotation names it: `{its} | {mine}`"
            if not _has_schema(type(value)):
                advice = f"an annotation cannot name that class, because pydantic cannot check its values; convert it to {its}"
            raise Unfit(f"is {mine}, a subclass of {its}; {advice}")
        return None

    @cached_property
    def as_given(self) -> _AsGiven | None:
        """Objects by what their author gave: without the fields that were left at their defaults. None where that is all of them."""
        return _AsGiven(self, self._ways) if any(each.has_defaults for each in self._classes.values()) else None

    def make(self, fields: list[Any]) -> object:
        name, *kept = fields
        return self._classes[name].make(*kept) if name else kept[0]


class _AsGiven:
    def __init__(self, admitted: Admitted, ways: dict[type, tuple[str, _Way]]) -> None:
        self._admitted, self._ways = admitted, ways
        self.make = admitted.make

    def take(self, value: object) -> list[Any] | None:
        name, way = self._ways.get(type(value), ("", None))
        return self._admitted.take(value) if way is None else [name, *way.given(value)]


# How objects of one class travel: `take` gives what may be shown of one, and what else is needed to `make` it again.
class _Way(Protocol):
    hints: dict[str, Any]
    is_unsure: bool
    has_defaults: bool

    def take(self, value: Any) -> list[object]: ...

    def given(self, value: Any) -> list[object]:
        """The same without what was left at its default."""

    def make(self, shown: Any, more: dict[str, object] = ..., /) -> object: ...


_NOTHING: dict[str, object] = {}
_EMPTY = (list, dict, set, tuple, frozenset)
_COMPARABLE = (bool, int, float, str, bytes)


class _Model:
    def __init__(self, kind: type[BaseModel]) -> None:
        self._kind, self._is_root = kind, issubclass(kind, RootModel)
        self.is_unsure = _has_own_way(kind)
        self.hints = {name: each.annotation for name, each in kind.model_fields.items()}
        self._hidden = [name for name, each in kind.model_fields.items() if each.exclude]
        self._takes_extra = kind.model_config.get("extra") == "allow"
        self._private = dict.fromkeys(kind.__private_attributes__, PydanticUndefined)
        self.has_defaults = any(not each.is_required() for each in kind.model_fields.values())
        self._is_simple = not (self._hidden or self._takes_extra or self._private or self._is_root)

    def take(self, value: BaseModel) -> list[object]:
        kept, given = value.__dict__, value.__pydantic_fields_set__
        if self._is_simple and kept.keys() == self.hints.keys() == given:
            return [kept]
        more: dict[str, object] = {"hidden": {name: kept[name] for name in self._hidden if name in kept}}
        more["unset"] = [name for name in self.hints if name not in given]
        private = value.__pydantic_private__ or _NOTHING
        more["private"] = {name: each for name, each in private.items() if each is not PydanticUndefined}
        shown = {name: kept[name] for name in self.hints if name in kept and name not in self._hidden}
        more = {name: each for name, each in more.items() if each}
        first = shown.get("root") if self._is_root else shown | (value.__pydantic_extra__ or _NOTHING)
        return [first, more] if more else [first]

    def given(self, value: BaseModel) -> list[object]:
        unset = self.hints.keys() - value.__pydantic_fields_set__
        shown: Any
        more: Any
        shown, more, *_ = *self.take(value), {}
        hidden = _but(more.get("hidden", _NOTHING), unset)
        kept = _but(more, {"unset", "hidden"}) | ({"hidden": hidden} if hidden else {})
        return [shown if self._is_root else _but(shown, unset), *([kept] if kept else [])]

    def make(self, shown: Any, more: dict[str, Any] = _NOTHING, /) -> object:
        made = self._kind.__new__(self._kind)
        if self._is_simple and not more:
            _restore(made, shown, {*shown}, None, None)
            return made
        kept = {"root": shown} if self._is_root else {**shown, **more.get("hidden", _NOTHING)}
        fields = {name: kept.pop(name) for name in self.hints if name in kept}
        given = {*fields, *kept}.difference(more.get("unset", ()))
        private = self._private | more.get("private", _NOTHING) if self._private else None
        _restore(made, fields, given, kept if self._takes_extra else None, private)
        return made


# No author's code is asked whether two values are equal.
def _is_same(value: object, default: object) -> bool:
    kind = type(value)
    are_alike = kind is type(default) and (kind in _COMPARABLE or (kind in _EMPTY and not value))
    return value is default or (are_alike and value == default)


def _but(shown: Any, names: Container[str]) -> dict[str, object]:
    return {name: each for name, each in shown.items() if name not in names}


def _restore(
    made: BaseModel,
    fields: dict[str, object],
    given: set[str],
    extra: dict[str, object] | None,
    private: dict[str, object] | None,
) -> None:
    # As pydantic's own `__setstate__` does.
    put = object.__setattr__
    put(made, "__dict__", fields)
    put(made, "__pydantic_fields_set__", given)
    put(made, "__pydantic_extra__", extra)
    put(made, "__pydantic_private__", private)


class _Dataclass:
    def __init__(self, kind: type) -> None:
        self._kind: Any = kind
        self.is_unsure = _has_own_way(kind)
        hints = _hints(kind)
        of_class = dataclasses.fields(kind)
        self._names = [each.name for each in of_class]
        factories = {each.name: each.default_factory for each in of_class if each.default_factory in _EMPTY}
        defaults = {each.name: each.default for each in of_class if each.default is not dataclasses.MISSING}
        self._defaults = {name: factory() for name, factory in factories.items()} | defaults
        self.has_defaults = bool(self._defaults)
        self.hints = {name: hints.get(name, Any) for name in self._names}
        self._has_slots = any("__slots__" in vars(each) for each in kind.__mro__[:-1])

    def take(self, value: object) -> list[object]:
        shown = {name: getattr(value, name) for name in self._names if hasattr(value, name)}
        more = {
            name: each
            for name, each in getattr(value, "__dict__", _NOTHING).items()
            if name not in shown and not isinstance(getattr(self._kind, name, None), cached_property)
        }
        return [shown, more] if more else [shown]

    def given(self, value: object) -> list[object]:
        shown, *more = self.take(value)
        return [
            _but(shown, {name for name, each in self._defaults.items() if _is_same(getattr(value, name, ...), each)}),
            *more,
        ]

    def make(self, shown: dict[str, object], more: dict[str, object] = _NOTHING, /) -> object:
        made = self._kind.__new__(self._kind)
        kept = shown | more
        if self._has_slots:
            for name in self._names:
                if name in kept and isinstance(getattr(self._kind, name, None), MemberDescriptorType):
                    object.__setattr__(made, name, kept.pop(name))
        if kept:
            made.__dict__.update(kept)
        return made


class _Enum:
    has_defaults = False

    def __init__(self, kind: type[enum.Enum]) -> None:
        self._kind, self.hints, self.is_unsure = kind, _NOTHING, False

    def take(self, value: enum.Enum) -> list[object]:
        shown = value.value if type(value.value) in _SHOWABLE else value.name
        return [shown, {"member": value.name}] if value.name in self._kind.__members__ else [shown, {"of": value.value}]

    given = take

    def make(self, _shown: object, more: dict[str, Any] = _NOTHING, /) -> object:
        return self._kind[more["member"]] if "member" in more else self._kind(more["of"])


class _NamedTuple:
    def __init__(self, kind: type[tuple[object, ...]]) -> None:
        self._kind, self.hints, self.is_unsure = kind, _hints(kind), False
        self._defaults: dict[str, object] = getattr(kind, "_field_defaults", _NOTHING)
        self.has_defaults = bool(self._defaults)

    def take(self, value: tuple[object, ...]) -> list[object]:
        return [list(value)]

    def given(self, value: tuple[object, ...]) -> list[object]:
        count = len(value)
        for name, each in reversed([*zip(self.hints, value, strict=False)]):
            if name not in self._defaults or not _is_same(each, self._defaults[name]):
                break
            count -= 1
        return [list(value[:count])]

    def make(self, shown: list[object], _more: dict[str, object] = _NOTHING, /) -> object:
        return tuple.__new__(self._kind, shown)


# A class that pydantic or the class itself knows how to write as JSON, such as an address or a regular expression.
class _Foreign:
    has_defaults = False

    def __init__(self, kind: type) -> None:
        self._kind, self.hints, self.is_unsure = kind, _NOTHING, False

    @cached_property
    def _adapter(self) -> TypeAdapter[object]:
        return TypeAdapter(self._kind)

    def take(self, value: object) -> list[object]:
        name = self._kind.__name__
        try:
            shown = self._adapter.dump_python(value, mode="json", round_trip=True)
            again = self._adapter.validate_python(shown)
        except (PydanticUserError, PydanticSerializationError, ValidationError, ValueError, TypeError) as problem:
            raise Unfit(f"objects of {name} cannot be kept: {str(problem).partition(chr(10))[0]}") from problem
        if type(again) is not type(value) or again != value:
            raise Unfit(
                f"an object of {name} would arrive otherwise: as JSON it is {shown!r:.80}, which is another one"
            )
        return [shown]

    given = take

    def make(self, shown: object, _more: dict[str, object] = _NOTHING, /) -> object:
        return self._adapter.validate_python(shown)


def _has_schema(kind: type) -> bool:
    try:
        TypeAdapter(kind)
    except PydanticUserError:
        return False
    return True


def _has_own_way(kind: Any) -> bool:
    # Such a class decides itself what a new object of it is.
    return kind.__new__ is not object.__new__


def _way_of(kind: type) -> _Way | None:
    # None for plain data, for types that the ledger knows, and for what never travels.
    ways: tuple[tuple[Callable[[Any], bool], Callable[[Any], _Way]], ...] = (
        (lambda each: issubclass(each, BaseModel), _Model),
        (dataclasses.is_dataclass, _Dataclass),
        (lambda each: issubclass(each, enum.Enum), _Enum),
        (lambda each: issubclass(each, tuple) and hasattr(each, "_fields"), _NamedTuple),
    )
    if kind in (BaseModel, enum.Enum, object) or issubclass(kind, _NEVER):
        return None
    own = next((way for fits, way in ways if fits(kind)), None)
    if own is not None:
        return own(kind)
    is_foreign = kind.__module__ not in (
        "builtins",
        "collections",
        "collections.abc",
        "typing",
        "perdure.ledger.secret",
    )
    return _Foreign(kind) if is_foreign and not getattr(kind, "_is_protocol", False) else None


def _hints(kind: type) -> dict[str, object]:
    known = getattr(kind, "__pydantic_fields__", None)
    if known is not None:
        return {name: each.annotation for name, each in known.items()}
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):  # pydantic has found the names, or has refused the class
        return {}


def _within(hint: object) -> Iterator[object]:
    if isinstance(hint, TypeVar):
        yield from (hint.__bound__, *hint.__constraints__)
    elif isinstance(hint, TypeAliasType | getattr(typing, "TypeAliasType", TypeAliasType)):
        yield hint.__value__
    elif hasattr(hint, "__supertype__"):
        yield hint.__supertype__
    elif isinstance(hint, enum.Enum):
        yield type(hint)
    else:
        yield from (get_origin(hint), *get_args(hint))


def _named_in(schema: object) -> Iterator[type]:
    # Here pydantic has found all that annotations only named.
    waiting = [schema]
    for each in waiting:  # grows while it is walked
        if isinstance(each, dict):
            kind = each.get("cls", each.get("function") if each.get("type") == "call" else None)
            if isinstance(kind, type):
                yield kind
            waiting += [part for key, part in each.items() if key not in ("metadata", "serialization", "config")]
        elif isinstance(each, list | tuple):
            waiting += each
        elif isinstance(each, enum.Enum):
            yield type(each)


def _text(hint: object) -> str:
    # It goes into fingerprints, so it is the same in every process.
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is typing.Annotated:
        return _text(arguments[0])
    if origin is not None:
        return f"{_text(origin)}[{', '.join(map(_text, arguments))}]"
    return str(getattr(hint, "__qualname__", None) or getattr(hint, "__name__", None) or hint)


# ---------------------------------------------------------------- schema


_NO_SCHEMAS: Final = ("metadata", "serialization", "default", "expected")


def _with_closed_typed_dicts(schema: Any) -> Any:
    """A schema that refuses keys which a `TypedDict` does not declare: pydantic would leave them out, and such a value arrives as it was.
    One whose class says what is to become of them (`__pydantic_config__`) stays as it is; itself if nothing changes."""
    if isinstance(schema, list | tuple):
        parts = [_with_closed_typed_dicts(each) for each in schema]
        return schema if all(map(is_, parts, schema)) else type(schema)(parts)
    if not isinstance(schema, dict):
        return schema
    closed = {key: each if key in _NO_SCHEMAS else _with_closed_typed_dicts(each) for key, each in schema.items()}
    if schema.get("type") == "typed-dict" and _leaves_out(schema):
        return closed | {"extra_behavior": "forbid"}
    return schema if all(map(is_, closed.values(), schema.values())) else closed


def _leaves_out(schema: dict[str, Any]) -> bool:
    of_config = schema.get("config", {}).get("extra_fields_behavior", "ignore")
    chosen = getattr(schema.get("cls"), "__pydantic_config__", {})
    return schema.get("extra_behavior", of_config) == "ignore" and "extra" not in chosen


_OF_AUTHORS: Final = ("model", "dataclass", "call", "json")
_SCALARS: Final[dict[str, tuple[str, ...]]] = {
    "bool": (),
    "int": ("bool",),
    "float": ("int", "bool"),
    "str": (),
    "bytes": (),
}
"""What else Python takes for each of them, and what arrives as that."""
_BUFFERS: Final = {"type": "is-instance", "cls": (bytes, bytearray, memoryview), "cls_repr": "bytes"}


def _with_plain_scalars(schema: Any) -> Any:
    """A schema that takes booleans, numbers, text and bytes as they are, as an annotation that is nothing else does: pydantic would make 1
    of True, of "1" and of 1.0. What a class makes of its fields, and a validator of its value, is its author's."""
    if isinstance(schema, list | tuple):
        return type(schema)(map(_with_plain_scalars, schema))
    if not isinstance(schema, dict):
        return schema
    kind = str(schema.get("type"))
    if kind in _OF_AUTHORS or _is_of_author(schema.get("function")):
        return schema
    if kind in _SCALARS and "strict" not in schema:
        return _plain_scalar(kind, schema)
    parts = {key: each if key in _NO_SCHEMAS else _with_plain_scalars(each) for key, each in schema.items()}
    if kind == "union":  # a place in it is named as before
        parts["choices"] = list(map(_named_choice, parts["choices"], schema["choices"]))
    return parts


def _plain_scalar(kind: str, schema: Mapping[str, object]) -> dict[str, object]:
    strict = {**schema, "strict": True}
    if schema.keys() > {"type"}:  # it has bounds
        return strict
    others = [{"type": other, "strict": True} for other in _SCALARS[kind]]
    if others:
        return {"type": "union", "choices": [strict, *others], "custom_error_type": f"{kind}_type"}
    return dict(_BUFFERS) if kind == "bytes" else strict


def _named_choice(choice: object, was: object) -> object:
    return (choice, was["type"]) if isinstance(was, dict) and was["type"] in _SCALARS else choice


def _is_of_author(function: object) -> bool:
    named = function.get("function") if isinstance(function, dict) else None
    return named is not None and not str(getattr(getattr(named, "func", named), "__module__", "")).startswith(
        "pydantic"
    )


class Shape:
    """The type of one value. `adapter` is None where plain data passes as it is."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation
        self._plain = type(None) if annotation is None else annotation if isinstance(annotation, type) else object
        self.adapter = None if any(annotation is each for each in _PLAIN) else TypeAdapter[object](annotation)

    @cached_property
    def _admitted(self) -> Admitted:
        assert self.adapter is not None
        return Admitted(self.annotation, self.adapter.core_schema)

    @cached_property
    def _closed(self) -> TypeAdapter[object] | SchemaValidator:
        # What is handed over is checked by this.
        assert self.adapter is not None
        schema: Any = self.adapter.core_schema
        closed = _with_plain_scalars(_with_closed_typed_dicts(schema))
        return self.adapter if closed == schema else SchemaValidator(closed)

    def encode(self, field: str, value: object, bytes_max: int) -> bytes:
        """Check and encode a value. An agent's `state` passes for a `dict`. Raises `BadRequest`, or `TooLarge` with the limit."""
        if self.adapter is None:
            plain = value if type(value) is self._plain else self._plainly(field, value)
            return pack_value(field, plain, bytes_max)
        return self._encoded(field, self._checked(field, value), bytes_max)

    def with_digest(self, field: str, value: object, bytes_max: int) -> tuple[bytes, str]:
        """Check and encode a value, and digest what its author gave: the same request has the same digest after its class was given a field
        with a default, or another default (see `ledger.requests`)."""
        if self.adapter is None:
            body = self.encode(field, value, bytes_max)
            return body, digest_of(body)
        checked, as_given = self._checked(field, value), self._admitted.as_given
        body = self._encoded(field, checked, bytes_max)
        return body, digest_of(unchecked(body)[1] if as_given is None else pack_value(field, checked, objects=as_given))

    def _encoded(self, field: str, checked: object, bytes_max: int) -> bytes:
        admitted = self._admitted
        body = pack_value(field, checked, bytes_max, admitted)
        if admitted.is_unsure and pack_value(field, _read(field, body, admitted), bytes_max, admitted) != body:
            raise BadRequest(field, f"would arrive otherwise: {checked!r:.200} is not what is made of it again")
        return checked_value(admitted.fingerprint, body)

    def kept(self, field: str, value: object, bytes_max: int) -> object:
        # A checked value for a message: a short plain one as it is, any other one encoded.
        if self.adapter is None and _travels_as_it_is(value, bytes_max):
            return self._plainly(field, value)
        return Kept(self.encode(field, value, bytes_max))

    def _plainly(self, field: str, value: object) -> object:
        if self.annotation is Any:
            return dict(value) if isinstance(value, Mapping) and not isinstance(value, dict) else value
        if isinstance(value, Mapping) and self._plain is dict:
            return dict(value)
        if not isinstance(value, (int, float) if self._plain is float else self._plain):
            raise BadRequest(
                field, f"{value!r:.200} is {class_name(type(value), self._plain)}, not {self._plain.__name__}"
            )
        exactly = _EXACT.get(self._plain)
        return value if exactly is None or type(value) in (bool, int) else exactly(value)

    def _checked(self, field: str, value: object, *, was_checked: bool = False) -> object:
        # A key that the class had when the value was handed over is left out, as a field of a model is.
        checker = self.adapter if was_checked and self.adapter is not None else self._closed
        try:
            return checker.validate_python(value, by_alias=True, by_name=True)
        except (ValidationError, ValueError, TypeError) as problem:
            return self._checked_as_json(field, value, problem, checker)

    def _checked_as_json(
        self, field: str, value: object, problem: Exception, checker: TypeAdapter[object] | SchemaValidator
    ) -> object:
        # JSON writes a date as text, and a strict model takes it only where it knows that this is JSON.
        try:
            return checker.validate_json(json.dumps(value), by_alias=True, by_name=True)
        except (ValueError, TypeError, RecursionError) as closer:
            if isinstance(closer, ValidationError) and isinstance(problem, ValidationError):
                problem = min(problem, closer, key=ValidationError.error_count)
            raise BadRequest(field, _words(problem) + _as_defined_again(problem, self.annotation)) from problem

    def decode(self, field: str, body: bytes) -> object:
        # What was encoded for other annotations, or for none, is checked now.
        if self.adapter is None:
            return _read(field, body)
        fingerprint, plain = unchecked(body)
        if fingerprint == self._admitted.fingerprint:
            return _read(field, plain, self._admitted)
        return self._checked(field, _read(field, plain), was_checked=bool(fingerprint))

    def typed(self, field: str, given: object) -> object:
        # What is given stood within a message.
        if isinstance(given, Kept):
            return self.decode(field, given.body)
        return given if self.adapter is None else self._checked(field, given)


def _read(field: str, body: bytes, admitted: Admitted | None = None) -> object:
    try:
        return unpack_value(body, admitted)
    except (ValueError, TypeError, AttributeError, LookupError) as problem:
        raise BadRequest(field, f"what is kept of it cannot be read: {problem}") from problem


def _travels_as_it_is(value: object, bytes_max: int) -> bool:
    if bytes_max < _SHORT_BYTES:
        return False
    if type(value) is str:
        return len(value) <= _SHORT and value.isascii()
    return value is None or type(value) is bool or (type(value) is int and abs(value) <= _INT_MAX)


def in_short(value: object) -> str:
    if type(value) is int or value is None:
        return preview_of(value) or ""
    try:
        return preview_of(to_jsonable_python(value, by_alias=True, fallback=str)) or ""
    except (ValueError, TypeError, RecursionError):  # bytes that are no text, or keys that JSON does not know
        return preview_of(value) or ""


# An instance of a class is refused by who takes another class of that name: in a notebook, its cell was run again, and theirs was not.
def _as_defined_again(problem: Exception, annotation: object) -> str:
    first = problem.errors()[0] if isinstance(problem, ValidationError) else None
    if first is None or first["type"] not in ("model_type", "dataclass_type", "enum"):
        return ""
    given = type(first["input"])
    wanted = {first.get("ctx", {}).get("class_name"), *re.findall(r"\w+", repr(annotation))}
    if given.__module__ == "builtins" or given.__name__ not in wanted:
        return ""
    name = given.__name__
    return f". It is an instance of another class {name}: if {name} was defined again, define again what takes it, too"


def _words(problem: Exception) -> str:
    if isinstance(problem, ValidationError):
        first = problem.errors()[0]
        place = ".".join(map(str, first["loc"]))
        return f"{place + ': ' if place else ''}{first['msg']}" + (
            f" (and {problem.error_count() - 1} more)" if problem.error_count() > 1 else ""
        )
    return str(problem)
