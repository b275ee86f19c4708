"""Processes that must not outlive the one that started them."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1  # from <sys/prctl.h>


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that started it is gone. Linux only; elsewhere nothing is done."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
