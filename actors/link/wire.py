"""How frames, messages and errors travel: plain data there and back."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from itertools import groupby, islice, repeat
from operator import is_
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any, Final, NamedTuple, TypeAlias

from msgpack import Unpacker

from perdure.actors.code.author_call import (
    PARTS_MAX,
    WORDS_MAX,
    behind,
    kind_of,
    members_of,
    own,
    raised_by,
    set_cause,
    text_of,
    traced,
    tried_now,
    words_of,
)
from perdure.actors.code.naming import loaded_class, place_of
from perdure.actors.link.link import FRAME_MAX
from perdure.actors.link.messages import TABLE, Ask, Message, Plain, Wait
from perdure.ledger import (
    BadRequest,
    Ended,
    PerdureError,
    Request,
    VersionMismatch,
    pack,
    packed_if_short,
    unpack,
    unpack_opened,
    unpack_value,
)


class PeerFrame(NamedTuple):
    """What a peer hands over in one exchange. `first` is the number of the first message. With `hold`, the answer may wait until the
    supervisor has something to say; with `rewind`, the supervisor sends everything again that is not acknowledged. `protocol` is
    `PROTOCOL`. It stays the last, so that it is found in the frames of other versions."""

    peer_id: str
    session: int
    epoch: int
    ack: int
    first: int
    messages: Sequence[Sequence[object]]
    hold: bool
    rewind: bool
    protocol: str


class SupervisorFrame(NamedTuple):
    """What the supervisor answers. With `missed`, earlier messages of the peer are missing. `seq` is the last fact that it knows of."""

    epoch: int
    session: int
    ack: int
    first: int
    messages: Sequence[Sequence[object]]
    missed: bool
    seq: int


log = logging.getLogger("perdure.link")
MEMBERS_MAX: Final = 16  # errors of a group that travel; of one within it a quarter of them
DATA_MAX: Final = 4_000  # bytes of an error's arguments and attributes, encoded
PLACES_MAX: Final = 16  # classes that an error is told to be a kind of
PLACE_MAX: Final = 300  # characters

_KINDS: Final[tuple[type, ...]] = tuple(TABLE)
_NUMBERS: Final[dict[type, int]] = {kind: number for number, kind in enumerate(_KINDS)}
_ASK: Final = _NUMBERS[Ask]
_STRETCH: Final = -1  # stands where the number of a kind would
_UNREAD: Final = -2  # the same, for what could not be read
STRETCH_MIN: Final = 4  # fewer of one kind go one by one
_new: Final = tuple.__new__  # what a named tuple's own constructor calls after it has bound its arguments by name


def _protocol() -> str:
    # The digest is of everything that is said in frames: kinds in their order, and their fields.
    kinds: tuple[Any, ...] = (PeerFrame, SupervisorFrame, *_KINDS)
    said = [(kind.__name__, kind._fields) for kind in kinds]
    try:
        known = version("perdure")
    except PackageNotFoundError:  # it was sent here, or is used from a checkout
        known = "that is not installed"
    return f"{known} ({blake2b(repr(said).encode(), digest_size=4).hexdigest()})"


PROTOCOL: Final = _protocol()


def peer_frame(frame: bytes) -> PeerFrame:
    said = read(frame, PeerFrame)
    theirs = str(said[-1])
    if theirs.rpartition(" ")[2] != PROTOCOL.rpartition(" ")[2]:
        raise VersionMismatch(PROTOCOL, theirs)
    return PeerFrame(*said)


def encode(message: Message) -> Sequence[object]:
    if type(message) is Ask:
        return _ASK, message.ref, (_NUMBERS[type(message.question)],) + message.question  # noqa: RUF005 - twice as fast as unpacking
    return (_NUMBERS[type(message)],) + message  # noqa: RUF005 - as above


def decode(said: Sequence[Plain]) -> Message:
    number = said[0]
    if number == _ASK:
        _, ref, asked = said
        return _new(Ask, (ref, _new(_KINDS[asked[0]], asked[1:])))
    decoded: Message = _new(_KINDS[number], said[1:])
    return decoded


Piece: TypeAlias = tuple[Sequence[Message], bytes]
"""Messages that go together, and they as bytes. They are encoded when they are said, so what cannot be is refused to who says it, and harms
nobody else. Ends of runs that surely can be are encoded in columns when they leave; until then they have no bytes. (A named tuple takes
longer to be made than its message to be encoded.)"""


def piece_of(message: Message) -> Piece:
    """A message to be sent. Raises `BadRequest`, which names the field that cannot be."""
    is_sure = type(message) is Ended and _surely_encodes(message)
    return (message,), b"" if is_sure else body_of(message)


def weight_of(piece: Piece) -> int:
    """How many bytes it has, more or less."""
    return len(piece[1]) or sum(len(said.output or b"") for said in piece[0] if type(said) is Ended)


def _surely_encodes(end: Ended) -> bool:
    run_id, incarnation, output, summary, error, released, trace, sequence = end
    return (
        run_id.isascii()
        and type(incarnation) is type(sequence) is int
        and (type(output) is bytes or output is None)
        and (type(summary) is str and summary.isascii())
        and error is None
        and (released is False or released is True)
        and not trace
    )


def bodies_of(pieces: Iterable[Piece]) -> list[bytes]:
    bodies: list[bytes] = []
    for is_encoded, group in groupby(pieces, lambda piece: bool(piece[1])):
        if is_encoded:
            bodies += [body for _, body in group]
        else:
            bodies += [body for _, body in pieces_of([message for messages, _ in group for message in messages])]
    return bodies


def body_of(message: Message) -> bytes:
    kind = type(message)
    try:
        return pack(encode(message) if kind is Ask else (_NUMBERS[kind],) + message)  # noqa: RUF005 - as above
    except Exception as problem:
        raise _refusal(message, problem) from problem


def pieces_of(messages: Iterable[Message]) -> list[Piece]:
    """Many messages to be sent, at most a frame in each: stretches of one kind in columns, and in a column of one value that value alone.
    Raises `BadRequest`."""
    pieces: list[Piece] = []
    for kind, group in groupby(messages, type):
        while alike := list(islice(group, FRAME_MAX)):
            if len(alike) < STRETCH_MIN or kind is Ask or not alike[0]:
                pieces += [((each,), body_of(each)) for each in alike]
            else:
                pieces.append(_stretch(kind, alike))
    return pieces


def _stretch(kind: type, alike: list[Message]) -> Piece:
    columns = [_column(values) for values in zip(*alike, strict=True)]
    try:
        return alike, pack((_STRETCH, _NUMBERS[kind], len(alike), columns))
    except Exception as problem:
        for each in alike:
            body_of(each)  # raises for the one to blame
        raise _refusal(alike[0], problem) from problem


def _column(values: tuple[object, ...]) -> tuple[object, ...]:
    # A value that is equal but another object is sent as another: it may be of another type, as 1 and True are.
    first = values[0]
    return (first,) if values[-1] is first and all(map(is_, values, repeat(first))) else values


def _refusal(message: Message, problem: Exception) -> BadRequest:
    said = message.question if isinstance(message, Ask) else message
    fields: dict[str, object] = said._asdict()
    within = {name: each for value in fields.values() if isinstance(value, dict) for name, each in value.items()}
    bad = (text_of(name) for name, each in {**within, **fields}.items() if tried_now(partial(pack, each))[1])
    blamed = next(bad, type(said).__name__)
    return BadRequest(blamed, f"cannot be sent to another process: {words_of(problem)}")


def frame_of(said: NamedTuple, bodies: Sequence[bytes], field: str = "messages") -> bytes:
    at = said._fields.index(field)
    head, tail = map(pack, said[:at]), map(pack, said[at + 1 :])
    return b"".join([_array(len(said)), *head, _array(len(bodies)), *bodies, *tail])


def _array(count: int) -> bytes:
    return b"\xdd" + count.to_bytes(4, "big")


def read(frame: bytes, kind: type[PeerFrame | SupervisorFrame]) -> list[Plain]:
    """The fields of a frame; the supervisor leaves what authors handed over as it was encoded. In the place of a message that cannot be
    read stands how many it was; it costs the others nothing."""
    decode_one = unpack if kind is PeerFrame else unpack_opened
    try:
        said: list[Plain] = decode_one(frame)
    except Exception:
        unpacker = Unpacker(raw=False, strict_map_key=False, max_buffer_size=len(frame))
        unpacker.feed(frame)
        count, at = unpacker.read_array_header(), kind._fields.index("messages")
        said = [unpacker.unpack() if number != at else _spared(frame, unpacker, decode_one) for number in range(count)]
        if _UNREAD not in [each[0] for each in said[at]]:
            raise
        log.exception("a message of another process cannot be read, and is passed over")
    return said


def _spared(frame: bytes, unpacker: Unpacker, decode_one: Callable[[bytes], object]) -> list[object]:
    spared: list[object] = []
    for _ in range(unpacker.read_array_header()):
        begins = unpacker.tell()
        unpacker.skip()
        each, problem = tried_now(partial(decode_one, frame[begins : unpacker.tell()]))
        spared.append(each if problem is None else [_UNREAD, _count_of(frame[begins : unpacker.tell()])])
    return spared


def _count_of(body: bytes) -> int:
    unpacker = Unpacker(max_buffer_size=len(body))
    unpacker.feed(body)
    unpacker.read_array_header()
    if unpacker.unpack() != _STRETCH:
        return 1
    unpacker.skip()
    return int(unpacker.unpack())


def decode_all(said: Iterable[Sequence[Plain]]) -> list[Message]:
    """The messages again. One that cannot be read has become one that asks for nothing."""
    messages: list[Message] = []
    for each in said:
        if each[0] >= 0:
            messages.append(decode(each))
        elif each[0] == _UNREAD:
            messages += [Wait([])] * each[1]
        else:
            _, number, count, columns = each
            filled = [repeat(values[0]) if len(values) == 1 else values for values in columns]
            messages += map(partial(_new, _KINDS[number]), islice(zip(*filled, strict=False), count))
    return messages


def messages_in(bodies: Iterable[bytes]) -> list[Message]:
    return decode_all(map(unpack_opened, bodies))


def content_of(request: Request) -> list[object]:
    # So a refusal finds the one that asked: others may have asked for something else under the id of its run.
    return [request.agent_type, request.parent, request.digest, request.wait]


_EVERYWHERE: Final = ("perdure.ledger.", f"{__name__}")
"""Where errors are defined that every process knows."""


def error_to_plain(problem: BaseException, trace_chars_max: int = 0) -> list[object]:
    """An error as plain data, whatever it is. One of ours: the name of its class, and its fields; if not every process loads the class,
    also the one that it is a kind of and every process has, and its words. An author's: the name of its class, its words, the traceback,
    the places of its class and of those that it is a kind of, the errors that it was raised from, those that it holds, and its data."""
    raised = raised_by(problem)
    fields = _fields(raised) if _known_error(kind_of(raised)) is type(raised) else None
    if fields is not None:
        everywhere = next(kind for kind in type(raised).__mro__ if kind.__module__.startswith(_EVERYWHERE))
        more = [] if everywhere is type(raised) else [everywhere.__name__, text_of(raised)]
        return [kind_of(raised), fields, *more]
    kind, words, places, *held = _summary(raised)
    trace = traced(raised, trace_chars_max) if trace_chars_max else ""
    return [kind, [words], trace, places, [_summary(each) for each in _causes(raised)], *held]


def _fields(problem: BaseException) -> list[object] | None:
    # None if another process cannot make the error of its fields.
    fields = [text_of(each) if not _is_plain(each) else each for each in own(problem, "args")]
    made, _ = tried_now(lambda: type(problem)(*fields))
    return None if made is None or isinstance(made, RemoteError) else fields


def _causes(problem: BaseException) -> Iterator[BaseException]:
    for _ in range(PARTS_MAX):
        further = behind(problem)
        if further is None:
            return
        problem = raised_by(further)
        yield problem


def _summary(problem: BaseException, members_max: int = MEMBERS_MAX) -> list[object]:
    told: list[object]
    if isinstance(problem, RemoteError):
        told = [problem.kind, text_of(problem.words), [problem.place, *problem.bases]]
    else:
        places, _ = tried_now(lambda: _places(type(problem)))
        told = [kind_of(problem), words_of(problem), places or []]
    held = [raised_by(each) for each in members_of(problem)[:members_max]]
    data, _ = tried_now(lambda: _data_of(problem))
    return [*told, [_summary(each, members_max // 4) for each in held], data or _NO_DATA]


def _places(kind: type[BaseException]) -> list[str]:
    bases = [each for each in kind.__mro__[1:] if issubclass(each, Exception) and each is not Exception]
    return [text_of(place_of(each), PLACE_MAX) for each in (kind, *bases)][:PLACES_MAX]


_Data: TypeAlias = tuple[bytes | None, dict[str, bytes]]
"""The arguments of an error, and its attributes, each encoded by itself. What is long, or no plain data, is left out."""

_NO_DATA: Final[_Data] = (None, {})


def _data_of(problem: BaseException) -> _Data:
    args, _ = tried_now(lambda: packed_if_short(own(problem, "args"), DATA_MAX))
    room, told = DATA_MAX - len(args or b""), dict[str, bytes]()
    for name, value in _attributes(problem):
        body, _ = tried_now(partial(packed_if_short, value, room - len(name)))
        if body is not None:
            room -= len(name) + len(body)
            told[name] = body
    return args, told


def _attributes(problem: BaseException) -> Iterator[tuple[str, object]]:
    for name, value in own(problem, "__dict__").items():
        if type(name) is str and name.isidentifier() and not name.startswith("__") and name not in _OF_REMOTE:
            yield name, value
    for name, slot in _slots(type(problem)).items():
        value, unset = tried_now(partial(slot.__get__, problem))
        if value is not None and unset is None:
            yield name, value


# With the name that is missing, Python would guess from the names that are here what was meant.
_GUESSED: Final = {NameError, AttributeError}


def _slots(kind: type[BaseException]) -> dict[str, MemberDescriptorType | GetSetDescriptorType]:
    """Where its classes keep what is in no dictionary, such as the `errno` of an `OSError`. None of it is an author's code."""
    own_slots = (vars(each) for each in kind.__mro__ if each not in _GUESSED and each not in BaseExceptionGroup.__mro__)
    slots = (item for each in own_slots for item in each.items() if isinstance(item[1], _SLOT))
    unfit = {"name_from", *_OF_REMOTE}  # the former as above
    return {name: slot for name, slot in slots if not name.startswith("__") and name not in unfit}


