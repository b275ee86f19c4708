"""The versions of code that came: which is the newest for what, since when, and which are the same but for what came with them.

A program brings one package with the code of all agents that it has loaded. So two programs with the same files may bring two packages,
because one of them has loaded more. The digest of each origin's part tells that nothing is newer then: the package before stays.
"""

from __future__ import annotations

from typing import Final

VERSIONS_MAX: Final = 1_000


class Code:
    """What is known of code.

    Args:
        newest: the newest package, by what it is the code of (`origin_of`).
        warm: the package that came last. Hosts with it are kept warm.
        since_ms: when the newest one became that, by the same.
        parts: the digest of each origin's part, by package. The oldest beyond `VERSIONS_MAX` are forgotten.
    """

    def __init__(
        self,
        newest: dict[str, str] | None = None,
        warm: str = "",
        since_ms: dict[str, int] | None = None,
        parts: dict[str, dict[str, str]] | None = None,
    ) -> None:
        self.newest, self.warm = newest or {}, warm
        self.since_ms, self.parts = since_ms or {}, parts or {}

    def came(self, package: str, digests: dict[str, str], at_ms: int) -> None:
        known = self.parts.pop(package, {})  # entered again at the end: the oldest is the first
        self.parts[package] = known | digests
        if len(self.parts) > VERSIONS_MAX:
            del self.parts[next(iter(self.parts))]
        news = [origin for origin in digests if not self.is_newest(package, origin, unless_unknown=False)]
        self.newest |= dict.fromkeys(news, package)
        self.since_ms |= dict.fromkeys(news, at_ms)
        self.warm = (package if news else "") or self.warm

    def knows(self, package: str, origin: str, digest: str) -> bool:
        is_known = digest == "" or self.parts.get(package, {}).get(origin) == digest
        return is_known and self.is_newest(package, origin, unless_unknown=False)

    def is_newest(self, package: str, origin: str, *, unless_unknown: bool = True) -> bool:
        """Whether this package has the newest code of this origin; `unless_unknown` is the answer if none ever came for it."""
        newest = self.newest.get(origin)
        if newest is None:
            return unless_unknown
        digest = self.parts.get(newest, {}).get(origin, "")
        return package == newest or (digest != "" and digest == self.parts.get(package, {}).get(origin))

    def to_plain(self) -> list[object]:
        return [self.newest, self.warm, self.since_ms, self.parts]
