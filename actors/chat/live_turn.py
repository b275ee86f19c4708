"""A turn that is on: what everybody who has to do with it just now shares."""

from __future__ import annotations

from perdure.actors.chat.conversation_state import Floor
from perdure.actors.chat.stream import Stream
from perdure.actors.chat.toolbox import Toolbox
from perdure.actors.chat.turn import Turn


class Scene:
    """One turn in this life of its agent: its row, its stream, and its tools."""

    def __init__(self, floor: Floor, turn: Turn, stream: Stream) -> None:
        self.turn, self.stream = turn, stream
        self.toolbox = Toolbox(floor, turn, stream)