_SLOT: Final = (MemberDescriptorType, GetSetDescriptorType)


def error_from_plain(plain: list[Plain]) -> PerdureError:
    """The error again; one that is not ours becomes a `RemoteError` with the same words."""
    name, args, *of_author = plain
    kind = _known_error(name)
    if len(of_author) <= len(("everywhere", "words")):
        if kind is not None:
            return kind(*args)
        everywhere, words = of_author
        base = None if everywhere == PerdureError.__name__ else _known_error(everywhere)
        made = None if base is None else tried_now(lambda: base(*args))[0]
        return remote_error(name, words) if made is None else made
    trace, places, causes, *more = of_author
    error = raised = remote_error(name, ": ".join(map(str, args)), places, *more)
    if trace:
        BaseException.add_note(error, f"Where it was raised:\n{trace}")
    for cause in causes:
        further = remote_error(*cause)
        set_cause(raised, further)
        raised = further
    return error


def _is_plain(value: object) -> bool:
    # True if a field of an error arrives as it is.
    match value:
        case None | bool() | float():
            return True
        case int():
            return -(1 << 63) <= value < 1 << 64
        case str() | bytes():
            return len(value) <= WORDS_MAX and (isinstance(value, bytes) or text_of(value) == value)
        case list():
            return all(not isinstance(each, list) and _is_plain(each) for each in value)
    return False


