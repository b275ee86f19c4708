"""One statement of a program: of which kind it is, and what it does to the names of its module: which it reads, binds and changes, and what
it calls.

It is read from the text, and nothing is executed. Scopes are Python's: a local name of a function is no name of the module. A name that is
bound to what another name holds *shares* it: what changes one may change the other.
"""

# ruff: noqa: N815 - the names of visitors are those of `ast`

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

_Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
DOC: Final = "__doc__"
ARGUMENT: Final = "<argument>"
"""Stands for whatever a function was given."""

SELF: Final = "<self>"
"""Stands for the object whose method it is."""

ANYTHING: Final = "*"
"""Stands for all names: of `from x import *`, `globals()` and `exec`."""

OF_THE_PROCESS: Final = frozenset({"os.environ", "sys.path", "sys.modules", "sys.argv", "sys.stdin"})
"""What belongs to the whole process is a name of its own."""

_OTHER_WAYS: Final = {"os.getenv": "os.environ", "os.environb": "os.environ"}
_MODULE_ITSELF: Final = ("globals", "vars", "locals")
_NEW_VALUES: Final = frozenset({"bool", "bytes", "float", "hash", "id", "int", "len", "repr", "str", "sum"})
_LAMBDA: Final = "<lambda>"


# ---------------------------------------------------------------- kinds


