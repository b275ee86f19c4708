"""What a method takes and gives: the shapes of its arguments, of its result, and of each value that its generator gives.

A call is checked by the method's signature. A `run` and the body of a fiber are *entered*: with one input, and with the context that the
runtime gives. Only a parameter that asks for the context gets it.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeVar, cast, get_args

from perdure.actors.code.author_call import tried_now
from perdure.actors.code.schema import Shape
from perdure.actors.code.written import ANY_NUMBER, BY_PLACE, EMPTY, Written, signature_of, written
from perdure.ledger import BadRequest, digest_of, pack, unpack

T = TypeVar("T")
NOTHING: Final = pack(None)
RUN, FIBER = "RunContext", "FiberContext"


class Arguments(NamedTuple):
    args: list[object]  # without `self`
    kwargs: dict[str, object]


class _Call(NamedTuple):
    """What is needed to convert the arguments of a call and its answer.

    Args:
        by_place: how many arguments it takes that may all be given by their places; -1 if there is any other.
        lent: the defaults that a call could change for the next ones.
    """

    signature: inspect.Signature
    shapes: dict[str, Shape]
    returned: Shape
    by_place: int
    lent: dict[str, object]


@lru_cache(maxsize=4096)
def _call(method: Callable[..., object], agent_class: type | None, name: str) -> _Call:
    of = written(method, agent_class, name)
    kinds = {each: parameter.kind for each, parameter in of.parameters.items()}
    shapes = {each: of.shape(each, of.hint(each)) for each in kinds}
    returned = of.hint("return")
    if gives_bit_by_bit(method):
        returned = next(iter(get_args(returned)), Any)
    gives = of.shape("return", returned)
    by_place = len(kinds) if all(kind in BY_PLACE for kind in kinds.values()) else -1
    defaults = {name: parameter.default for name, parameter in of.parameters.items()}
    lent = {name: default for name, default in defaults.items() if own_default(default) is not default}
    return _Call(of.signature, shapes, gives, by_place, lent)


def bound(
    method: Callable[..., object],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    each: Callable[[Shape, str, object], object],
    agent_class: type | None = None,
    name: str = "",
) -> Arguments:
    """The arguments of a method, each converted. Raises `TypeError` if they are not what it takes."""
    signature, shapes, _, by_place, _ = _call(method, agent_class, name)
    if not kwargs and len(args) == by_place:
        return Arguments([each(shapes[name], name, value) for name, value in zip(shapes, args, strict=True)], {})
    try:
        found = signature.bind(*args, **kwargs)
    except TypeError as problem:
        called = f"{agent_class.__name__}.{name}" if agent_class is not None else getattr(method, "__qualname__", "it")
        raise TypeError(f"{called}(): {problem}") from None
    for parameter, value in found.arguments.items():
        convert, kind = partial(each, shapes[parameter], parameter), signature.parameters[parameter].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            found.arguments[parameter] = tuple(map(convert, value))
        elif kind is inspect.Parameter.VAR_KEYWORD:
            found.arguments[parameter] = {key: convert(one) for key, one in value.items()}
        else:
            found.arguments[parameter] = convert(value)
    return Arguments(list(found.args), found.kwargs)


def shapes_of(
    method: Callable[..., object], agent_class: type | None = None, name: str = ""
) -> tuple[dict[str, Shape], Shape]:
    """The shapes of a method's parameters (without `self`; of `*words: str` those of each) and of its return value, or of each value that
    its generator gives."""
    return _call(method, agent_class, name)[1:3]


def gives_bit_by_bit(method: Callable[..., object]) -> bool:
    return inspect.isasyncgenfunction(method) or inspect.isgeneratorfunction(method)


def exposed_call(agent_class: type, method_name: str, body: bytes) -> tuple[Arguments, Shape]:
    """The typed arguments of a call over a handle, and the shape of its answer. Only exposed methods can be called."""
    method: Any = getattr(agent_class, method_name, None)
    if not hasattr(method, "__perdure_exposed__"):
        raise unexposed(agent_class, method_name)
    args, kwargs = unpack(body)
    arguments = bound(method, args, kwargs, Shape.typed, agent_class, method_name)
    of = _call(method, agent_class, method_name)
    return (_with_own_defaults(arguments, of) if of.lent else arguments), of.returned


def _with_own_defaults(given: Arguments, of: _Call) -> Arguments:
    found = of.signature.bind(*given.args, **given.kwargs)
    own = {name: own_default(default) for name, default in of.lent.items() if name not in found.arguments}
    found.apply_defaults()
    found.arguments |= own
    return Arguments(list(found.args), found.kwargs)


def own_default(default: T) -> T:
    """What an argument is that was not given: a copy, if it has no hash, so that code that changes it changes it for nobody else. An agent
    shares its process with others."""
    try:
        hash(default)
    except TypeError:
        return _copied(default)
    return default


def _copied(value: T) -> T:
    copy, problem = tried_now(partial(deepcopy, value))  # which is an author's code, and refuses a lock or a connection
    return value if problem is not None else cast("T", copy)


def unexposed(agent_class: type, name: str) -> BadRequest:
    """What a call of a method is refused with that nobody may call, or that is not there."""
    exposed = (each for each in dir(agent_class) if hasattr(getattr(agent_class, each, None), "__perdure_exposed__"))
    hidden = next((each for each in agent_class.__mro__ if hasattr(vars(each).get(name), "__perdure_exposed__")), None)
    if hidden is not None:
        words = f"overrides one of {hidden.__name__} that is exposed, but is not itself: mark it `@exposed`, too"
        return BadRequest("method", f"{agent_class.__name__}.{name} {words}")
    near = get_close_matches(name, [each for each in exposed if not each.startswith("_")], n=1)
    meant = f"; did you mean {near[0]!r}?" if near else ""
    return BadRequest("method", f"{agent_class.__name__} has no exposed method {name!r:.100}{meant}")


def check_takes(agent_class: type, field: str, name: str, *named: str) -> None:
    """Raises `BadRequest` if a method cannot be called with these arguments, by position: it would fail each time."""
    method = getattr(agent_class, name)
    bind = partial(written(method, agent_class, name).signature.bind, *named)
    _check_call(field, f"{agent_class.__name__}.{name}", method, bind, named)


def check_function_takes(field: str, function: Callable[..., object], *named: str) -> None:
    """`check_takes` for whatever is called as it is: a function, the method of an object, a `functools.partial`. What some are called with,
    which are not written in Python, cannot be known."""
    inner, keywords = function, dict[str, object]()
    if isinstance(function, partial):
        inner, named, keywords = function.func, (*map("{!r:.40}".format, function.args), *named), function.keywords
    signature, _ = tried_now(partial(signature_of, inner, follow_wrapped=False))
    if signature is not None:
        label = getattr(inner, "__qualname__", f"{inner!r:.200}")
        _check_call(field, label, inner, partial(signature.bind, *named, **keywords), named)


def _check_call(
    field: str, label: str, function: Callable[..., object], bind: Callable[[], object], named: Sequence[str]
) -> None:
    try:
        bind()
    except TypeError as problem:
        wanted = f"{label}() is called with ({', '.join(named)})"
        raise BadRequest(field, f"{wanted}, which it does not take: {problem}") from None
    if gives_bit_by_bit(function):
        raise BadRequest(field, f"{label}() is a generator, whose code nobody would enter")


def check_options(called: str, given: Iterable[object], known: Iterable[str]) -> None:
    """Raises `BadRequest` for what is no argument of what was called, and names one that is like it."""
    for unknown in sorted(set(map(str, given)).difference(known))[:1]:
        near = get_close_matches(unknown, known, n=1)
        meant = f"; did you mean {near[0]!r}?" if near else _INSTEAD.get(unknown, "")
        raise BadRequest(unknown, f"is no argument of {called}{meant}")


_INSTEAD: Final = {
    "timeout": "; in async code `asyncio.timeout` bounds the wait",
    "args": "; bind what it takes by `functools.partial`",
}


# ---------------------------------------------------------------- what is entered


class Entered(NamedTuple):
    """A method that is entered with an input and a context.

    Args:
        input: the name of the parameter for the input; empty if it takes none.
        context: the name of the parameter for the context; empty if it takes none.
        hint: the type of the input.
        default: what the input is if none is given (`None`); `EMPTY` if it has to be given.
        by_place: the parameters that are given by their places, with their defaults.
        by_name: those that are given by their names, with their defaults.
    """

    takes: Shape
    gives: Shape
    input: str
    context: str
    hint: object
    default: object
    by_place: tuple[tuple[str, object], ...]
    by_name: tuple[tuple[str, object], ...]

    def encode(self, value: object, bytes_max: int) -> tuple[bytes, str]:
        # With its digest. None is no input, where there is a default.
        if value is None and self.default is not EMPTY:
            return NOTHING, digest_of(NOTHING)
        try:
            return self.takes.with_digest("input", value, bytes_max)
        except BadRequest as problem:
            if value is None:
                raise BadRequest("input", f"is missing, or is None: {problem.problem}") from problem.__cause__
            raise

    def decode(self, body: bytes) -> object:
        if body == NOTHING and self.default is not EMPTY:
            return own_default(self.default)
        return self.takes.decode("input", body)

    def arguments(self, value: object, context: object) -> Arguments:
        given = {self.context: context, self.input: value}
        args = [given[name] if name in given else own_default(default) for name, default in self.by_place]
        named = {name: given[name] if name in given else own_default(default) for name, default in self.by_name}
        return Arguments(args, named)


def _run_shapes(agent_class: Any) -> Entered:
    of = written(agent_class.run, agent_class, "run")
    roles = _roles_in_run(of, agent_class.run)
    return _entered(of, *roles, of.shape("return", of.hint("return")))


# Assigned, not decorated: type checkers would lose the parameters of a function under `lru_cache`.
run_shapes: Final[Callable[[type], Entered]] = lru_cache(maxsize=4096)(_run_shapes)
"""What the `run` of an agent takes and gives. Raises `BadRequest` if it could not be entered, or an annotation cannot be resolved."""


def check_run(agent_class: Any) -> None:
    # As far as can be told while the module is still being executed.
    if callable(getattr(agent_class, "run", None)):
        _roles_in_run(written(agent_class.run, agent_class, "run"), agent_class.run, imports=False)


def _roles_in_run(of: Written, run: Callable[..., object], *, imports: bool = True) -> tuple[str, str]:
    if gives_bit_by_bit(run):
        raise BadRequest(
            "run", f"{of.label} is a generator; it returns its output, and `run.emit` tells of pieces on the way"
        )
    found: dict[str, str] = {}
    for name, each in of.parameters.items():
        asks = of.takes_context(name, RUN, imports=imports)
        if asks is None and not imports:
            return "", ""
        if asks is None:
            of.hint(name)  # says what is wrong with it
        is_open = name == "run" and each.default is EMPTY and of.is_open(name)
        role = "context" if asks or is_open else "input"
        if each.kind in ANY_NUMBER or (role in found and each.default is not EMPTY):
            continue
        if role in found:
            raise BadRequest(name, f"{_shown(of)} {_TOO_MANY[role].format(found[role], name)}")
        found[role] = name
    if of.parameters and not found:
        raise BadRequest("run", f"{_shown(of)} {_HIDDEN}")
    return found.get("input", ""), found.get("context", "")


_TOO_MANY: Final = {
    "input": "takes more than one input, `{}` and `{}`, and a run has one: make it a model with both. Only a parameter that is annotated "
    "`RunContext`, or is called `run`, gets the context",
    "context": "asks for the context twice, in `{}` and `{}`",
}
_HIDDEN: Final = "does not name its input, so nothing could be checked: name it, or have the decorator that hides it use `functools.wraps`"


def _shown(of: Written) -> str:
    return f"{of.label}{str(of.signature).partition(' ->')[0]}"


def _fiber_shape(agent_class: type, name: str) -> Entered:
    method = getattr(agent_class, name)
    of = written(method, agent_class, name)
    if gives_bit_by_bit(method):
        raise BadRequest("fn_name", f"{of.label} is a generator, whose code nobody would enter")
    named = [each for each, parameter in of.parameters.items() if parameter.kind not in ANY_NUMBER]
    if of.parameters and not named:
        raise BadRequest("fn_name", f"{_shown(of)} {_HIDDEN}")
    asking = [each for each in named if of.takes_context(each, FIBER)]
    context = asking[0] if asking else named[0] if named else ""
    if context and not asking and not of.is_open(context):
        raise BadRequest(
            "fn_name", f"{_shown(of)} is called with the fiber and the input; its first parameter is the fiber"
        )
    others = [each for each in named if each != context]
    wanting = [each for each in others[1:] if of.parameters[each].default is EMPTY]
    if wanting:
        raise BadRequest("fn_name", f"{_shown(of)} is called with the fiber and the input; nobody gives `{wanting[0]}`")
    return _entered(of, others[0] if others else "", context, Shape(Any))


fiber_shape: Final[Callable[[type, str], Entered]] = lru_cache(maxsize=4096)(_fiber_shape)
"""What the body of a fiber takes: the fiber first, or where a parameter is annotated `FiberContext`; then the input."""


def _entered(of: Written, input_name: str, context: str, gives: Shape) -> Entered:
    hint = of.hint(input_name) if input_name else Any
    # What nobody gives is left out, unless a call could change it for the next ones.
    given = [
        (name, each.default)
        for name, each in of.parameters.items()
        if each.kind in BY_PLACE or name in (input_name, context) or own_default(each.default) is not each.default
    ]
    by_place = [each for each in given if of.parameters[each[0]].kind in BY_PLACE]
    while by_place and by_place[-1][0] not in (input_name, context) and own_default(by_place[-1][1]) is by_place[-1][1]:
        by_place.pop()
    return Entered(
        of.shape(input_name, hint),
        gives,
        input_name,
        context,
        hint,
        of.parameters[input_name].default if input_name else EMPTY,
        tuple(by_place),
        tuple(each for each in given if of.parameters[each[0]].kind not in BY_PLACE),
    )
