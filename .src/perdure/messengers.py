"""Agents that people write to where they are: webhooks in, answers with edits out, each accepted message answered once."""

from __future__ import annotations

from perdure.actors import (
    Adapter,
    ChatState,
    Kind,
    MalformedUpdate,
    MessageGone,
    MessageUnchanged,
    Messenger,
    MessengerAgent,
    MessengerEvent,
    Person,
    ProviderBusy,
    ProviderRefused,
    ProviderSilent,
    ProviderTrouble,
    ProviderUnreached,
    Telegram,
    TextLimits,
    Webhook,
    conversation_name,
    messenger_app,
)
from perdure.actors.messenger.adapter import Button, ButtonAdapter
from perdure.actors.messenger.messenger_events import Action, Attachment
from perdure.policies import Counting, Delivery

__all__ = [
    "Action",
    "Adapter",
    "Attachment",
    "Button",
    "ButtonAdapter",
    "ChatState",
    "Counting",
    "Delivery",
    "Kind",
    "MalformedUpdate",
    "MessageGone",
    "MessageUnchanged",
    "Messenger",
    "MessengerAgent",
    "MessengerEvent",
    "Person",
    "ProviderBusy",
    "ProviderRefused",
    "ProviderSilent",
    "ProviderTrouble",
    "ProviderUnreached",
    "Telegram",
    "TextLimits",
    "Webhook",
    "conversation_name",
    "messenger_app",
]
