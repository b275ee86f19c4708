"""What the model is told of an event, under which names it is known, and which messengers can be declared."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.actors import Kind, Messenger, Person, Telegram, Webhook, conversation_name
from perdure.actors.messenger.adapter import WebhookReply, declared
from perdure.actors.messenger.messenger_events import (
    Action,
    Attachment,
    MessengerEvent,
    own_mentions,
    short,
    user_message,
    user_text,
)
from perdure.ledger import BadRequest
from tests.actors.messenger.paper import Paper, said


@pytest.mark.shows(chat_recovery="C-0732 C-0857", messenger="M17")
def test_keys_name_the_message_and_of_a_button_also_who_pressed_it() -> None:
    """M17."""
    assert said("hi", key="9").key == "messenger:paper:message:t:9"
    action = Action(id="buy", value="3")
    pressed = said("", key="9", kind=Kind.ACTION, action=action)
    other = said("", key="9", kind=Kind.ACTION, action=action, author=Person(id="8"))
    assert pressed.key == "messenger:paper:action:t:9:buy:7:3"
    assert pressed.key != other.key


@pytest.mark.shows(messenger="M18 M65")
def test_the_message_of_the_user_has_the_same_id_however_often_it_is_made_and_lists_what_is_attached() -> None:
    """M18, M65."""
    event = said("Look", attachments=(Attachment(kind="photo", name="cat.png", media_type="image/png", size=3),))
    message = user_message(event)
    assert message == user_message(event)
    assert message["parts"][0]["text"] == "Look\nAttachments:\n- photo: cat.png (image/png, 3 bytes)"


@pytest.mark.shows(messenger="M19 M20 M22")
@pytest.mark.parametrize(
    ("author", "label"),
    [
        (Person(id="7", user_name="ada", full_name="Ada L."), "Ada L."),
        (Person(id="7", user_name="ada"), "ada"),
        (Person(id="7"), "7"),
    ],
)
def test_where_others_read_along_the_model_is_told_who_speaks(author: Person, label: str) -> None:
    """M19, M20, M22."""
    assert user_text(said("hi", is_direct=False, author=author)) == f"{label}: hi"
    assert user_text(said("hi", author=author)) == "hi"


@pytest.mark.shows(messenger="M21")
def test_an_author_may_say_how_speakers_are_called_or_that_they_are_not() -> None:
    """M21."""
    event = said("hi", is_direct=False)
    assert user_text(event, lambda each: f"<{each.author.id}>") == "<7>: hi"
    assert user_text(event, lambda each: None) == user_text(event, None) == "hi"


@pytest.mark.shows(messenger="M23 M24")
def test_a_button_is_told_with_its_value_and_the_message_below_which_it_stood() -> None:
    """M23, M24, M25."""
    lines = "Action selected: buy\nValue: 3\nSource message: How many?"
    pressed = said("", kind=Kind.ACTION, action=Action(id="buy", value="3", message_text="How many?"))
    assert user_text(pressed) == lines
    assert user_text(pressed.model_copy(update={"is_direct": False})) == f"Ada L.: {lines}"
    assert user_text(pressed.model_copy(update={"is_direct": False}), lambda each: "A") == f"A: {lines}"


@pytest.mark.shows(messenger="M26 M27 M28 M29")
@pytest.mark.parametrize("form", ["@U1", "<@U1>", "<@!U1>"])
def test_the_agents_own_id_in_a_text_becomes_its_name(form: str) -> None:
    """M26 to M29: other ids stay, and an adapter that knows no id changes nothing."""
    assert own_mentions(f"Hey {form}, hello", "U1", "bot") == "Hey @bot, hello"
    assert own_mentions("Hey <@U2> and @U12", "U1", "bot") == "Hey <@U2> and @U12"
    assert own_mentions(f"Hey {form}", "", "bot") == f"Hey {form}"


@pytest.mark.shows(chat_recovery="C-0720", messenger="M30")
def test_an_event_is_plain_data_without_what_the_provider_sent_beside_it() -> None:
    """M30: what is needed to fetch an attachment later is kept."""
    given: dict[str, Any] = said("hi", attachments=(Attachment(kind="x", metadata={"fileId": "f"}),)).model_dump()
    kept = MessengerEvent.model_validate({**given, "raw": {"secret": 1}, "fetch": print})
    assert kept.model_dump(mode="json").keys() == given.keys()
    assert kept.attachments[0].metadata == {"fileId": "f"}


@pytest.mark.shows(messenger="M64 weakness-53 case-23")
def test_every_thread_has_a_conversation_of_its_own() -> None:
    """Case 23 of §13.7, weakness 53, M64: names are not made alike, and long ones keep a digest of the whole."""
    names = [
        conversation_name(*each) for each in [("m", "a/b"), ("m", "a_b"), ("m:a", "b"), ("m", "a:b"), ("m%3Aa", "b")]
    ]
    long = [conversation_name("m", "x" * 500 + end) for end in "yz"]
    assert len({*names, *long}) == 7
    assert conversation_name("m", "telegram:42") == "m:telegram:42"
    assert all(len(name) <= 256 for name in long)


def test_a_name_that_is_too_long_is_its_beginning_and_a_digest_that_stays_the_same_for_ever() -> None:
    """Conversations and messages are found again by such names."""
    assert short("x" * 256) == "x" * 256
    assert short("x" * 257) == "x" * 180 + "~6111369e4b587b4a4bf84d6ef4d86968"
    assert len({short("x" * 256 + each) for each in ("", "y", "z", "\ud800")}) == 4


@pytest.mark.shows(messenger="M10")
def test_a_messenger_has_defaults_that_answer_those_who_speak_to_it() -> None:
    """M10."""
    messenger = declared([Messenger(id="m", adapter=Paper())])["m"]
    assert messenger.webhook_path == "/messengers/m/webhook"
    assert messenger.respond_to == {"direct-message", "mention"}
    assert messenger.subscribe_on_mention


@pytest.mark.parametrize(
    ("respond_to", "answered"),
    [
        ({"direct-message"}, {Kind.DIRECT}),
        ({"action"}, {Kind.ACTION}),
        ({"mention"}, {Kind.MENTION}),
        ({"subscribed-thread"}, {Kind.MENTION, Kind.MESSAGE}),
        ({"direct-message", "subscribed-thread"}, {Kind.DIRECT, Kind.MENTION, Kind.MESSAGE}),
        (set(), set()),
    ],
)
def test_a_messenger_hands_on_what_it_answers_and_what_a_subscribed_thread_may_want(
    respond_to: set[str], answered: set[Kind]
) -> None:
    messenger = Messenger(id="m", adapter=Paper(), respond_to=frozenset(respond_to))
    assert {kind for kind in Kind if messenger.takes(said("hi", kind=kind))} == answered


@pytest.mark.shows(messenger="M11 M12 M13 M45")
@pytest.mark.parametrize(
    ("messengers", "field"),
    [
        ([Messenger(id="m", adapter=Paper(), path="relative")], "messengers.path"),
        ([Messenger(id="m", adapter=Paper(), path="/a?b")], "messengers.path"),
        ([Messenger(id="m", adapter=Paper(), path="/a#b")], "messengers.path"),
        (
            [Messenger(id="a", adapter=Paper(), path="/x"), Messenger(id="b", adapter=Paper(), path="/x")],
            "messengers.path",
        ),
        ([Messenger(id="m", adapter=Paper()), Messenger(id="m", adapter=Paper(), path="/y")], "messengers.id"),
        ([Messenger(id="", adapter=Paper())], "messengers.id"),
        *(
            ([Messenger(id=each, adapter=Paper())], "messengers.id")
            for each in ("a/b", "a?b", "a#b", "a\0b", " m", "m ")
        ),
        ([Messenger(id="m", adapter=Telegram("1:a"))], "messengers.verify"),
        ([Messenger(id="m", adapter=Paper(), verify=True)], "messengers.verify"),  # type: ignore[arg-type]
        ([Messenger(id="m", adapter=Paper(), respond_to=frozenset({"all"}))], "messengers.respond_to"),
    ],
)
def test_what_could_not_work_is_refused_and_says_which_field(messengers: list[Messenger], field: str) -> None:
    """M11, M12, M13, M45, M46: paths, ids, and how webhooks are known, which nobody may forget to say."""
    with pytest.raises(BadRequest) as refused:
        declared(messengers)
    assert refused.value.field == field


def test_who_verifies_is_the_adapter_a_function_or_in_so_many_words_nobody() -> None:
    """M14, M15, M16: a function may answer for itself, and sees the body."""
    webhook = Webhook("POST", "/", {}, b"body")
    assert Messenger(id="m", adapter=Paper(), verify=False).verified(webhook) is True
    assert Messenger(id="m", adapter=Paper()).verified(webhook) is False
    own = Messenger(id="m", adapter=Paper(), verify=lambda each: WebhookReply(403, each.body.decode()))
    assert own.verified(webhook) == WebhookReply(403, "body")
