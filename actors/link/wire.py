"""How frames, messages and errors travel: plain data there and back."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby, islice, repeat
from operator import is_
from typing import Any, Final, NamedTuple

from perdure.actors.code.author_call import traced
from perdure.actors.code.naming import loaded_class, place_of
from perdure.actors.link.messages import TABLE, Ask, Message, Plain
from perdure.ledger import PerdureError, Request, VersionMismatch, unpack
from perdure.ledger import errors as _errors


class PeerFrame(NamedTuple):
    """What a peer hands over in one exchange. `first` is the number of the first message. With `hold`, the answer may wait until the
    supervisor has something to say; with `rewind`, the supervisor sends everything again that is not acknowledged. `protocol` is
    `PROTOCOL`. It stays the last, so that it is found in the frames of other versions."""

    peer_id: str
    session: int
    epoch: int
    ack: int
    first: int
    messages: Sequence[Sequence[Plain]]
    hold: bool
    rewind: bool
    protocol: str


class SupervisorFrame(NamedTuple):
    """What the supervisor answers. With `missed`, earlier messages of the peer are missing. `seq` is the last fact that it knows of."""

    epoch: int
    session: int
    ack: int
    first: int
    messages: Sequence[Sequence[Plain]]
    missed: bool
    seq: int


CAUSES_MAX: Final = 5
CAUSE_CHARS_MAX: Final = 2_000

_KINDS: Final[tuple[type, ...]] = tuple(TABLE)
_NUMBERS: Final[dict[type, int]] = {kind: number for number, kind in enumerate(_KINDS)}
_ASK: Final = _NUMBERS[Ask]
_STRETCH: Final = -1  # stands where the number of a kind would
STRETCH_MIN: Final = 4  # fewer of one kind go one by one
_new: Final = tuple.__new__  # what a named tuple's own constructor calls after it has bound its arguments by name


def _protocol() -> str:
    """The version of Perdure, and the digest of everything that is said in frames: kinds in their order, and their fields."""
    kinds: tuple[Any, ...] = (PeerFrame, SupervisorFrame, *_KINDS)
    said = [(kind.__name__, kind._fields) for kind in kinds]
    try:
        known = version("perdure")
    except PackageNotFoundError:  # it was sent here, or is used from a checkout
        known = "that is not installed"
    return f"{known} ({blake2b(repr(said).encode(), digest_size=4).hexdigest()})"


PROTOCOL: Final = _protocol()


def peer_frame(frame: bytes) -> PeerFrame:
    """The frame of a peer. Raises `VersionMismatch` if the peer has other messages than this process."""
    said = unpack(frame)
    theirs = said[-1] if isinstance(said[-1], str) else "of an earlier version"
    if theirs.rpartition(" ")[2] != PROTOCOL.rpartition(" ")[2]:
        raise VersionMismatch(PROTOCOL, theirs)
    return PeerFrame(*said)


def encode(message: Message) -> Sequence[Plain]:
    """A message as it goes over the wire."""
    if type(message) is Ask:
        return _ASK, message.ref, (_NUMBERS[type(message.question)],) + message.question  # noqa: RUF005 - twice as fast as unpacking
    return (_NUMBERS[type(message)],) + message  # noqa: RUF005 - as above


def decode(said: Sequence[Plain]) -> Message:
    """The message again."""
    number = said[0]
    if number == _ASK:
        _, ref, asked = said
        return _new(Ask, (ref, _new(_KINDS[asked[0]], asked[1:])))
    decoded: Message = _new(_KINDS[number], said[1:])
    return decoded


def encode_all(messages: Iterable[Message]) -> list[Sequence[Plain]]:
    """Messages as they go over the wire: stretches of one kind in columns, and in a column of one value that value alone."""
    said: list[Sequence[Plain]] = []
    for kind, group in groupby(messages, type):
        alike = list(group)
        if len(alike) < STRETCH_MIN or kind is Ask or not alike[0]:
            said += map(encode, alike)
        else:
            columns = [_column(values) for values in zip(*alike, strict=True)]
            said.append((_STRETCH, _NUMBERS[kind], len(alike), columns))
    return said


def _column(values: tuple[Plain, ...]) -> tuple[Plain, ...]:
    """One that is equal but another object is sent as another: it may be of another type, as 1 and True are."""
    first = values[0]
    return (first,) if values[-1] is first and all(map(is_, values, repeat(first))) else values


def decode_all(said: Iterable[Sequence[Plain]]) -> list[Message]:
    """The messages again."""
    messages: list[Message] = []
    for each in said:
        if each[0] == _STRETCH:
            _, number, count, columns = each
            filled = [repeat(values[0]) if len(values) == 1 else values for values in columns]
            messages += map(partial(_new, _KINDS[number]), islice(zip(*filled, strict=False), count))
        else:
            messages.append(decode(each))
    return messages


def content_of(request: Request) -> list[Plain]:
    """What a request asks for, so that its refusal finds the one who asked: others may have asked for something else under its run id."""
    return [request.agent_type, request.parent, request.digest, request.wait]


def error_to_plain(problem: BaseException, trace_chars_max: int = 0) -> list[Plain]:
    """An error as plain data: the name of its class, its fields, and of an author's error the traceback, the place of its class, and the
    errors that it was raised from."""
    told: list[Plain] = [type(problem).__name__, [each if _is_plain(each) else str(each) for each in problem.args]]
    if isinstance(problem, PerdureError):
        return told
    trace = traced(problem, trace_chars_max) if trace_chars_max else ""
    return [*told, trace, place_of(type(problem)), [_summary(each) for each in _causes(problem)]]


def _causes(problem: BaseException) -> Iterator[BaseException]:
    for _ in range(CAUSES_MAX):
        behind = problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__)
        if behind is None:
            return
        yield behind
        problem = behind


def _summary(problem: BaseException) -> list[str]:
    return [type(problem).__name__, str(problem)[:CAUSE_CHARS_MAX], place_of(type(problem))]


def error_from_plain(plain: list[Plain]) -> PerdureError:
    """The error again; one that is not ours becomes a `RemoteError` with the same words."""
    name, args, *of_author = plain
    kind = _PERDURE_ERRORS.get(name)
    if kind is not None and not of_author:
        return kind(*args)
    trace, place, causes = of_author
    error = raised = remote_error(name, ": ".join(map(str, args)), place)
    if trace:
        error.add_note(f"Where it was raised:\n{trace}")
    for cause in causes:
        raised.__cause__ = raised = remote_error(*cause)
    return error


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int | float | str | bytes | list)


class RemoteError(PerdureError):
    """An author's code raised in another process. It can be caught as what it is, `except ValueError`, if this process knows the class: one
    of Python's, or of a module that is imported here. Its `__cause__` is what it was raised from.

    Attributes:
        kind, words: the name of its class, and its text.
        place: the module and the name of its class, such as `shop.orders:SoldOut`.
    """

    def __init__(self, kind: str, words: str, place: str = "") -> None:
        Exception.__init__(self, kind, words)  # the author's class may take other arguments
        self.kind, self.words, self.place = kind, words, place

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"

    def __reduce__(self) -> Any:
        return remote_error, (self.kind, self.words, self.place)


def remote_error(kind: str, words: str, place: str = "") -> RemoteError:
    """What an author's code raised, as an error of that kind if this process knows it."""
    known = loaded_class(place) if place else getattr(builtins, kind, None)
    is_error = isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, RemoteError)
    return (_remote_kind(known) if is_error else RemoteError)(kind, words, place)


@cache
def _remote_kind(known: type[Exception]) -> type[RemoteError]:
    try:
        return type(known.__name__, (RemoteError, known), {"__module__": __name__, "__doc__": RemoteError.__doc__})
    except TypeError:  # its objects are made otherwise
        return RemoteError


def _family(kind: type[PerdureError]) -> Iterator[type[PerdureError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _family(each)


_PERDURE_ERRORS = {
    kind.__name__: kind for kind in _family(PerdureError) if kind.__module__ in (_errors.__name__, __name__)
}
