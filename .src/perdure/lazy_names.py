"""Names that load their module when they are first used, so that importing a package stays cheap."""

from __future__ import annotations

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(namespace: dict[str, Any]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a module's `__getattr__` and `__dir__`. `namespace` is its `globals()`.

    The names are those that the module imports under `if TYPE_CHECKING:`, so they are listed once.
    """
    tree = ast.parse(Path(namespace["__file__"]).read_bytes())
    imports = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    places = {name.name: node.module for node in imports if isinstance(node, ast.ImportFrom) for name in node.names}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        found = namespace[name] = getattr(import_module(str(places[name])), name)
        return found

    return load, lambda: sorted({*namespace, *places})
