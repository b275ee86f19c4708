"""The part of a notebook, prompt or script that a class needs.

A top-level statement is *kept* if it defines something (an import, a class, a function, an assignment) that a wanted class needs, directly
or indirectly. Calls, loops and `with Runtime(...)` are left out. A name that a statement uses at once means the definition before it; a
name in the body of a function means the last one.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import linecache
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, cast


class _Shell(Protocol):
    user_ns: Mapping[str, Sequence[str]]


class _Piece(NamedTuple):
    """A statement of the top level with its text."""

    node: ast.stmt
    text: str


def typed_texts() -> list[str]:
    """Everything typed so far, oldest first: the cells of a notebook, or the text of `python -c`, stdin or a prompt."""
    main = sys.modules["__main__"]
    ask = getattr(main, "get_ipython", None) or getattr(builtins, "get_ipython", None)
    shell = cast("Callable[[], _Shell | None]", ask)() if ask is not None else None
    if shell is not None:
        transform = cast("Callable[[str], str]", getattr(shell, "transform_cell", str))
        return [_as_python(transform, cell) for cell in shell.user_ns.get("In", ())]
    texts = ["".join(entry[2]) for name, entry in linecache.cache.items() if name.startswith("<") and len(entry) > 1]
    if sys.argv[:1] == ["-c"]:
        texts += _command()
    elif sys.argv[:1] in (["-"], [""]) and stat.S_ISREG(os.fstat(0).st_mode):
        texts.append(os.pread(0, os.fstat(0).st_size, 0).decode())
    return texts


def _as_python(transform: Callable[[str], str], cell: str) -> str:
    with contextlib.suppress(SyntaxError):
        return transform(cell)
    return ""


def _command() -> Iterator[str]:
    for option, text in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
        if option.startswith("-") and not option.startswith("--") and option.endswith("c"):
            yield text
            return


def excerpt(texts: list[str], name: str) -> str:
    """The statements that one class needs, as text; empty if it is not defined there.

    Imports come first and sorted, those from `__future__` before all others, so that repeated or additional imports do not change the text.
    An import of a name that also has another meaning stays in its place.
    """
    pieces = [piece for text in texts for piece in _pieces(text)]
    kept = [pieces[at] for at in _needed([piece.node for piece in pieces], [name])]
    meanings: dict[str, set[str]] = {}
    for piece in kept:
        for bound in bound_names(piece.node):
            meanings.setdefault(bound, set()).add("import" if _is_plain_import(piece.node) else piece.text)
    first = {piece.text for piece in kept if _is_future(piece.node) or _may_come_first(piece, meanings)}
    ordered = sorted(first, key=lambda text: (not text.startswith("from __future__ "), text))
    return "".join(f"{text}\n" for text in [*ordered, *(piece.text for piece in kept if piece.text not in first)])


def _may_come_first(piece: _Piece, meanings: Mapping[str, set[str]]) -> bool:
    """Whether it is an import of names without another meaning, and there is no import of `*`."""
    if not _is_import(piece.node) or "*" in meanings:
        return False
    return all(len(meanings[name]) == 1 for name in bound_names(piece.node))


def definitions(tree: ast.Module) -> ast.Module:
    """The statements that the classes of a module need, on their lines."""
    nodes = [node for node in tree.body if _is_definition(node)]
    classes = [node.name for node in nodes if isinstance(node, ast.ClassDef)]
    return ast.Module([nodes[at] for at in _needed(nodes, classes)], [])


def _pieces(text: str) -> Iterator[_Piece]:
    """The definitions of a text. An import of several names is split, so that a class depends on needed names only."""
    with contextlib.suppress(SyntaxError):
        lines = text.splitlines(keepends=True)
        for node in _one_by_one(ast.parse(text).body):
            if _is_import(node):
                yield _Piece(node, ast.unparse(node))
                continue
            marks = [mark.lineno for mark in getattr(node, "decorator_list", [])]
            above = "".join(lines[min(marks) - 1 : node.lineno - 1]) if marks else ""
            if _is_definition(node):
                yield _Piece(node, above + (ast.get_source_segment(text, node) or ""))


def _one_by_one(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    for node in body:
        if isinstance(node, ast.Import):
            yield from (ast.Import([alias]) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (ast.ImportFrom(node.module, [alias], node.level) for alias in node.names)
        else:
            yield node


def _needed(nodes: list[ast.stmt], names: list[str]) -> list[int]:
    """The places of the statements that these names need."""
    bound = [bound_names(node) for node in nodes]

    def last(name: str, before: int = len(nodes)) -> set[int]:
        return {max((at for at in range(before) if name in bound[at]), default=-1)} - {-1}

    kept: set[int] = set()
    waiting = set[int]().union(*(last(name) for name in names))
    while waiting:
        at = waiting.pop()
        kept.add(at)
        if _is_plain_import(nodes[at]):  # `import a.b` adds to what `import a.c` bound
            waiting |= {prior for name in bound[at] for prior in last(name, at) if _is_plain_import(nodes[prior])}
        for name, later in _used_names(nodes[at]):
            if name not in bound[at]:
                waiting |= (set() if later else last(name, at)) or last(name)
            elif _is_assignment(nodes[at]):
                waiting |= last(name, at)
        waiting -= kept
    always = {at for at, node in enumerate(nodes) if kept and (_is_future(node) or "*" in bound[at])}
    return sorted(kept | always)


def _used_names(node: ast.AST, *, later: bool = False) -> Iterator[tuple[str, bool]]:
    """The names that a statement uses, each with whether only the body of a function uses it."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id, later
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
        yield node.target.id, later
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
        yield node.value, True  # perhaps a quoted annotation
    for field, value in ast.iter_fields(node):
        inside = later or (field == "body" and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))
        for child in value if isinstance(value, list) else [value]:
            yield from _used_names(child, later=inside) if isinstance(child, ast.AST) else ()


def bound_names(node: ast.stmt) -> set[str]:
    """The names that a top-level statement defines or changes; `*` for an import of everything."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {node.name}
    if isinstance(node, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.If | ast.Try):
        return set[str]().union(*(bound_names(child) for child in _children(node)))
    if isinstance(node, ast.Assign):
        return {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
    target = getattr(node, "target", None) or getattr(node, "name", None)  # `x: int = 1`, `x += 1`, `type X = int`
    return (
        {name.id for name in ast.walk(target) if isinstance(name, ast.Name)} if isinstance(target, ast.AST) else set()
    )


def _is_definition(node: ast.stmt) -> bool:
    """Whether a statement only defines something."""
    if isinstance(node, ast.If | ast.Try):
        return not is_main_block(node) and all(_is_definition(child) for child in _children(node))
    if _is_assignment(node):
        return not any(isinstance(part, ast.Await) or _starts_runtime(part) for part in ast.walk(node))
    definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Pass
    return isinstance(node, definition)


def _is_assignment(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) or type(node).__name__ == "TypeAlias"


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_plain_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import) and not any(alias.asname for alias in node.names)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def is_main_block(node: ast.stmt) -> bool:
    """Whether this is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in {
        part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)
    }


def _starts_runtime(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return (getattr(function, "id", None) or getattr(function, "attr", None)) == "Runtime"


def _children(node: ast.If | ast.Try) -> list[ast.stmt]:
    handled = [child for handler in getattr(node, "handlers", []) for child in handler.body]
    return [*node.body, *handled, *node.orelse, *getattr(node, "finalbody", [])]
