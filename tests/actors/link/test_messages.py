"""The table of messages: what is declared, which way each goes, and that each comes out of the wire as it went in."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from perdure.actors.host.host import Host
from perdure.actors.link import messages
from perdure.actors.link.messages import (
    REPORTS,
    TABLE,
    Ask,
    Call,
    CodeFiles,
    Direction,
    Message,
    Question,
    ToHost,
)
from perdure.actors.link.wire import (
    SupervisorFrame,
    bodies_of,
    decode,
    decode_all,
    encode,
    frame_of,
    piece_of,
    pieces_of,
    read,
)
from perdure.ledger import Adopt, BadRequest, Cancel, Ended, Request, Stimulus, pack, unpack

FILLINGS: dict[Any, Any] = {int: 7, str: "text", bytes: b"\x00\xff", bool: True}
INNER = {"HostUp", "HostLost", "ExpireRuns", "StopLives", "Tick", "Unhosted"}


def example(kind: type[Any]) -> Any:
    """A message of a kind, with a value in each field."""
    if kind is Ask:
        return Ask(
            "ref", Call("a@b", "method", b"", None, repeatable=False, sender="", heard=1, again=True, standalone="")
        )
    hints = get_type_hints(kind)
    return kind(*(FILLINGS.get(hints[name], ["plain", {"data": None}]) for name in kind._fields))


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
def test_a_message_comes_out_of_the_wire_as_it_went_in(kind: type[Any]) -> None:
    message = Ask("ref", example(kind)) if TABLE[kind] is Direction.ASKED else example(kind)
    arrived = decode(unpack(pack(encode(message))))
    assert arrived == message
    assert type(arrived) is type(message)


@pytest.mark.parametrize(
    "question",
    [each for each, way in TABLE.items() if way is Direction.ASKED],
    ids=lambda kind: kind.__name__,
)
def test_a_question_keeps_its_kind_within_what_asks_it(question: type[Any]) -> None:
    arrived = decode(unpack(pack(encode(Ask("ref", example(question))))))
    assert isinstance(arrived, Ask)
    assert type(arrived.question) is question


def test_the_table_holds_every_message_and_every_question() -> None:
    assert set(TABLE) == {*get_args(Message), *get_args(Question)}


def test_every_stimulus_is_a_message_but_for_those_that_the_supervisor_makes_itself() -> None:
    stimuli = set(get_args(Stimulus)) & set(TABLE)
    assert {kind.__name__ for kind in set(get_args(Stimulus)) - stimuli} == INNER
    assert all(TABLE[kind] is Direction.FROM_HOST for kind in REPORTS)
    assert {Request, Adopt, *(kind for kind in stimuli if TABLE[kind] is Direction.ASKED)} == stimuli - REPORTS


def test_a_host_has_a_command_for_every_message_that_is_for_hosts_alone() -> None:
    assert set(Host.COMMANDS) == {*get_args(ToHost), CodeFiles}


def test_a_message_is_small_on_the_wire() -> None:
    up = encode(messages.Up("run", 1))
    assert len(pack(up)) == len(pack([0, "run", 1]))


def wired(said: list[Any]) -> bytes:
    """A frame that carries these messages."""
    return frame_of(SupervisorFrame(1, 1, 0, 1, (), missed=False, seq=0), [body for _, body in pieces_of(said)])


def heard(frame: bytes) -> list[Any]:
    """The messages that come out of a frame."""
    return decode_all(SupervisorFrame(*read(frame, SupervisorFrame)).messages)


def test_a_stretch_of_one_kind_goes_in_columns_and_comes_out_as_it_went_in() -> None:
    options = {"detached": True}
    asked = [Request(f"r{n}", "m:T", "p@m:P", "", "d", b"\x01", options, 1, wait=True) for n in range(50)]
    said = [messages.ClientHello([]), *asked, *[messages.Ping()] * 9, *[Ask("ref", example(Call))] * 9, asked[0]]
    arrived = heard(wired(said))
    assert arrived == said
    assert [type(each) for each in arrived] == [type(each) for each in said]
    assert len(wired(asked)) < 6 * len(asked) + 60 < len(pack([*map(encode, asked)]))


@pytest.mark.parametrize("values", [[1, True, 1.0, 1], [0, False, None, b""], [{"n": 1}, {"n": True}, {}, {"n": 1}]])
def test_values_that_are_merely_equal_stay_what_they_are(values: list[Any]) -> None:
    said = [messages.CallAnswered("ref", ok=True, value=value) for value in values]
    arrived = heard(wired(said))
    assert [repr(each) for each in arrived] == [repr(each) for each in said]


@pytest.mark.parametrize("count", [1, 20, 2_500], ids=str)
def test_a_message_that_cannot_be_sent_is_refused_by_field_to_who_says_it(count: int) -> None:
    asked = [Request(f"r{n}", "m:T", "p@m:P", "", "d", b"\x01", {}, 1, wait=True) for n in range(count)]
    bad = asked[-1]._replace(options={"order": 1, "display": {"name": "caf\udce9"}})
    with pytest.raises(BadRequest, match="cannot be sent to another process") as refused:
        pieces_of([*asked, bad])
    assert refused.value.field == "display"
    with pytest.raises(BadRequest) as refused:
        pieces_of([Ask("ref", Cancel("r", "p@m:P", "\udce9"))])
    assert refused.value.field == "reason"
    assert heard(wired(asked)) == asked


def test_ends_of_runs_leave_in_columns_and_one_that_cannot_be_sent_is_refused_before() -> None:
    plain = [Ended(f"r{n}", 1, b"\x01", "1", None) for n in range(50)]
    others: list[Any] = [
        Ended("r\u00e9", 1, None, "", None),
        Ended("r", 2, None, "\u00fc", None),
        Ended("r", 2, None, "", "it failed", released=True, trace="a line"),
        messages.Ping(),
    ]
    pieces = [piece_of(each) for each in [*plain, *others, *plain]]
    bodies = bodies_of(pieces)
    assert len(bodies) == 2 + len(others)
    assert heard(frame_of(SupervisorFrame(1, 1, 0, 1, (), missed=False, seq=0), bodies)) == [*plain, *others, *plain]
    for field in ("run_id", "summary", "error", "trace"):
        with pytest.raises(BadRequest) as refused:
            piece_of(plain[0]._replace(**{field: "\udce9"}))
        assert refused.value.field == field


@pytest.mark.parametrize("kind", ["alone", "in a stretch"])
def test_a_message_that_cannot_be_read_costs_the_others_nothing(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    said: list[Any] = [messages.ClientHello([]), *[Ask("ref", example(Call))] * 9]
    unreadable = {"alone": [2, [{"key": 1}]], "in a stretch": [-1, 2, 3, [[{"key": 1}], ["x"]]]}[kind]
    body = pack(unreadable).replace(pack("key"), b"\xa3\xff\xff\xff")  # no UTF-8
    bodies = [body for _, body in pieces_of(said)]
    frame = frame_of(SupervisorFrame(1, 1, 0, 1, (), missed=False, seq=7), [bodies[0], body, *bodies[1:]])
    assert SupervisorFrame(*read(frame, SupervisorFrame)).seq == 7
    told = heard(frame)
    count = len(told) - len(said)
    assert (told[0], told[1 + count :], count) == (said[0], said[1:], {"alone": 1, "in a stretch": 3}[kind])
    assert "cannot be read" in caplog.text