class RemoteError(PerdureError):
    """An author's code raised in another process. It can be caught as what it is, `except ValueError`, if this process knows the class: one
    of Python's, or of a module that is imported here; or else as the nearest that it was a kind of. Its `__cause__` is what it was raised
    from.

    `args` and the attributes arrive as they were where they are plain data, 4,000 bytes of an error at the most; the class's own `__init__`
    is not called. `args` that are not are the words, and an attribute that is not is left out, as is one with a name that stands below.

    Attributes:
        kind, words: the name of its class, and its text.
        place: the module and the name of its class, such as `shop.orders:SoldOut`.
        bases: the places of the classes that it was a kind of.
        members: the errors that it holds, of a group.
    """

    def __init__(
        self,
        kind: str,
        words: str,
        place: str = "",
        members: Sequence[RemoteError] = (),
        bases: Sequence[str] = (),
    ) -> None:
        Exception.__init__(self, words)  # the author's class may take other arguments
        self.kind, self.words, self.place = kind, words, place
        self.members, self.bases = tuple(members), tuple(bases)

    def __init_subclass__(cls) -> None:
        """Tell nobody: an author's class may keep a list of its subclasses, where what is made of it here is none of theirs."""

    def __str__(self) -> str:
        return f"{self.kind}: {self.words}"

    def __reduce__(self) -> tuple[object, ...]:
        told = (self.kind, self.words, [self.place, *self.bases])
        return remote_error, (*told, [each.__reduce__()[1] for each in self.members], _data_of(self))


