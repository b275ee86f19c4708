"""What a person sees and does in `perdure ps --watch`: which run is chosen, what is open, and what the keys ask for.

Nothing here waits or asks. Keys come in (`press`), wishes and questions go out, answers come in, and a picture is made of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from perdure.ledger import Status
from perdure.scenarios.commands.shown import instant, shortened
from perdure.scenarios.commands.tray import Tray

HELP: Final = "↑↓ choose  ⏎ open  e explain  c cancel  r retry  x clear  / filter  a all runs  q quit"
HELP_OPEN: Final = "⏎ back  e explain  c cancel  r retry  x clear  q quit"
LINES_AROUND: Final = 4
ID_WIDTH: Final = 20  # of ids that are shown whole on a narrow terminal too
STATUS_WIDTH: Final = max(map(len, Status))
FRAMES_MAX: Final = 5_000
PAGE_MAX: Final = 200
TEXT_MAX: Final = 300
REASON: Final = "cancelled by an operator"

Told = dict[str, Any]
Question = tuple[Any, ...]


class Wish(NamedTuple):
    """What the supervisor is to do with a run."""

    verb: str
    run_id: str

    @property
    def question(self) -> Question:
        """As it is asked."""
        more = {"cancel": (self.run_id, None, REASON), "clear": ([self.run_id],)}
        return self.verb, *more.get(self.verb, (self.run_id,))


class Desk:
    """One person's view of a directory."""

    def __init__(self, tray: Tray) -> None:
        self.tray = tray
        self.wishes: deque[Wish] = deque()
        self.is_over = False
        self.chosen = ""
        self.wanted = ""
        self._is_typing = False
        self._asked: Wish | None = None
        self._note = ""
        self._page: list[Told] | None = None  # all runs, if they are what is shown
        self._open: Told | None = None
        self._frames: deque[Told] = deque(maxlen=FRAMES_MAX)
        self._explained: list[str] = []

    # keys

    def press(self, key: str) -> None:
        """Take a key."""
        self._note = ""
        if self._asked is not None:
            self._decide(key)
        elif self._is_typing:
            self._type(key)
        elif key in ("up", "k", "down", "j"):
            self._move(-1 if key in ("up", "k") else 1)
        elif key in ("enter", "right", "left", "escape"):
            self._open_or_close(key)
        elif key == "q":
            self.is_over = True
        elif key == "/":
            self._is_typing = True
        elif key == "a":
            self._page, self._open = ([] if self._page is None else None), None
        elif key in ("c", "x", "r", "e") and self._subject:
            self._ask_for(Wish({"c": "cancel", "x": "clear", "r": "retry", "e": "explain"}[key], self._subject))

    @property
    def _subject(self) -> str:
        """The run that a key is about."""
        return str(self._open["run_id"]) if self._open is not None else self.chosen

    def _ask_for(self, wish: Wish) -> None:
        if wish.verb in ("cancel", "clear"):
            self._asked = wish
        else:
            self.wishes.append(wish)

    def _decide(self, key: str) -> None:
        assert self._asked is not None
        if key == "y":
            self.wishes.append(self._asked)
        else:
            self._note = "nothing was done"
        self._asked = None

    def _type(self, key: str) -> None:
        if key in ("enter", "escape"):
            self._is_typing = False
            self.wanted = "" if key == "escape" else self.wanted
        elif key == "backspace":
            self.wanted = self.wanted[:-1]
        elif len(key) == 1:
            self.wanted += key

    def _move(self, by: int) -> None:
        rows = self._rows()
        if rows:
            place = rows.index(self.chosen) + by if self.chosen in rows else 0
            self.chosen = rows[max(0, min(place, len(rows) - 1))]

    def _open_or_close(self, key: str) -> None:
        self._explained = []
        if self._open is not None:
            self._open = None
        elif key in ("enter", "right") and self.chosen:
            self._open = {"run_id": self.chosen}
            self._frames.clear()

    def _rows(self) -> list[str]:
        return self.tray.shown() if self._page is None else [row["run_id"] for row in self._page]

    # questions and answers

    def questions(self) -> list[Question]:
        """What is to be asked for what is shown now."""
        if self._open is not None:
            last = self._frames[-1]["sequence"] if self._frames else -1
            return [("show", self._open["run_id"]), ("frames", self._open["run_id"], last)]
        return [] if self._page is None else [("page", None, None, None, self.wanted, None, PAGE_MAX)]

    def hear(self, question: Question, answer: Any) -> None:
        """Take the answer to a question."""
        kind = question[0]
        if kind == "page" and self._page is not None:
            self._page = answer["runs"]
        elif self._open is not None and self._open["run_id"] == question[1]:
            if kind == "show":
                self._open = answer
            else:
                self._frames.extend(answer)

    def done(self, wish: Wish, answer: Any) -> None:
        """A wish was heard."""
        if wish.verb == "explain":
            self._explained = list(answer)
        else:
            words = {"cancel": "was cancelled", "clear": "was cleared", "retry": "will be tried again"}
            self._note = f"{wish.run_id} {words[wish.verb]}"
        if wish.verb == "clear":
            self._open = None

    def refused(self, why: str) -> None:
        """A question or a wish was refused."""
        self._note = why
        if self._open is not None and "status" not in self._open:
            self._open = None

    # the picture

    def picture(self, at_s: float, height: int) -> RenderableType:
        """What a terminal of this height shows."""
        room = height - 1
        if self._open is not None:
            body = self._of_run(room)
        elif self._page is not None and self.tray.overview is not None:
            body = Group(self.tray.summary(at_s), self._all_runs(room - LINES_AROUND))
        else:
            body = self.tray.picture(at_s, room, self.chosen, self.wanted)
        said = [Text(line, style="cyan") for line in self._explained]
        return Group(body, *said, self._last_line()) if self.tray.overview is not None else body

    def _last_line(self) -> Text:
        if self._asked is not None:
            return Text(f"{self._asked.verb} {self._asked.run_id}? y or n", style="bold red", no_wrap=True)
        if self._is_typing or self._note:
            return Text(f"/{self.wanted}" if self._is_typing else self._note, style="bold", no_wrap=True)
        filtered = f"/{self.wanted}  " if self.wanted else ""
        return Text(filtered + (HELP if self._open is None else HELP_OPEN), style="dim", no_wrap=True)

    def _all_runs(self, rows: int) -> Table:
        found = self._page or []
        place = next((number for number, row in enumerate(found) if row["run_id"] == self.chosen), 0)
        begin = max(0, min(place - rows // 2, len(found) - rows))
        shown = found[begin : begin + max(1, rows)]
        longest = max((len(row["run_id"]) for row in shown), default=0)
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        table.add_column("run", no_wrap=True, overflow="ellipsis", min_width=min(ID_WIDTH, longest))
        table.add_column("status", no_wrap=True, min_width=STATUS_WIDTH)
        for title in ("attempt", "requested at", "ended", "agent"):
            table.add_column(title, no_wrap=True, overflow="ellipsis")
        for row in shown:
            ended = shortened(row["outcome"].get("error") or row["outcome"].get("summary") or "")
            cells = (row["run_id"], row["status"], str(row["attempt"]), instant(row["started_at_ms"]), ended)
            style = "reverse" if row["run_id"] == self.chosen else ""
            table.add_row(*cells, row["agent_type"].rpartition(":")[2], style=style)
        return table

    def _of_run(self, room: int) -> RenderableType:
        run = self._open
        assert run is not None
        about = [run[name] for name in ("agent_type", "status") if name in run]
        attempt = [f"attempt {run['attempt']}", f"on {run['host'] or 'no host'}"] if "attempt" in run else []
        head = Text("  ".join([run["run_id"], *about, *attempt]), style="bold", no_wrap=True, overflow="ellipsis")
        lines = timeline(self._frames)[-max(1, room - 1 - len(self._explained)) :]
        return Group(head, *(Text(line, no_wrap=True, overflow="ellipsis") for line in lines))


def timeline(frames: Iterable[Told]) -> list[str]:
    """The events of a run in lines; text that was streamed piece by piece is on one. Pure."""
    lines: list[str] = []
    text = ""
    for frame in frames:
        event = frame["event"]
        piece = _text_of(event)
        if text and piece:
            lines.pop()
        text = (text + piece)[-TEXT_MAX:] if piece else ""
        lines.append(_on_one_line(f"{instant(event['at_ms'])[11:19]}  {f'text  {text}' if piece else _words(event)}"))
    return lines


def _text_of(event: Told) -> str:
    body = event.get("body")
    return str(body["delta"]) if isinstance(body, dict) and body.get("type") == "text-delta" else ""


def _words(event: Told) -> str:
    told = {name: value for name, value in event.items() if name not in ("kind", "at_ms", "body") and value is not None}
    body = event.get("body")
    if body is not None:
        told |= body if isinstance(body, dict) else {"body": body}
    return "  ".join((str(event["kind"]), *(f"{name}: {value}" for name, value in told.items())))


def _on_one_line(text: str) -> str:
    return " ".join(text.split("\n"))
