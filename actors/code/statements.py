"""Kinds of statements, what they bind, and what is imported where."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
DOC: Final = "__doc__"


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


def bound_in(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """The names that these bind in their own scope; `*` for an import of everything."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
            yield from bound_in(node.decorator_list)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            yield node.name
        elif isinstance(node, ast.MatchMapping) and node.rest:
            yield node.rest
        if isinstance(node, Comprehension):
            yield from (part.target.id for part in ast.walk(node) if isinstance(part, ast.NamedExpr))
        elif not isinstance(node, ast.Lambda):
            yield from bound_in(ast.iter_child_nodes(node))


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Name):
        return node.id
    before = dotted(node.value) if isinstance(node, ast.Attribute) else ""
    return f"{before}.{node.attr}" if before and isinstance(node, ast.Attribute) else ""


def declared(node: ast.AST, kind: type[ast.Global | ast.Nonlocal]) -> Iterator[str]:
    if isinstance(node, kind):
        yield from node.names
    elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
        for child in ast.iter_child_nodes(node):
            yield from declared(child, kind)


def parts_of(node: ast.AST | None) -> Iterator[ast.AST]:
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
