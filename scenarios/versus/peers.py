"""Which systems are measured beside Perdure, and whether they are installed."""

from __future__ import annotations

import os
import shutil
from enum import StrEnum
from importlib.util import find_spec
from typing import Final, NamedTuple

from perdure.ledger import BadRequest

RESTATE_SERVER: Final = "restate-server"
PROGRAMS_PATH: Final = os.pathsep.join([os.environ.get("PATH", os.defpath), "node_modules/.bin"])


class PeerName(StrEnum):
    """A system that can be measured beside Perdure."""

    DBOS = "dbos"
    RESTATE = "restate"


class PeerNeeds(NamedTuple):
    """What a peer is made of, and how one gets it."""

    title: str
    module: str  # its end of the conversation
    modules: tuple[str, ...]
    programs: tuple[str, ...]
    install: str


PEERS: Final = {
    PeerName.DBOS: PeerNeeds(
        "DBOS", "perdure.scenarios.versus.dbos_children", ("dbos",), (), "pip install 'perdure[dbos]'"
    ),
    PeerName.RESTATE: PeerNeeds(
        "Restate",
        "perdure.scenarios.versus.restate_children",
        ("restate", "hypercorn"),
        (RESTATE_SERVER,),
        f"pip install 'perdure[restate]' and npm install @restatedev/{RESTATE_SERVER}",
    ),
}


def installed(name: PeerName) -> PeerNeeds:
    """What the peer needs, all of which is here. Raises `BadRequest` with how to install it."""
    needs = PEERS[name]
    missing = [f"the module {each}" for each in needs.modules if find_spec(each) is None]
    missing += [f"the program {each}" for each in needs.programs if shutil.which(each, path=PROGRAMS_PATH) is None]
    if missing:
        raise BadRequest("versus", f"{needs.title} is not installed ({', '.join(missing)}): {needs.install}")
    return needs
