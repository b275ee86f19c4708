"""What an annotation means where an author wrote it. Each is resolved by itself, so one that cannot be resolved hides no other.

A name is looked for where Python looks: among type parameters, in the body of the class, around the function, in the module. If it is in
none of these, what the module imports under `if TYPE_CHECKING:` is imported now.

A type variable of a generic base stands for what the class names for it (`class Child(Base[Topic])`), else for its default or its bound.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from functools import cache, lru_cache
from types import CellType, SimpleNamespace
from typing import (
    Any,
    ForwardRef,
    Generic,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from perdure.actors.code.naming import IMPORTING
from perdure.actors.code.typed_texts import typed_texts

Names = dict[str, object]


class AnnotationPlace(NamedTuple):
    """Where an annotation is written, and for which class it is read."""

    function: Callable[..., object]
    definer: type | None = None
    agent_class: type | None = None

    @property
    def module(self) -> Names:
        return cast("Names", getattr(self.function, "__globals__", {}))

    def names(self) -> Names:
        code, cells = getattr(self.function, "__code__", None), getattr(self.function, "__closure__", None) or ()
        around = {} if code is None else dict(zip(code.co_freevars, map(content, cells), strict=False))
        found = {name: value for name, value in around.items() if value is not _EMPTY}
        if self.definer is not None:
            found |= _of_class(self.definer, self.module)
        return found | _parameters_of_type(self.function)

    def resolved(self, annotation: object, *, imports: bool = True) -> object:
        """The type that an annotation means here. What Python raises for one that means none is raised.

        Args:
            imports: whether a name may be imported that stands under `if TYPE_CHECKING:` only.
        """
        found = _evaluated(annotation, self.module, self.names(), imports=imports)
        if self.definer is None:
            return _filled(found, {}, is_open=False)
        given = _given(self.agent_class or self.definer).get(self.definer, {})
        return _filled(found, given, is_open=is_of_perdure(self.definer))


_EMPTY = object()


def content(cell: CellType) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # what it is for has not been assigned yet
        return _EMPTY


def _of_class(definer: type, module: Mapping[str, object]) -> Names:
    # A method that is called `list` is not what `list[int]` means, so only the types count.
    own = {definer.__name__: definer} if definer.__name__ not in module else {}
    return own | _parameters_of_type(definer) | {name: each for name, each in vars(definer).items() if _is_type(each)}


def _is_type(value: object) -> bool:
    return isinstance(value, type | TypeVar) or get_origin(value) is not None or hasattr(value, "__value__")


def _parameters_of_type(thing: object) -> Names:
    return {each.__name__: each for each in getattr(thing, "__type_params__", ())}


def _evaluated(annotation: object, module: Names, names: Names, *, imports: bool = True) -> object:
    while True:  # each round adds one name that is missing
        try:
            alone = SimpleNamespace(__annotations__={"it": annotation})
            return get_type_hints(alone, module, names, include_extras=True)["it"]
        except NameError as problem:
            if not imports or problem.name is None or problem.name in names:
                raise
            names[problem.name] = _for_checkers(problem.name, module, problem)


def _for_checkers(name: str, module: Names, missing: NameError) -> object:
    # What a module calls so under `if TYPE_CHECKING:`, where running code has nothing.
    found: Names = {}
    for statement in _statements_for_checkers(_text(module)):
        match statement:
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                wanted = [each for each in aliases if (each.asname or each.name.partition(".")[0]) == name]
                if wanted:
                    found |= _imported(statement, wanted, module)
            case ast.Assign(targets=[ast.Name(id=target)]) | ast.AnnAssign(target=ast.Name(id=target)) if (
                target == name
            ):
                if statement.value is not None:
                    return _evaluated(ast.unparse(statement.value), module, {})
    if name not in found:
        raise missing
    return found[name]


def _imported(statement: ast.Import | ast.ImportFrom, wanted: list[ast.alias], module: Names) -> Names:
    alone = copy(statement)  # the statement itself is part of a tree that is cached
    alone.names = wanted
    about = {each: module.get(each) for each in ("__name__", "__package__")}
    found: Names = {}
    with IMPORTING:
        exec(compile(ast.Module([alone], []), "<annotation>", "exec"), about, found)  # noqa: S102 - the author's own code
    return found


def _text(module: Names) -> str:
    known = sys.modules.get(str(module.get("__name__")))
    try:
        return inspect.getsource(known) if known is not None else ""
    except (OSError, TypeError):
        return "\n".join(typed_texts()) if module.get("__name__") == "__main__" else ""


def _statements_for_checkers(text: str) -> Iterator[ast.stmt]:
    for node in ast.walk(_parsed(text)):
        if isinstance(node, ast.If) and ast.unparse(node.test).rpartition(".")[2] == "TYPE_CHECKING":
            yield from node.body


@lru_cache(maxsize=32)
def _parsed(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError):  # what was typed may hold commands of the shell
        return ast.Module([], [])


# ---------------------------------------------------------------- type variables


@cache
def _given(agent_class: type) -> dict[type, dict[object, object]]:
    # What is passed through several generations stands here as it is at the end.
    found: dict[type, dict[object, object]] = {}
    for each in agent_class.__mro__:
        module = vars(sys.modules[each.__module__]) if each.__module__ in sys.modules else {}
        for base in vars(each).get("__orig_bases__", ()):
            origin, named = get_origin(base), get_args(base)
            variables = getattr(origin, "__parameters__", ())
            if origin in (None, Generic, Protocol) or not named:
                continue
            types = [_evaluated(one, module, _of_class(each, module)) if _has_text(one) else one for one in named]
            through = found.get(each, {})
            known = {
                key: _filled(one, through, is_open=is_of_perdure(each))
                for key, one in zip(variables, types, strict=False)
            }
            found.setdefault(origin, known)
    return found


def is_of_perdure(definer: type) -> bool:
    # What a class of the runtime leaves open may be anything.
    return definer.__module__.partition(".")[0] == __name__.partition(".")[0]


def _has_text(annotation: object) -> bool:
    return isinstance(annotation, str | ForwardRef) or any(map(_has_text, get_args(annotation)))


def _filled(annotation: Any, given: Mapping[object, object], *, is_open: bool) -> object:
    # With `is_open`, a variable that has no type given stands for anything.
    if isinstance(annotation, TypeVar):
        if annotation in given:
            return given[annotation]
        return Any if is_open else _otherwise(annotation)
    # a generic model of pydantic is a class that has arguments too
    has_arguments = getattr(annotation, "__pydantic_generic_metadata__", {}).get("args")
    is_plain_class = isinstance(annotation, type) and not has_arguments
    variables = () if is_plain_class else getattr(annotation, "__parameters__", ())
    if not variables or not all(isinstance(each, TypeVar) for each in variables):
        return annotation
    return annotation[tuple(_filled(each, given, is_open=is_open) for each in variables)]


def _otherwise(variable: TypeVar) -> object:
    module = vars(sys.modules[variable.__module__]) if variable.__module__ in sys.modules else {}
    has_default = getattr(variable, "has_default", bool)()
    if has_default:
        found = cast("Any", variable).__default__
    elif variable.__constraints__:
        found = Union[variable.__constraints__]  # noqa: UP007 - of a tuple
    else:
        found = Any if variable.__bound__ is None else variable.__bound__
    return _filled(_evaluated(found, module, {}), {}, is_open=False)
