"""The classes whose objects may travel where an annotation stands, and how an object of each is taken apart and made again.

An object is made of what was kept of it without its `__init__` or a validator: it was checked where it was handed over, and a check that
changes a value must not be made twice. That holds as long as the classes have the fields that they had then (`fingerprint`). If they have
others, what was kept is given to pydantic as a dictionary, as if somebody handed it over now.
"""

from __future__ import annotations

import dataclasses
import enum
import typing
from collections.abc import Callable, Iterator
from functools import cached_property
from hashlib import blake2b
from types import MemberDescriptorType
from typing import Any, Protocol, TypeVar, get_args, get_origin

from pydantic import BaseModel, PydanticUserError, RootModel, Secret, SecretBytes, SecretStr, TypeAdapter
from pydantic_core import PydanticSerializationError, PydanticUndefined, ValidationError
from typing_extensions import TypeAliasType, get_type_hints, is_typeddict

from perdure.ledger import FINGERPRINT_BYTES, Unfit

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
        """Whether a class has a say in how its objects are made, so that what is made again has to be compared."""
        return any(each.is_unsure for each in self._classes.values())

    def _admit(self, kind: type) -> dict[str, Any]:
        """Admit objects of a class; what its fields are annotated with."""
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

    def take(self, value: Any) -> list[Any] | None:
        """See `perdure.ledger.values.Objects`."""
        known = self._ways.get(type(value))
        if known is not None:
            return [known[0], *known[1].take(value)]
        if type(value).__name__ == "ValidatorIterator":  # what pydantic makes of an iterable
            return ["", list(value)]
        base = next((each for each in self._ways if isinstance(value, each) and _way_of(type(value))), None)
        if base is not None and not issubclass(base, enum.Enum):
            mine, its = type(value).__name__, base.__name__
            raise Unfit(
                f"is {mine}, a subclass of {its}; it arrives as itself where the annotation names it: `{its} | {mine}`"
            )
        return None

    def make(self, fields: list[Any]) -> object:
        """See `perdure.ledger.values.Objects`."""
        name, *kept = fields
        return self._classes[name].make(*kept) if name else kept[0]


class _Way(Protocol):
    """How objects of one class travel: `take` gives what may be shown of one, and what else is needed to `make` it again."""

    hints: dict[str, Any]
    is_unsure: bool

    def take(self, value: Any) -> list[Any]: ...

    def make(self, shown: Any, more: dict[str, Any] = ..., /) -> object: ...


_NOTHING: dict[str, Any] = {}


class _Model:
    def __init__(self, kind: type[BaseModel]) -> None:
        self._kind, self._is_root = kind, issubclass(kind, RootModel)
        self.is_unsure = _has_own_way(kind)
        self.hints = {name: each.annotation for name, each in kind.model_fields.items()}
        self._hidden = [name for name, each in kind.model_fields.items() if each.exclude]
        self._takes_extra = kind.model_config.get("extra") == "allow"
        self._private = dict.fromkeys(kind.__private_attributes__, PydanticUndefined)
        self._is_simple = not (self._hidden or self._takes_extra or self._private or self._is_root)

    def take(self, value: BaseModel) -> list[Any]:
        kept, given = value.__dict__, value.__pydantic_fields_set__
        if self._is_simple and kept.keys() == self.hints.keys() == given:
            return [kept]
        more: dict[str, Any] = {"hidden": {name: kept[name] for name in self._hidden if name in kept}}
        more["unset"] = [name for name in self.hints if name not in given]
        private = value.__pydantic_private__ or _NOTHING
        more["private"] = {name: each for name, each in private.items() if each is not PydanticUndefined}
        shown = {name: kept[name] for name in self.hints if name in kept and name not in self._hidden}
        more = {name: each for name, each in more.items() if each}
        first = shown.get("root") if self._is_root else shown | (value.__pydantic_extra__ or _NOTHING)
        return [first, more] if more else [first]

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


def _restore(
    made: BaseModel,
    fields: dict[str, Any],
    given: set[str],
    extra: dict[str, Any] | None,
    private: dict[str, Any] | None,
) -> None:
    """As pydantic's own `__setstate__` does."""
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
        self._names = [each.name for each in dataclasses.fields(kind)]
        self.hints = {name: hints.get(name, Any) for name in self._names}
        self._has_slots = any("__slots__" in vars(each) for each in kind.__mro__[:-1])

    def take(self, value: Any) -> list[Any]:
        shown = {name: getattr(value, name) for name in self._names if hasattr(value, name)}
        more = {
            name: each
            for name, each in getattr(value, "__dict__", _NOTHING).items()
            if name not in shown and not isinstance(getattr(self._kind, name, None), cached_property)
        }
        return [shown, more] if more else [shown]

    def make(self, shown: dict[str, Any], more: dict[str, Any] = _NOTHING, /) -> object:
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
    def __init__(self, kind: type[enum.Enum]) -> None:
        self._kind, self.hints, self.is_unsure = kind, _NOTHING, False

    def take(self, value: enum.Enum) -> list[Any]:
        shown = value.value if type(value.value) in _SHOWABLE else value.name
        return [shown, {"member": value.name}] if value.name in self._kind.__members__ else [shown, {"of": value.value}]

    def make(self, _shown: object, more: dict[str, Any] = _NOTHING, /) -> object:
        return self._kind[more["member"]] if "member" in more else self._kind(more["of"])


class _NamedTuple:
    def __init__(self, kind: Any) -> None:
        self._kind, self.hints, self.is_unsure = kind, _hints(kind), False

    def take(self, value: tuple[Any, ...]) -> list[Any]:
        return [list(value)]

    def make(self, shown: list[Any], _more: dict[str, Any] = _NOTHING, /) -> object:
        return tuple.__new__(self._kind, shown)


class _Foreign:
    """A class that pydantic or the class itself knows how to write as JSON, such as an address or a regular expression."""

    def __init__(self, kind: type) -> None:
        self._kind, self.hints, self.is_unsure = kind, _NOTHING, False

    @cached_property
    def _adapter(self) -> TypeAdapter[Any]:
        return TypeAdapter(self._kind)

    def take(self, value: Any) -> list[Any]:
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

    def make(self, shown: Any, _more: dict[str, Any] = _NOTHING, /) -> object:
        return self._adapter.validate_python(shown)


def _has_own_way(kind: Any) -> bool:
    """Whether the class decides itself what a new object of it is."""
    return kind.__new__ is not object.__new__


def _way_of(kind: Any) -> _Way | None:
    """How objects of a class travel; None for plain data, for types that the ledger knows, and for what never travels."""
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


def _hints(kind: Any) -> dict[str, Any]:
    known = getattr(kind, "__pydantic_fields__", None)
    if known is not None:
        return {name: each.annotation for name, each in known.items()}
    try:
        return get_type_hints(kind)
    except (NameError, TypeError):  # pydantic has found the names, or has refused the class
        return {}


def _within(hint: Any) -> Iterator[Any]:
    """What an annotation is made of."""
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
    """The classes in pydantic's own description of a type, where it has found all that was only named."""
    waiting: list[Any] = [schema]
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


def _text(hint: Any) -> str:
    """An annotation in a form that is the same in every process."""
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is typing.Annotated:
        return _text(arguments[0])
    if origin is not None:
        return f"{_text(origin)}[{', '.join(map(_text, arguments))}]"
    return str(getattr(hint, "__qualname__", None) or getattr(hint, "__name__", None) or hint)
