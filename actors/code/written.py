"""Methods as their authors wrote them: their parameters, and what their annotations mean.

The signature is that of the function that the author wrote, also behind a decorator that does not say what it wraps. A parameter without an
annotation has the one that the nearest base class gives it, by its name or else by its place; so has the result. An annotation that cannot
be resolved is a `BadRequest`, and never a check that is left out.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial, partialmethod
from types import FunctionType
from typing import Any, Final, ForwardRef, NamedTuple, get_args

from perdure.actors.code.annotations import AnnotationPlace, content
from perdure.actors.code.author_call import tried_now
from perdure.actors.code.schema import Shape
from perdure.ledger import BadRequest, way_to_plain

if sys.version_info >= (3, 14):
    from annotationlib import Format

    _LENIENT: Final[dict[str, Any]] = {"annotation_format": Format.FORWARDREF}
else:
    _LENIENT: Final[dict[str, Any]] = {}

EMPTY: Final = inspect.Parameter.empty
BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
WRAPPERS_MAX: Final = 8
ANY_NUMBER: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def signature_of(function: Callable[..., object], *, follow_wrapped: bool = True) -> inspect.Signature:
    # Annotations need not be resolved here.
    try:
        return inspect.signature(function, follow_wrapped=follow_wrapped, **_LENIENT)
    except (ValueError, TypeError) as problem:
        raise BadRequest("signature", f"{function!r:.200} does not say what it takes: {problem}") from problem


class HintSource(NamedTuple):
    signature: inspect.Signature
    place: AnnotationPlace

    @classmethod
    def of(
        cls, function: Callable[..., object], definer: type | None, agent_class: type | None, *, receives: bool
    ) -> HintSource:
        signature = signature_of(function)
        first = next(iter(signature.parameters.values()), None)
        if receives and first is not None and first.kind in BY_PLACE:
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        return cls(signature, AnnotationPlace(_innermost(function), definer, agent_class))

    def annotation(self, name: str, place: int, taken: Mapping[str, object]) -> object:
        # The annotation of a parameter of this name, or else at this place, unless the parameter there is another one of `taken`.
        named = self.signature.parameters.get(name)
        if named is None:
            by_place = [each for each in self.signature.parameters.values() if each.kind in BY_PLACE]
            named = by_place[place] if 0 <= place < len(by_place) and by_place[place].name not in taken else None
        return EMPTY if named is None else named.annotation


class Written:
    """A method as its author wrote it.

    Attributes:
        label: how errors call it.
        signature: what it takes, without its receiver.
    """

    def __init__(self, label: str, sources: Sequence[HintSource]) -> None:
        self.label, self._sources = label, sources
        self.signature = sources[0].signature
        self.parameters = self.signature.parameters
        self._places = {name: at for at, (name, each) in enumerate(self.parameters.items()) if each.kind in BY_PLACE}

    def said(self, name: str) -> tuple[object, AnnotationPlace]:
        # As the nearest class has written it; `EMPTY` if none has.
        for source in self._sources:
            found = source.signature.return_annotation
            if name != "return":
                found = source.annotation(name, self._places.get(name, -1), self.parameters)
            if found is not EMPTY:
                return found, source.place
        return EMPTY, self._sources[0].place

    def hint(self, name: str) -> object:
        """The type of a parameter or of the result (`return`); `Any` without an annotation. Raises `BadRequest`, which names both."""
        said, place = self.said(name)
        if said is EMPTY:
            return Any
        found, problem = tried_now(partial(place.resolved, said))
        if problem is not None:
            raise BadRequest(
                name, f"the annotation `{_text(said)}` in {self.label} {_unresolved(problem)}"
            ) from problem
        return found

    def is_open(self, name: str) -> bool:
        # There is no annotation, or it says as much.
        return self.said(name)[0] in (EMPTY, Any, object, "Any", "object")

    def shape(self, name: str, hint: object) -> Shape:
        """The shape of values of this type. Raises `BadRequest` for a type that cannot be checked, which names the parameter."""
        found, problem = tried_now(partial(_complete, hint))
        if isinstance(problem, BadRequest):
            raise problem
        if found is None:
            why = str(problem).strip().partition("\n")[0].partition(" Set `arbitrary_types_allowed")[0]
            what = f"values of `{_text(hint)}` in {self.label} cannot be checked and sent ({why})"
            advice = "take plain data, a dataclass, a TypedDict or a pydantic model"
            if way := _way_to_plain(hint):
                advice += f"; `{way}` makes plain data of what you have"
            if getattr(problem, "code", "") == "typed-dict-version":
                advice = "write `from typing_extensions import TypedDict`"
            if "both default and default_factory" in why:  # of every field, since what says "none" was copied with it
                advice = (
                    "it was pickled by value, which breaks a dataclass; put it into a module that the program imports"
                )
            raise BadRequest(name, f"{what}; {advice}") from problem
        return found

    def takes_context(self, name: str, kind: str, *, imports: bool = True) -> bool | None:
        """Whether a parameter is annotated with what the runtime gives, the class `kind`; None if that cannot be told yet."""
        said, place = self.said(name)
        if said is EMPTY:
            return False
        found, problem = tried_now(partial(place.resolved, said, imports=imports))
        if problem is None:
            return kind in _contexts_in(found)
        return True if re.search(rf"\b{kind}\b", _text(said)) else None


def _contexts_in(hint: object) -> set[str]:
    inner = [_contexts_in(each) for each in get_args(hint)]
    return {getattr(hint, "__perdure_context__", "")}.union(*inner)


def _way_to_plain(hint: object) -> str:
    own = way_to_plain(hint) if isinstance(hint, type) else ""
    return own or next(filter(None, map(_way_to_plain, get_args(hint))), "")


def _text(annotation: object) -> str:
    if isinstance(annotation, str | ForwardRef):
        return annotation if isinstance(annotation, str) else annotation.__forward_arg__
    return inspect.formatannotation(annotation)


def _unresolved(problem: Exception) -> str:
    if isinstance(problem, NameError):
        name = repr(problem.name) if problem.name else f"a name in it ({problem})"
        return (
            f"cannot be resolved: {name} is not known when the code runs; import or define it at the top of the module"
        )
    if isinstance(problem, ImportError):
        return f"cannot be resolved: it is imported for type checkers only, and cannot be imported now ({problem})"
    return f"cannot be resolved: {type(problem).__name__}: {problem}"


def _complete(hint: object) -> Shape:
    # A type that was written before its parts is resolved now.
    shape = Shape(hint)
    adapter = getattr(shape, "adapter", None)
    if adapter is not None and not adapter.pydantic_complete:
        adapter.rebuild(raise_errors=True)
    return shape


# ---------------------------------------------------------------- finding what the author wrote


def written(
    method: Callable[..., object], agent_class: type | None = None, name: str = "", *, is_method: bool = True
) -> Written:
    """A method of a class, taken from the class or bound to an object of it; with `is_method=False` a function without a receiver."""
    owner, function = getattr(method, "__self__", None), getattr(method, "__func__", None)
    if owner is not None and isinstance(
        function, FunctionType
    ):  # remembered without the object, which may be a whole agent
        agent_class = agent_class or (owner if isinstance(owner, type) else type(owner))
        return _written(function, agent_class, name or function.__name__, receives=True)
    name = name or getattr(method, "__name__", type(method).__name__)
    if not isinstance(method, FunctionType):
        return _written.__wrapped__(method, agent_class, name, receives=False)
    static = None if agent_class is None else inspect.getattr_static(agent_class, name, None)
    return _written(method, agent_class, name, receives=is_method and not isinstance(static, staticmethod))


@lru_cache(maxsize=4096)
def _written(function: Callable[..., object], agent_class: type | None, name: str, *, receives: bool) -> Written:
    definers = [each for each in (() if agent_class is None else agent_class.__mro__) if name in vars(each)]
    label = getattr(function, "__qualname__", name)
    if agent_class is None or not definers:
        return Written(label, [HintSource.of(function, None, None, receives=receives)])
    sources = [HintSource.of(function, definers[0], agent_class, receives=receives)]
    hidden = next(_hidden(sources[0].place.function, f"{definers[0].__qualname__}.{name}", WRAPPERS_MAX), None)
    if hidden is not None:
        takes_anything = any(each.kind in ANY_NUMBER for each in sources[0].signature.parameters.values())
        source = HintSource.of(hidden, definers[0], agent_class, receives=receives)
        sources.insert(0 if takes_anything else 1, source)  # a wrapper that takes anything hands it on
    for base in definers[1:]:
        inherited = getattr(base, name)
        if callable(inherited):
            is_method = isinstance(inherited, FunctionType) and not isinstance(vars(base)[name], staticmethod)
            sources.append(HintSource.of(inherited, base, agent_class, receives=is_method))
    return Written(f"{agent_class.__qualname__}.{name}", sources)


def _innermost(function: Any) -> Any:
    while True:
        if isinstance(function, partial | partialmethod):
            inner = function.func
        else:
            names = ("__partialmethod__", "_partialmethod", "__func__", "__wrapped__")
            inner = next((getattr(function, name) for name in names if getattr(function, name, None) is not None), None)
        if inner is None and not hasattr(function, "__globals__"):
            called = inspect.getattr_static(type(function), "__call__", None)
            return called if isinstance(called, FunctionType) else function
        if inner is None:
            return function
        function = inner


def _hidden(function: object, qualname: str, wrappers_max: int) -> Iterator[FunctionType]:
    for cell in getattr(function, "__closure__", None) or ():
        inner = content(cell)
        if isinstance(inner, FunctionType) and inner.__qualname__ == qualname:
            yield inner
        elif isinstance(inner, FunctionType) and wrappers_max:
            yield from _hidden(inner, qualname, wrappers_max - 1)