_OF_REMOTE: Final = frozenset(vars(RemoteError("", "")))


class RemoteErrorGroup(RemoteError, ExceptionGroup[Exception]):
    """A `RemoteError` for a group of errors, such as a failed `asyncio.TaskGroup`: `except*` finds those that it holds."""


def remote_error(
    kind: str,
    words: str,
    places: Sequence[str] = (),
    members: Sequence[list[Plain]] = (),
    data: _Data = _NO_DATA,
) -> RemoteError:
    held = [remote_error(*each) for each in members]
    place, *bases = places or [""]
    made = _known_as([place or f"builtins:{kind}", *bases], (kind, words, place, held, bases))
    args, attributes = data
    if args is not None:
        tried_now(lambda: vars(BaseException)["args"].__set__(made, unpack_value(args)))
    for name, body in attributes.items():
        tried_now(partial(_put, made, name, body))
    return made


_Told = tuple[str, str, str, list[RemoteError], list[str]]  # what its `__init__` takes


def _known_as(places: Sequence[str], told: _Told) -> RemoteError:
    # Of its own class, and of what that is a kind of: where its own is not known here, or can have no subclass.
    *_, held, _ = told
    bare = RemoteErrorGroup if held else RemoteError
    made, (nearest, *bases) = _made(bare, told), map(loaded_class, places)
    further = (each for each in bases if each is not None and not issubclass(each, PerdureError))
    for known in (nearest, *further):
        is_error = isinstance(known, type) and issubclass(known, Exception) and not issubclass(known, _UNFIT)
        parent: Any = type(made)
        if is_error and (parent is bare or all(known is not each for each in parent.__mro__)):
            made = tried_now(partial(_made_of, parent, known, told))[0] or made
    return made


