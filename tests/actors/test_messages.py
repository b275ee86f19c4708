"""The table of messages: what is declared, which way each goes, and that each comes out of the wire as it went in."""

from __future__ import annotations

from typing import Any, get_args, get_type_hints

import pytest

from perdure.actors.host.host import Host
from perdure.actors.link import messages
from perdure.actors.link.messages import REPORTS, STIMULI, TABLE, Ask, Call, Message, Question, ToHost, Way
from perdure.actors.link.wire import decode, decode_all, encode, encode_all
from perdure.ledger import Adopt, Request, Stimulus, pack, unpack

FILLINGS: dict[Any, Any] = {int: 7, str: "text", bytes: b"\x00\xff", bool: True}
INNER = {"HostUp", "HostLost", "Retire", "StopLives", "Tick"}


def example(kind: type[Any]) -> Any:
    """A message of a kind, with a value in each field."""
    if kind is Ask:
        return Ask(
            "ref", Call("a@b", "method", b"", None, repeatable=False, sender="", heard=1, again=True, standalone="")
        )
    hints = get_type_hints(kind, vars(messages))
    return kind(*(FILLINGS.get(hints[name], ["plain", {"data": None}]) for name in kind._fields))


@pytest.mark.parametrize("kind", TABLE, ids=lambda kind: kind.__name__)
def test_a_message_comes_out_of_the_wire_as_it_went_in(kind: type[Any]) -> None:
    message = Ask("ref", example(kind)) if TABLE[kind] is Way.ASKED else example(kind)
    arrived = decode(unpack(pack(encode(message))))
    assert arrived == message
    assert type(arrived) is type(message)


@pytest.mark.parametrize("question", [each for each, way in TABLE.items() if way is Way.ASKED], ids=lambda kind: kind.__name__)  # fmt: skip
def test_a_question_keeps_its_kind_within_what_asks_it(question: type[Any]) -> None:
    arrived = decode(unpack(pack(encode(Ask("ref", example(question))))))
    assert isinstance(arrived, Ask)
    assert type(arrived.question) is question


def test_the_table_holds_every_message_and_every_question() -> None:
    assert set(TABLE) == {*get_args(Message), *get_args(Question)}


def test_every_stimulus_is_a_message_but_for_those_that_the_supervisor_makes_itself() -> None:
    assert {kind.__name__ for kind in set(get_args(Stimulus)) - STIMULI} == INNER
    assert all(TABLE[kind] is Way.FROM_HOST for kind in REPORTS)
    assert {Request, Adopt, *(kind for kind in STIMULI if TABLE[kind] is Way.ASKED)} == STIMULI - REPORTS


def test_a_host_has_a_command_for_every_message_that_is_for_hosts_alone() -> None:
    assert set(Host.COMMANDS) == set(get_args(ToHost))


def test_a_message_is_small_on_the_wire() -> None:
    up = encode(messages.Up("run", 1))
    assert len(pack(up)) == len(pack([0, "run", 1]))


def test_a_stretch_of_one_kind_goes_in_columns_and_comes_out_as_it_went_in() -> None:
    options = {"detached": True}
    asked = [Request(f"r{n}", "m:T", "p@m:P", "", "d", b"\x01", options, 1, wait=True) for n in range(50)]
    said = [messages.ClientHello([]), *asked, *[messages.Ping()] * 9, *[Ask("ref", example(Call))] * 9, asked[0]]
    arrived = decode_all(unpack(pack(encode_all(said))))
    assert arrived == said
    assert [type(each) for each in arrived] == [type(each) for each in said]
    assert len(pack(encode_all(asked))) < 6 * len(asked) + 60 < len(pack([*map(encode, asked)]))


@pytest.mark.parametrize("values", [[1, True, 1.0, 1], [0, False, None, b""], [{"n": 1}, {"n": True}, {}, {"n": 1}]])
def test_values_that_are_merely_equal_stay_what_they_are(values: list[Any]) -> None:
    said = [messages.CallAnswered("ref", ok=True, value=value) for value in values]
    arrived = decode_all(unpack(pack(encode_all(said))))
    assert [repr(each) for each in arrived] == [repr(each) for each in said]
