"""Names that bring their module with them when they are first asked for, so that importing a package stays cheap."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    namespace: dict[str, Any], homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return a module's `__getattr__` and `__dir__`. `namespace` is its `globals()`; `homes` names, per module, what comes from it."""
    places = {name: module for module, names in homes.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        found = namespace[name] = getattr(import_module(places[name]), name)
        return found

    return load, lambda: sorted({*namespace, *places})
