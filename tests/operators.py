"""Small changes of a source, each by one operator at one place (`test_mutants`): slips of the hand, and ways to take a promise away.

Types, decorators and texts for people are left alone. Of the libraries, `cosmic-ray` removes no call and no assignment and changes
types, and `mutmut` runs the tests in its own way; so the operators are these, on the positions of Python's own syntax tree.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import accumulate, pairwise
from typing import NamedTuple

from tests.tidy import parsed

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Is: (r"\bis\b", "is not"),
    ast.IsNot: (r"\bis\s+not\b", "is"),
    ast.In: (r"\bin\b", "not in"),
    ast.NotIn: (r"\bnot\s+in\b", "in"),
}
OPPOSITES = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn)
SUMS: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "//"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
}


SLIPS = frozenset(  # whatever stands there; the other operators are for rows of `tests.mutants`
    {
        *("comparison", "swapped branches", "and/or", "no not", "sum", "constant", "break/continue"),
        *("removed call", "removed setting"),
    }
)


_Placed = ast.expr | ast.stmt | ast.keyword


class Change(NamedTuple):
    """One change of a file: the bytes from `start` to `end` become `after`. `lines` are those of what is changed, first and last."""

    file: str
    operator: str
    start: int
    end: int
    after: str
    lines: tuple[int, int]
    changed: ast.AST

    @property
    def names(self) -> set[str]:
        """The names and constants that what is changed reads."""
        found = set[str]()
        for each in ast.walk(self.changed):
            match each:
                case ast.Name(id=name) | ast.Attribute(attr=name) | ast.keyword(arg=str(name)):
                    found.add(name)
                case ast.Constant(value=value):
                    found.add(str(value))
        return found

    def is_around(self, other: Change) -> bool:
        """Whether another change lies within this one."""
        return (
            self.start <= other.start and other.end <= self.end and (self.start, self.end) != (other.start, other.end)
        )

    def made(self, source: str) -> str:
        """The source with this change."""
        raw = source.encode()
        return (raw[: self.start] + self.after.encode() + raw[self.end :]).decode()

    def told(self, source: str) -> str:
        """The line before and after."""
        at = source.encode()[: self.start].count(b"\n")
        return f"{source.splitlines()[at].strip()} => {self.made(source).splitlines()[at].strip()}"


def changes_of(file: str, source: str) -> list[Change]:
    """Every change of a source, in the order of its lines."""
    reader = _Reader(file, source)
    reader.visit(parsed(source))
    return sorted(reader.found, key=lambda each: (each.start, each.end, each.after))


def lines_of(source: str, symbol: str) -> list[tuple[int, int]]:
    """The first and last lines of what defines `function`, `Class.method`, `CONSTANT` or `Class.field`."""
    return _lines(source).get(symbol, [])


@cache
def _lines(source: str) -> dict[str, list[tuple[int, int]]]:
    found = defaultdict[str, list[tuple[int, int]]](list)
    for name, node in _definitions(parsed(source), ""):
        found[name].append((node.lineno, node.end_lineno or 0))
    return found


def slips_of(file: str, source: str) -> list[Change]:
    """The changes that a slip of the hand would leave."""
    return [each for each in changes_of(file, source) if each.operator in SLIPS]


class _Reader(ast.NodeVisitor):
    def __init__(self, file: str, source: str) -> None:
        self.found: list[Change] = []
        self._file, self._raw = file, source.encode()
        self._begins = [*accumulate(map(len, self._raw.splitlines(keepends=True)), initial=0)]
        self._is_made = False  # whether we are where an object gets its first values

    # where something is

    def _span(self, node: _Placed) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        start = self._begins[node.lineno - 1] + node.col_offset
        return start, self._begins[node.end_lineno - 1] + node.end_col_offset

    def _change(self, operator: str, node: _Placed, start: int, end: int, after: str) -> None:
        lines = node.lineno, node.end_lineno or node.lineno
        self.found.append(Change(self._file, operator, start, end, after, lines, node))

    def _between(
        self, operator: str, whole: ast.expr | ast.stmt, left: int, right: int, signs: tuple[str, str]
    ) -> None:
        """Change the sign that stands between two places."""
        found = re.compile(signs[0].encode()).search(self._raw, left, right)
        if found is not None:
            self._change(operator, whole, *found.span(), signs[1])

    def _negate(self, test: ast.expr) -> None:
        """Swap the branches of a condition, unless another operator does the same."""
        for operator, after in ("never", "False"), ("always", "True"):
            self._change(operator, test, *self._span(test), after)
        is_done = isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], OPPOSITES)
        is_done |= isinstance(test, ast.Constant) or (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
        if not is_done:
            start, end = self._span(test)
            self._change("swapped branches", test, start, end, f"not ({self._raw[start:end].decode()})")

    # what is left alone

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """A text, in which Python 3.11 does not say where things are."""

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._visit_all([node.value])

    def _visit_all(self, nodes: Iterable[ast.AST | None]) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        before, self._is_made = self._is_made, node.name == "__init__"
        self._visit_all([*node.args.defaults, *node.args.kw_defaults])
        for first, second in pairwise(node.body):
            self._exchange(first, second)
        self._visit_all(node.body)
        self._is_made = before

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def generic_visit(self, node: ast.AST) -> None:
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(node, block, None)
            if isinstance(statements, list) and not isinstance(node, ast.Module | ast.ClassDef):
                for first, second in pairwise(statements):
                    self._exchange(first, second)
        super().generic_visit(node)

    def _exchange(self, first: ast.stmt, second: ast.stmt) -> None:
        """The second of two statements before the first one."""
        (start, middle), (again, end) = self._span(first), self._span(second)
        after = self._raw[again:end] + self._raw[middle:again] + self._raw[start:middle]
        self._change("exchanged", second, start, end, after.decode())

    # what is changed

    def visit_Compare(self, node: ast.Compare) -> None:
        for (left, right), op in zip(pairwise([node.left, *node.comparators]), node.ops, strict=True):
            self._between("comparison", node, self._span(left)[1], self._span(right)[0], COMPARISONS[type(op)])
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        signs = (r"\band\b", "or") if isinstance(node.op, ast.And) else (r"\bor\b", "and")
        for left, right in pairwise(node.values):
            self._between("and/or", node, self._span(left)[1], self._span(right)[0], signs)
        for each in node.values:
            self._change("no part", each, *self._span(each), str(isinstance(node.op, ast.And)))
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._span(node)[0]
            self._change("no not", node, start, start + len("not"), "")
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if type(node.op) in SUMS and not (_is_text(node.left) or _is_text(node.right)):
            self._between("sum", node, self._span(node.left)[1], self._span(node.right)[0], SUMS[type(node.op)])
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self._change("constant", node, *self._span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            self._change("constant", node, *self._span(node), repr(node.value + 1))

    def _visit_condition(self, node: ast.If | ast.While | ast.IfExp) -> None:
        self._negate(node.test)
        self.generic_visit(node)

    visit_If = visit_While = visit_IfExp = _visit_condition  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self._negate(test)
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._change("break/continue", node, *self._span(node), "continue")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._change("break/continue", node, *self._span(node), "break")

    def visit_Call(self, node: ast.Call) -> None:
        for keyword in node.keywords:
            end = re.compile(rb"(\s*,)?").match(self._raw, self._span(keyword)[1])
            self._change("no argument", keyword, self._span(keyword)[0], end.end() if end else 0, "")
        for place, each in enumerate(node.args, 1):
            start, end_of_it = self._span(each)
            self._change(f"argument {place} alone", node, *self._span(node), self._raw[start:end_of_it].decode())
        self.generic_visit(node)

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        if node.type is not None:
            self._change("not caught", node.type, *self._span(node.type), "()")
        self.generic_visit(node)

    def _visit_statement(self, node: ast.Raise | ast.Return) -> None:
        self._change("removed statement", node, *self._span(node), "pass")
        self.generic_visit(node)

    visit_Raise = visit_Return = _visit_statement  # noqa: N815

    def visit_Expr(self, node: ast.Expr) -> None:
        call = node.value.value if isinstance(node.value, ast.Await) else node.value
        if isinstance(call, ast.Call):
            self._change("removed call", node, *self._span(node), "pass")
        self.generic_visit(node)

    def _visit_setting(self, node: ast.Assign | ast.AugAssign) -> None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        is_slip = not self._is_made and not any(map(_binds, targets))
        self._change("removed setting" if is_slip else "removed statement", node, *self._span(node), "pass")
        self.generic_visit(node)

    visit_Assign = visit_AugAssign = _visit_setting  # noqa: N815


def _definitions(parent: ast.AST, path: str) -> Iterator[tuple[str, ast.stmt]]:
    """What is defined below a node, by its qualified name."""
    for node in ast.iter_child_nodes(parent):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield path + name, node
                yield from _definitions(node, f"{path}{name}.")
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield path + name, node
            case _:
                yield from _definitions(node, path)


def _binds(target: ast.expr) -> bool:
    """Whether a name of its own function or module is set: without it, the next line fails."""
    return any(isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) for each in ast.walk(target))


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