_UNFIT: Final = (RemoteError, StopIteration)  # the latter cannot be raised in a coroutine that waits


def _made(made_as: type[RemoteError], told: _Told) -> RemoteError:
    # By Python's own `__new__`, for an author's may take other arguments.
    solid: Any = made_as
    _, words, _, held, _ = told
    while not isinstance(vars(solid).get("__new__"), BuiltinFunctionType):
        solid = solid.__base__
    made: RemoteError = vars(solid)["__new__"](made_as, *((words, held) if held else ()))
    RemoteError.__init__(made, *told)
    return made


def _made_of(parent: Any, known: Any, told: _Told) -> RemoteError:
    return _made(_remote_kind(parent, known), told)


def _put(made: RemoteError, name: str, body: bytes) -> None:
    value, slot = unpack_value(body), _slots(type(made)).get(name)
    if slot is None:
        own(made, "__dict__").setdefault(name, value)
    else:
        slot.__set__(made, value)


def _unknown(error: object, name: str) -> object:
    raise AttributeError(f"{type(error).__name__!r} has no attribute {name!r} here", name=name, obj=error)


_OF_REMOTES: Final = {"__new__", "__init__", "__str__", "__repr__", "__reduce__", "__dict__", "__doc__"}
_OF_ALL: Final[dict[str, object]] = {
    **{name: each for name, each in vars(BaseException).items() if name not in _OF_REMOTES},
    **{name: vars(object)[name] for name in ("__eq__", "__ne__", "__hash__")},
    "__bool__": lambda _: True,
    "__getattr__": _unknown,
    **dict.fromkeys(_OF_REMOTE),  # an error's own, in its dictionary, come before these, and not before a property
}
"""What an author's class may have made something of that needs its own fields, such as an `args` that is computed."""


@cache
def _remote_kind(parent: type[RemoteError], known: type[Exception]) -> type[RemoteError]:
    mine = {"__module__": __name__, "__doc__": RemoteError.__doc__}
    named = parent if parent not in (RemoteError, RemoteErrorGroup) else known
    return type(named.__name__, (parent, known), mine | _OF_ALL)


def _family(kind: type[PerdureError]) -> Iterator[type[PerdureError]]:
    yield kind
    for each in kind.__subclasses__():
        yield from _family(each)


def _known_error(name: str) -> type[PerdureError] | None:
    # An author's class may have this name, too.
    ours = (kind for kind in _family(PerdureError) if kind.__module__.startswith("perdure."))
    return next((kind for kind in ours if kind.__name__ == name), None)
