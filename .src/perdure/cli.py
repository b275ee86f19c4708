"""The `perdure` command."""

from __future__ import annotations

from perdure.scenarios.cli import app, main

__all__ = ["app", "main"]

if __name__ == "__main__":
    main()
