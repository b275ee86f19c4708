"""How much a gateway takes from those who ask, and how often. Whoever asks for more is refused, or has to wait."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

from perdure.ledger import check_number

MIB: Final = 1024 * 1024
NAMES_MAX: Final = 10_000
"""How many names a `Rates` remembers; the one that asked longest ago is forgotten first."""


@dataclass(frozen=True)
class GatewayLimits:
    """The limits of one process of a gateway. Names that end in `_s` are seconds.

    Args:
        body_bytes_max: of the body of a request.
        frame_bytes_max: of a message over a WebSocket.
        head_bytes_max: of the line and the headers of a request.
        head_s: until the head of a request is there: from the connection, or from the first byte of a further request.
        body_s: until its body is there.
        stall_s: until somebody who is sent something has taken some of it.
        ping_s: between two pings of a WebSocket, and until each is answered. A line that answers none is dead.
        idle_s: until a connection without a request is closed.
        requests_per_s: of one principal, in the long run. Frames over WebSockets count, too; they are made to wait and not refused.
        requests_burst: how many may come at once.
        open_max: requests and connections of one principal at the same time.
        connections_max: connections of everybody.
        drain_s: at the end, for answers that are under way.
    """

    body_bytes_max: int = 8 * MIB
    frame_bytes_max: int = 8 * MIB
    head_bytes_max: int = 64 * 1024
    head_s: float = 10
    body_s: float = 60
    stall_s: float = 30
    ping_s: float = 20
    idle_s: float = 75
    requests_per_s: float = 200
    requests_burst: int = 2_000
    open_max: int = 2_000
    connections_max: int = 4_096
    drain_s: float = 5

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_number(name, value, above=True)


class Rates:
    """How often each of many names asks: so many a second in the long run, and so many at once."""

    def __init__(self, per_s: float, burst: float) -> None:
        self._per_s, self._burst = per_s, burst
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # how many are left, and when that was so

    def __len__(self) -> int:
        return len(self._left)

    def take(self, name: str, now_s: float) -> float:
        """Count one, and return for how many seconds the name should have waited: 0 if it asks not too often.

        What had to wait is counted as well, so many that wait are let go one after the other.
        """
        left, since_s = self._left.pop(name, (self._burst, now_s))
        left = min(self._burst, left + (now_s - since_s) * self._per_s) - 1
        self._left[name] = left, now_s
        if len(self._left) > NAMES_MAX:
            self._left.popitem(last=False)
        return max(0.0, -left / self._per_s)

    def give_back(self, name: str) -> None:
        if name in self._left:  # what is refused does not count
            left, since_s = self._left[name]
            self._left[name] = left + 1, since_s
