"""Builds Perdure, by hatchling. A Python that is too old is refused before anything is fetched, in words that pip shows."""

import sys

try:
    import perdure  # noqa: F401 - loads next to nothing, and refuses such a Python
except ImportError as refusal:
    sys.exit(str(refusal))

from hatchling.build import *  # noqa: F403 - what pip asks a backend for
