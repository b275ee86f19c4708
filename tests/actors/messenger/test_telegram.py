"""Telegram: what its webhooks say, what is sent to it, and what is made of its refusals."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.actors import (
    Kind,
    MalformedUpdate,
    MessageGone,
    MessageUnchanged,
    MessengerEvent,
    ProviderBusy,
    ProviderRefused,
    ProviderSilent,
    ProviderTrouble,
    Telegram,
    Webhook,
)
from perdure.actors.messenger.adapter import Button
from perdure.actors.messenger.telegram import SECRET_HEADER, TEXT_MAX, rendered
from perdure.ledger import BadRequest
from perdure.policies import Counting, length_of
from perdure.scenarios.simulated_telegram import BotApi, BotFault, SimWire

ADA = {"id": 7, "is_bot": False, "first_name": "Ada", "last_name": "L.", "username": "ada"}
PRIVATE, GROUP = {"id": 7, "type": "private"}, {"id": -100, "type": "supergroup", "title": "Many"}
OURS = "s3cret"
BOT = Telegram("12:abc", secret_token=OURS, user_name="@perdure_bot")


def update(update_id: int = 1, **message: Any) -> dict[str, Any]:
    return {
        "update_id": update_id,
        "message": {"message_id": 9, "date": 5, "chat": PRIVATE, "from": ADA, "text": "hi", **message},
    }


def parsed(body: object) -> list[MessengerEvent]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return BOT.parse("m", Webhook("POST", "/", {}, raw))


def test_a_private_message_is_for_the_bot_and_known_by_its_update() -> None:
    (event,) = parsed(update(41))
    assert (event.kind, event.thread_id, event.message_id, event.dedupe_key) == (
        Kind.DIRECT,
        "telegram:7",
        "9",
        "update:41",
    )
    assert (event.author.full_name, event.text, event.is_direct, event.sent_at_ms) == ("Ada L.", "hi", True, 5000)


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"text": "hi"}, Kind.MESSAGE),
        ({"text": "😀 @Perdure_Bot hi", "entities": [{"type": "mention", "offset": 3, "length": 12}]}, Kind.MENTION),
        ({"text": "@other_bot hi", "entities": [{"type": "mention", "offset": 0, "length": 10}]}, Kind.MESSAGE),
        ({"text": "/ask@perdure_bot", "entities": [{"type": "bot_command", "offset": 0, "length": 16}]}, Kind.MENTION),
        (
            {"text": "you", "entities": [{"type": "text_mention", "offset": 0, "length": 3, "user": {"id": 12}}]},
            Kind.MENTION,
        ),
        ({"reply_to_message": {"message_id": 8, "chat": GROUP, "from": {"id": 12, "is_bot": True}}}, Kind.MENTION),
    ],
)
def test_in_a_group_the_bot_is_addressed_by_name_by_command_or_by_a_reply(more: dict[str, Any], kind: Kind) -> None:
    (event,) = parsed(update(chat=GROUP, **more))
    assert (event.kind, event.is_direct) == (kind, False)


def test_a_topic_is_a_thread_of_its_own() -> None:
    (event,) = parsed(update(chat=GROUP, message_thread_id=5, is_topic_message=True))
    assert event.thread_id == "telegram:-100:5"


@pytest.mark.shows(messenger="M31 M32")
def test_what_is_attached_is_told_and_can_be_fetched_later() -> None:
    """M31, M32: without an id of its own it is known by its file id."""
    photo = [{"file_id": "small"}, {"file_id": "large", "file_size": 9}]
    (event,) = parsed(update(text="", caption="Look", photo=photo, document={"file_id": "d", "file_name": "a.pdf"}))
    assert event.text == "Look"
    assert [(each.kind, each.id, each.metadata) for each in event.attachments] == [
        ("photo", "large", {"fileId": "large"}),
        ("document", "d", {"fileId": "d"}),
    ]


@pytest.mark.shows(messenger="M25")
def test_a_button_is_an_action_with_its_value() -> None:
    query = {
        "id": "q",
        "from": ADA,
        "message": {"message_id": 9, "chat": PRIVATE, "text": "How many?"},
        "data": "buy:3",
    }
    (event,) = parsed({"update_id": 2, "callback_query": query})
    assert event.kind is Kind.ACTION
    assert event.action is not None
    assert (event.action.id, event.action.value, event.action.message_text) == ("buy", "3", "How many?")


@pytest.mark.parametrize(
    "body",
    [
        {"update_id": 1},
        {"update_id": 1, "edited_message": update()["message"]},
        {"update_id": 1, "something_new": {"a": 1}},
        update(**{"from": {**ADA, "is_bot": True}}),
        update(**{"from": None}),
        update(text=""),
    ],
)
def test_what_asks_for_no_answer_is_read_and_left_alone(body: object) -> None:
    assert parsed(body) == []


WRONG = [
    b"",
    b"not json",
    b"[]",
    b"null",
    b'{"update_id": "1"}',
    b'{"update_id": 1e400}',
    b'{"update_id": true}',
    json.dumps(update())[:-20].encode(),
    json.dumps(update(chat={"id": "7", "type": "private"})).encode(),
    json.dumps(update(chat=None)).encode(),
    json.dumps(update(entities=[{"type": "mention", "offset": -5, "length": 2}])).encode(),
    json.dumps(update(message_id=2**63)).encode(),
    json.dumps(update(message_id=-(2**63) - 1)).encode(),
    b'{"update_id": 1, "message": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    b"\xff\xfe\x00",
]


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63)])
def test_the_largest_numbers_that_telegram_may_send_are_read(number: int) -> None:
    (event,) = parsed(update(message_id=number))
    assert str(number) in event.message_id


@pytest.mark.parametrize("body", WRONG)
def test_what_is_not_of_the_documented_type_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedUpdate, match="update"):
        parsed(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*update()["message"], "entities", "photo", "message", "callback_query"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON, JSON)
def test_whatever_stands_in_a_webhook_it_is_events_or_malformed(anything: Any, field: Any) -> None:
    for body in (anything, {"update_id": 3, "message": anything}, update(text=field), update(entities=field)):
        with suppress(MalformedUpdate):
            assert isinstance(parsed(body), list)


@pytest.mark.shows(messenger="M47 weakness-55")
def test_the_secret_in_the_header_must_be_ours() -> None:
    """M47, weakness 55."""
    known = {"s3cret": True, "s3creT": False, "": False, "s3cret ": False, "é\udcff": False}
    for given_secret, is_ours in known.items():
        assert BOT.verify(Webhook("POST", "/", {SECRET_HEADER: given_secret}, b"")) is is_ours
    assert BOT.verify(Webhook("POST", "/", {}, b"")) is False
    assert Telegram("12:abc").verify(Webhook("POST", "/", {SECRET_HEADER: ""}, b"")) is False


@pytest.mark.parametrize("token", ["", "abc", "abc:def", ":", "12:", "-1:a"])
def test_a_token_that_is_none_is_refused_without_being_told(token: str) -> None:
    with pytest.raises(BadRequest) as refused:
        Telegram(token)
    assert refused.value.field == "token"
    assert "abc" not in repr(Telegram("12:abc"))


@pytest.mark.parametrize(
    ("options", "field"),
    [
        *(({"text_max": each}, "text_max") for each in (0, TEXT_MAX + 1, 1.5)),
        *(({"requests_per_s": each}, "requests_per_s") for each in (0, -1, float("inf"), float("nan"))),
        ({"secret_token": " "}, "secret_token"),
    ],
)
def test_an_option_that_is_none_is_refused_by_its_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(BadRequest) as refused:
        Telegram("12:abc", **options)
    assert refused.value.field == field


def test_a_group_is_edited_less_often_than_a_person() -> None:
    few = Telegram("12:abc", text_max=1, edit_every_ms=2, group_edit_every_ms=3, requests_per_s=0.1)
    for bot, limits in ((BOT, (TEXT_MAX, 1_000, 3_000)), (few, (1, 2, 3))):
        person, group = bot.limits("telegram:42"), bot.limits("telegram:-42:7")
        assert (person.text_max, person.edit_every_ms, group.edit_every_ms) == limits
        assert person.counting is group.counting is Counting.UTF16


# ---------------------------------------------------------------- going out


def test_marks_that_pair_become_entities_and_all_else_is_text() -> None:
    shown, spans = rendered("😀 **bold** `x`\n```python\nprint(1)\n```\n<b>not</b> [a](b) _c_ **")
    assert shown == "😀 bold x\nprint(1)\n<b>not</b> [a](b) _c_ **"
    assert [tuple(each) for each in spans] == [
        ("bold", 3, 4, None),
        ("code", 8, 1, None),
        ("pre", 10, 8, "python"),
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "😀", "`", "**", "```", "```py\n", "\n```\n", " ", "<b>", "]("]), max_size=40).map(
        "".join
    )
)
def test_hostile_markup_never_makes_an_entity_that_is_not_there(text: str) -> None:
    shown, spans = rendered(text)
    units = length_of(shown, Counting.UTF16)
    assert units <= length_of(text, Counting.UTF16)
    assert all(each.offset >= 0 and each.length > 0 and each.offset + each.length <= units for each in spans)
    assert bool(shown.strip()) == bool(text.strip())


def asked(
    job: Callable[[Telegram], Awaitable[Any]], *faults: BotFault, to: list[BotApi] | None = None
) -> tuple[Any, BotApi]:
    """What a request comes to: its answer, or its trouble. `to` is given the Telegram first."""
    telegram = BotApi()
    if to is not None:
        to.append(telegram)
    telegram.plan(list(faults))

    async def main() -> Any:
        bot = Telegram("12:abc", secret_token=OURS, wire=partial(SimWire, telegram))
        try:
            return await job(bot)
        except ProviderTrouble as trouble:
            return trouble
        finally:
            await bot.close()

    return asyncio.run(main()), telegram


def test_messages_are_sent_edited_and_taken_away() -> None:
    async def job(bot: Telegram) -> None:
        await bot.prepare()
        assert bot.user_name == "perdure_bot"
        await bot.typing("telegram:7:5")
        first = await bot.post("telegram:7", "**One** 😀 `two`")
        await bot.edit("telegram:7", first, "Three")
        await bot.delete("telegram:7", await bot.post("telegram:7", "x"))

    _, telegram = asked(job)
    kept, gone = telegram.log()["messages"]
    assert [text for _, text in kept["said"]] == ["One 😀 two", "Three"]
    assert gone["is_deleted"]


KEYBOARD = [Button("Yes", "perdure:0000000001:0"), Button("No", "perdure:0000000001:1"), Button("x" * 30, "a:b")]


def test_buttons_stand_below_a_message_until_an_edit_that_names_none() -> None:
    seen: list[Any] = []

    async def job(bot: Telegram) -> None:
        message_id = await bot.post_with_buttons("telegram:7", "Print it?", KEYBOARD)
        (message,) = telegrams[0].messages.values()
        seen.append(message.buttons)
        with pytest.raises(MessageUnchanged):
            await bot.edit_with_buttons("telegram:7", message_id, "Print it?", KEYBOARD)
        await bot.edit_with_buttons("telegram:7", message_id, "Print it?", KEYBOARD[:1])
        await bot.edit("telegram:7", message_id, "Printed.")

    telegrams = list[BotApi]()
    _, telegram = asked(job, to=telegrams)
    (message,) = telegram.log()["messages"]
    assert seen == [[(each.label, each.key) for each in KEYBOARD]]
    assert (message["said"][-1][1], message["buttons"]) == ("Printed.", [])
    with pytest.raises(BadRequest, match="64 bytes"):
        asked(lambda bot: bot.post_with_buttons("telegram:7", "x", [Button("Yes", "ä" * 33)]))


def test_a_press_comes_back_with_its_key_and_its_presser_is_told() -> None:
    async def job(bot: Telegram) -> None:
        telegram = telegrams[0]
        await bot.post_with_buttons("telegram:7", "Print it?", KEYBOARD)
        (message,) = telegram.messages.values()
        update = telegram.press(message, "No", "Ada", 7)
        (event,) = parsed(update)
        assert event.is_press
        assert event.action is not None
        assert (event.action.value, event.author.full_name, event.thread_id) == ("0000000001:1", "Ada", "telegram:7")
        await bot.answer_press(event.action.press_id, "y" * 300)
        with pytest.raises(ProviderRefused):
            await bot.answer_press("99", "too late")

    telegrams = list[BotApi]()
    _, telegram = asked(job, to=telegrams)
    assert [each.told for each in telegram.presses.values()] == [["y" * 200]]


def test_the_button_of_an_author_is_no_press_of_ours() -> None:
    query = {"id": "q", "from": ADA, "message": {"message_id": 9, "chat": PRIVATE}, "data": "perduring:1:0"}
    assert not parsed({"update_id": 2, "callback_query": query})[0].is_press
    assert not parsed(update())[0].is_press


POST: Callable[[Telegram], Awaitable[Any]] = lambda bot: bot.post("telegram:7", "x")  # noqa: E731


@pytest.mark.parametrize(
    ("kind", "trouble"),
    [
        ("busy", ProviderBusy),
        ("silent", ProviderSilent),
        ("lost", ProviderSilent),
        ("error", ProviderSilent),
        ("forbidden", ProviderRefused),
    ],
)
def test_a_refusal_is_told_as_what_may_follow_it(kind: Any, trouble: type[ProviderTrouble]) -> None:
    found, telegram = asked(POST, BotFault(method="sendMessage", kind=kind, seconds=3))
    assert type(found) is trouble
    assert found.retry_after_ms == (3000 if kind == "busy" else None)
    assert len(telegram.log()["messages"]) == (kind == "silent")


@pytest.mark.shows(messenger="M69")
def test_an_edit_that_changes_nothing_and_one_of_nothing_are_told_apart() -> None:
    async def same(bot: Telegram) -> None:
        await bot.edit("telegram:7", await bot.post("telegram:7", "x"), "x")

    assert type(asked(same)[0]) is MessageUnchanged
    assert type(asked(lambda bot: bot.edit("telegram:7", "99", "x"))[0]) is MessageGone


@pytest.mark.shows(messenger="weakness-54")
def test_a_process_keeps_its_pace_over_all_threads() -> None:
    """Weakness 54: many conversations at once do not bring about a flood."""

    async def job(bot: Telegram) -> float:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await asyncio.gather(*(bot.typing(f"telegram:{chat}") for chat in range(1, 6)))
        return loop.time() - began_s

    took_s, telegram = asked(job)
    assert took_s >= 4 / 25
    assert telegram.log()["methods"] == {"sendChatAction": 5}


def test_closing_a_bot_closes_the_connections_that_it_opened() -> None:
    opened, closed = list[SimWire](), list[SimWire]()

    class Wire(SimWire):
        def __init__(self) -> None:
            super().__init__(BotApi())
            opened.append(self)

        async def shutdown(self) -> None:
            closed.append(self)

    async def main() -> None:
        bot = Telegram("12:abc", wire=Wire)
        for times in (1, 2):
            await bot.typing("telegram:7")
            await bot.close()
            await bot.close()
            assert len(opened) == times
            assert closed == opened

    asyncio.run(main())


@pytest.mark.shows(messenger="M60")
def test_a_webhook_is_set_over_https_only() -> None:
    """M60."""
    _, telegram = asked(lambda bot: bot.set_webhook("https://example.org/messengers/m/webhook"))
    assert telegram.webhook["secret_token"] == OURS
    with pytest.raises(BadRequest, match="url"):
        asked(lambda bot: bot.set_webhook("http://example.org/"))