def surely_bound(node: ast.stmt) -> set[str]:
    """The names that a statement binds whatever happens."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        binds_package = is_plain_import(node) and any("." in alias.name for alias in node.names)
        return set() if binds_package else {alias.asname or alias.name for alias in node.names}
    if isinstance(node, ast.Assign):
        targets: list[ast.expr] = list(node.targets)
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target] if node.value is not None else []
    else:
        return {DOC} if is_text(node) else set()
    flat = (part for target in targets for part in (target.elts if isinstance(target, ast.Tuple) else [target]))
    return {part.id for part in flat if isinstance(part, ast.Name)}


def is_definition(node: ast.stmt) -> bool:
    kinds = (
        ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
    )
    return isinstance(node, kinds) or type(node).__name__ == "TypeAlias"


def is_plain_import(node: ast.stmt) -> bool:
    # `import a.b` adds to what `import a.c` bound.
    return isinstance(node, ast.Import) and not any(alias.asname for alias in node.names)


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def is_main_block(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "__name__" in {
        part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)
    }


def is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def imports(nodes: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    for node in (part for top in nodes for part in _outside_functions(top)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                yield (alias.asname, alias.name) if alias.asname else (top, top)
        elif isinstance(node, ast.ImportFrom):
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def imported_modules(nodes: Iterable[ast.stmt]) -> Iterator[str]:
    for node in (part for top in nodes for part in _outside_functions(top) if isinstance(part, ast.Import)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)


def _outside_functions(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda | ast.expr):
        for child in ast.iter_child_nodes(node):
            yield from _outside_functions(child)


# ---------------------------------------------------------------- names


def _bound_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these bind in their own scope; `*` for an import of everything."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            yield from _bound_in(node.decorator_list)
            continue
        if isinstance(node, ast.ExceptHandler):  # its name is unbound after it
            yield from (name for name in _bound_in(ast.iter_child_nodes(node)) if name != node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, _Comprehension):
            yield from (part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
        elif not isinstance(node, ast.Lambda):
            yield from _bound_in(ast.iter_child_nodes(node))


def _dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    before = _dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


def _declared(node: ast.AST, kind: type[ast.Global | ast.Nonlocal]) -> Iterator[str]:
    if isinstance(node, kind):
        yield from node.names
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from _declared(child, kind)


def _parts_of(node: ast.AST | None) -> Iterator[ast.AST]:
    """The parts of an expression that its value may be, or hold."""
    if isinstance(node, ast.Attribute | ast.Subscript | ast.Starred | ast.Await | ast.NamedExpr):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    elif isinstance(node, ast.BoolOp | ast.Dict):
        yield from (value for value in node.values if value is not None)
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        yield from node.elts
    elif isinstance(node, ast.BinOp):
        yield from (node.left, node.right)


# ---------------------------------------------------------------- effects


class CallSite(NamedTuple):
    """A call: the function's or method's last name, its whole path if it is one of names, whose method it is, and what it is given.
    `alone` says that its result is not used."""

    name: str
    path: str
    on: frozenset[str]
    given: frozenset[str]
    alone: bool = False

    @property
    def function(self) -> set[str]:
        # A method of what has no name may be called as a function of the program is.
        return {self.name} if self.path == self.name else set()


@dataclass
class Effects:
    """What a statement does when it is executed, and in `bodies` what its functions and classes do when they are called."""

    reads: set[str] = field(default_factory=set)
    hints: set[str] = field(default_factory=set)
    """Texts that may be names: quoted annotations."""
    binds: set[str] = field(default_factory=set)
    changes: set[str] = field(default_factory=set)
    """Names whose objects it changes: by an assignment to an attribute or an item."""
    calls: list[CallSite] = field(default_factory=list)
    shares: dict[str, set[str]] = field(default_factory=dict)
    derives: dict[str, set[str]] = field(default_factory=dict)
    """What names share with what calls return: that may hold what they were given."""
    bases: set[str] = field(default_factory=set)
    bodies: dict[str, Effects] = field(default_factory=dict)
    awaits: bool = False

    def later(self) -> set[str]:
        return set[str]().union(*(body.reads | body.later() for body in self.bodies.values()))

    def all_hints(self) -> set[str]:
        return self.hints.union(*(body.all_hints() for body in self.bodies.values()))


@lru_cache(maxsize=8192)
def effects_of(node: ast.stmt) -> Effects:
    effects = Effects(binds=set(_bound_in([node])))
    _Reader(effects, [], {}).visit(node)
    return effects


# Names that are not the module's, and what of it they share.
@dataclass
class _Scope:
    is_class: bool
    names: set[str]
    shares: dict[str, set[str]] = field(default_factory=dict)
    derives: dict[str, set[str]] = field(default_factory=dict)


class _Reader(ast.NodeVisitor):
    def __init__(self, effects: Effects, scopes: Sequence[_Scope], caught: Mapping[str, _Scope], of: str = "") -> None:
        self._effects, self._scopes, self._caught, self._of = effects, scopes, caught, of

    # ------------------------------------------------------------------ names

    def _scope_of(self, name: str) -> _Scope | None:
        inner = self._scopes[-1:]
        visible = [scope for scope in self._scopes if not scope.is_class or scope in inner]
        return next((scope for scope in reversed(visible) if name in scope.names), self._caught.get(name))

    def _holds(self, node: ast.AST | None, *, through_calls: bool = True) -> set[str]:
        if isinstance(node, ast.Name):
            scope = self._scope_of(node.id)
            if scope is None:
                return {node.id}
            more = scope.derives.get(node.id, set()) if through_calls else set()
            return scope.shares.get(node.id, set()) | more
        if isinstance(node, ast.Call):
            if _dotted(node.func) in _MODULE_ITSELF and not node.args:
                return {ANYTHING}
            makes_new = isinstance(node.func, ast.Name) and node.func.id in _NEW_VALUES
            return self._given(node) | self._holds(node.func) if through_calls and not makes_new else set()
        if isinstance(node, ast.Attribute) and _dotted(node) in OF_THE_PROCESS:
            return {_dotted(node)}
        if isinstance(node, _Comprehension):
            return self._collected(node, through_calls=through_calls)
        parts = [self._holds(part, through_calls=through_calls) for part in _parts_of(node)]
        return set[str]().union(*parts)

    def _collected(self, node: _Comprehension, *, through_calls: bool) -> set[str]:
        # It holds what it iterates over if its elements are, or are in, what the loop gives.
        each = node.value if isinstance(node, ast.DictComp) else node.elt
        names = {name for loop in node.generators for name in _bound_in([loop.target])}
        held = self._holds(each, through_calls=through_calls)
        if not held & names:
            return held
        loops = (self._holds(loop.iter, through_calls=through_calls) for loop in node.generators)
        return (held - names).union(*loops)

    def _given(self, node: ast.Call) -> set[str]:
        return set[str]().union(*(self._holds(each) for each in (*node.args, *(each.value for each in node.keywords))))

    def _bind(self, target: ast.AST | None, value: ast.AST | None) -> None:
        if isinstance(target, ast.Attribute | ast.Subscript):
            names = self._holds(target.value)
        else:
            names = set(_bound_in([target])) if target is not None else set()
        for name in names:
            place = self._scope_of(name) or self._effects
            place.shares.setdefault(name, set()).update(self._holds(value, through_calls=False) - {name})
            place.derives.setdefault(name, set()).update(self._holds(value) - {name})

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load) and self._scope_of(node.id) is None:
            self._effects.reads.add(node.id)
        elif not isinstance(node.ctx, ast.Load):
            self._bound_here(node.id)

    def _bound_here(self, name: str) -> None:
        if self._scopes and self._scopes[-1].is_class:
            self._scopes[-1].names.add(name)

    def visit_Return(self, node: ast.Return | ast.Yield | ast.YieldFrom) -> None:
        self._gives(node.value)
        self.generic_visit(node)

    visit_Yield = visit_Return
    visit_YieldFrom = visit_Return

    def _gives(self, value: ast.AST | None) -> None:
        if self._of and (held := self._holds(value) - {ARGUMENT, SELF}):
            self._effects.derives.setdefault(self._of, set()).update(held)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and node.value.isidentifier():
            self._effects.hints.add(node.value)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = _dotted(node)
        if path in OF_THE_PROCESS or path in _OTHER_WAYS:
            self._effects.reads.add(_OTHER_WAYS.get(path, path))
        self._stored(node)
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self._stored(node)
        self.generic_visit(node)

    def _stored(self, node: ast.Attribute | ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            whole = {_dotted(node)} & OF_THE_PROCESS  # `sys.path = [...]`
            self._effects.changes |= whole or self._holds(node.value)

    # ------------------------------------------------------------------ statements

    def visit_Assign(self, node: ast.Assign) -> None:
        only = node.targets[0]
        if isinstance(node.value, ast.Lambda) and isinstance(only, ast.Name) and not self._scopes:
            self.visit(node.value.args)
            self._body(only.id, node.value, [node.value.body])
            return
        self.visit(node.value)
        for target in node.targets:
            self.visit(target)
            self._bind(target, node.value)
            for other in node.targets:
                self._bind(target, other if other is not target else None)

    def visit_AnnAssign(self, node: ast.AnnAssign | ast.NamedExpr) -> None:
        for part in (node.value, node.target, getattr(node, "annotation", None)):
            if part is not None:
                self.visit(part)
        self._bind(node.target, node.value)

    visit_NamedExpr = visit_AnnAssign

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.visit(node.value)
        if isinstance(node.target, ast.Name):
            self._effects.changes |= self._holds(node.target)
            self._effects.reads |= {node.target.id} if self._scope_of(node.target.id) is None else set()
        self.visit(node.target)
        self._bind(node.target, node.value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._awaited(isinstance(node, ast.AsyncFor))
        self.visit(node.iter)
        self._bind(node.target, node.iter)
        for part in (node.target, *node.body, *node.orelse):
            self.visit(part)

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self._bind(item.optional_vars, item.context_expr)
            self._effects.calls.append(
                CallSite("__enter__", "", frozenset(self._holds(item.context_expr)), frozenset())
            )
        self._awaited(isinstance(node, ast.AsyncWith))
        self.generic_visit(node)

    visit_AsyncWith = visit_With

    def visit_Match(self, node: ast.Match) -> None:
        for case in node.cases:
            for name in _bound_in([case.pattern]):
                self._bind(ast.Name(name, ast.Store()), node.subject)
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        before = self._caught
        if node.name is not None:
            self._caught = {**before, node.name: _Scope(is_class=False, names={node.name})}
        self.generic_visit(node)
        self._caught = before

    def visit_Await(self, node: ast.Await) -> None:
        self._awaited(there=True)
        self.generic_visit(node)

    def _awaited(self, there: bool) -> None:
        self._effects.awaits |= there and all(scope.is_class for scope in self._scopes)

    # ------------------------------------------------------------------ calls

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._effects.calls.append(self._call(node.value)._replace(alone=True))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        self._effects.calls.append(self._call(node))
        self.generic_visit(node)

    def _call(self, node: ast.Call) -> CallSite:
        given = frozenset(self._given(node))
        if isinstance(node.func, ast.Name) and self._scope_of(node.func.id) is None:
            return CallSite(node.func.id, node.func.id, frozenset(), given)
        if isinstance(node.func, ast.Attribute):
            return CallSite(node.func.attr, _dotted(node.func), frozenset(self._holds(node.func.value)), given)
        return CallSite("", "", frozenset(self._holds(node.func)), given)

    def _decorated(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        is_ours = self._scope_of(node.name) is not None or any(scope.is_class for scope in self._scopes[-1:])
        given = frozenset[str]() if is_ours else frozenset({node.name})
        for decorator in node.decorator_list:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            self._effects.calls.append(self._call(ast.Call(called, [], []))._replace(given=given))
            self.visit(decorator)
        self._bound_here(node.name)

    # ------------------------------------------------------------------ functions and classes

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._decorated(node)
        for part in (node.args, node.returns, *getattr(node, "type_params", ())):
            if part is not None:
                self.visit(part)
        self._body(node.name, node, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        name = f"{_LAMBDA}{id(node)}"  # so that it is not taken for the lambda of another statement
        self._body(name, node, [node.body])
        self._effects.calls.append(CallSite(name, name, frozenset(), frozenset()))

    def _body(
        self, name: str, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, body: Sequence[ast.AST]
    ) -> None:
        # A function inside a function is taken for called with it.
        every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        parameters = {each.arg for each in every if each is not None}
        ours = {name for part in body for name in _declared(part, ast.Global)}
        outer = {name for part in body for name in _declared(part, ast.Nonlocal)}
        scope = _Scope(is_class=False, names=(parameters | set(_bound_in(body))) - ours - outer)
        scope.shares = {parameter: {ARGUMENT} for parameter in parameters}
        if every[0] is not None and self._scopes and self._scopes[-1].is_class:
            scope.shares[every[0].arg] = {SELF}
        within = any(not scope.is_class for scope in self._scopes)
        effects = self._effects if within else self._effects.bodies.setdefault(name, Effects())
        effects.binds |= ours & set(_bound_in(body))
        reader = _Reader(effects, [*self._scopes, scope], self._caught, "" if within else self._of or name)
        for part in body:
            reader.visit(part)
        if isinstance(node, ast.Lambda):
            reader._gives(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._decorated(node)
        for keyword in node.keywords:
            self.visit(keyword.value)
            if keyword.arg == "metaclass":
                self._effects.calls.append(self._call(ast.Call(keyword.value, [], [])))
        for base in node.bases:
            self.visit(base)
            self._effects.bases |= self._holds(base)
        within = any(not scope.is_class for scope in self._scopes)
        effects = self._effects if within else Effects()
        scope = _Scope(is_class=True, names=set())
        reader = _Reader(effects, [*self._scopes, scope], self._caught, "" if within else node.name)
        for part in (*getattr(node, "type_params", ()), *node.body):
            reader.visit(part)
        if not within:
            self._take_class(node.name, effects)

    def _take_class(self, name: str, found: Effects) -> None:
        # The body of a class is executed at once, and its methods when one of its objects is used.
        mine = self._effects
        for group in ("reads", "hints", "changes", "bases"):
            getattr(mine, group).update(getattr(found, group))
        mine.calls += found.calls
        mine.awaits |= found.awaits
        mine.bodies.setdefault(name, Effects()).bodies.update(found.bodies)

    def visit_ListComp(self, node: _Comprehension) -> None:
        names = {name for each in node.generators for name in _bound_in([each.target])}
        inner = _Reader(self._effects, [*self._scopes, _Scope(is_class=False, names=names)], self._caught)
        for each in node.generators:
            inner._bind(each.target, each.iter)
            self._awaited(bool(each.is_async))
        inner.generic_visit(node)

    visit_SetComp = visit_ListComp
    visit_DictComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp
