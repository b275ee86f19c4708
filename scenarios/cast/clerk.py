"""The agent of `perdure run messenger`: a clerk behind a Telegram bot, the messages to it, and its answers.

The environment of its process names its model and its Telegram. In the simulated world Telegram is an object.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar, Final

from telegram.request import BaseRequest

from perdure import ChatRecovery, Secret
from perdure.actors import Messenger, MessengerAgent, Telegram, conversation_name
from perdure.policies import Delivery
from perdure.scenarios.cast.environment import MODEL, SIMULATED, model_here, outside
from perdure.scenarios.provider.script import Script, ScriptedQuestion, conclusion
from perdure.scenarios.simulated_telegram import BOT_NAME, SimWire

API: Final = "PERDURE_SCENARIO_BOT_API"
TOKEN: Final = "PERDURE_SCENARIO_BOT_TOKEN"  # noqa: S105 - the name of the variable
SECRET: Final = "PERDURE_SCENARIO_BOT_SECRET"  # noqa: S105 - the same
PRETENDED_TOKEN: Final = "1:pretended"  # noqa: S105 - of no real bot
PRETENDED_SECRET: Final = "only-for-scenarios"  # noqa: S105 - the same
REAL_API: Final = "https://api.telegram.org/bot"
MESSENGER: Final = "telegram"
EDITORS: Final = "editors"
EDITORS_CHAT: Final = -500
TEXT_MAX: Final = 600  # so that an answer of ordinary length is several messages
EDIT_MS: Final = 150
FIRST_UPDATE: Final = 1_000
PROSE: Final = "a counter without a queue keeps every letter that came in by any door until it was answered in full"


class Clerk(MessengerAgent):
    """Answers people, as the agent of a real bot would."""

    instructions = "You are a friendly clerk. Answer in plain text, briefly."
    num_cpus = 0.003  # nearly nothing, but a value of its own gives clerks their own hosts, which can be killed alone
    chat_stream_stall_timeout_ms = 20_000

    @classmethod
    def messengers(cls) -> Sequence[Messenger]:
        api = os.environ.get(API, "")
        is_pretended = os.environ.get(TOKEN) == PRETENDED_TOKEN
        bot = Telegram(
            Secret(TOKEN),
            secret_token=Secret(SECRET),
            user_name=BOT_NAME if is_pretended else "",
            base_url=api if api not in ("", SIMULATED) else REAL_API,
            text_max=TEXT_MAX if is_pretended else 4096,
            edit_every_ms=EDIT_MS if is_pretended else 1_000,
            requests_per_s=1_000 if is_pretended else 25,
            wire=_wire_of_now if api == SIMULATED else None,
        )
        return [Messenger(id=MESSENGER, adapter=bot, delivery=Delivery(first_pause_ms=100))]

    def get_model(self) -> Any:
        return model_here()


def _wire_of_now() -> BaseRequest:
    # Resolved late, because one process may play many simulations.
    return SimWire(outside().telegram)


# For the swarm, where processes die so often that a reply may need many attempts.
class Reception(Clerk):
    chat_recovery = ChatRecovery(max_attempts=100, no_progress_timeout_ms=3_600_000)
    chat_stream_stall_timeout_ms = 2_000


# It shows the editors of `perdure run newsroom` what editions ask them, in a group of theirs.
class EditorsDesk(Clerk):
    ask_threads: ClassVar[Mapping[str, str]] = {EDITORS: f"telegram:{EDITORS_CHAT}"}


def clerk_environment(
    api: str, model: str, token: str = PRETENDED_TOKEN, secret: str = PRETENDED_SECRET
) -> dict[str, str]:
    return {API: api, TOKEN: token, SECRET: secret, MODEL: model}


def clerk_of(chat_id: int) -> str:
    return conversation_name(MESSENGER, f"telegram:{chat_id}")


def question_of(number: int, seed: int) -> ScriptedQuestion:
    die = Random(f"{seed} {number}")
    length = die.choice((8, 30, 90, 200))
    words = " ".join(die.choice(PROSE.split()) for _ in range(length))
    return ScriptedQuestion(asks=f"[{number}]", concludes=f"To number {number}: {words}")


def answer_of(number: int, seed: int) -> str:
    return conclusion(question_of(number, seed), [])


def script_of(count: int, seed: int) -> Script:
    return Script(questions=tuple(question_of(number, seed) for number in range(count)))


def update_of(number: int, chat_id: int, seed: int) -> dict[str, Any]:
    sender = {"id": chat_id, "is_bot": False, "first_name": f"Person {chat_id}"}
    text = f"Message [{number}]: what does a counter keep? 📬 <b>&"
    chat = {"id": chat_id, "type": "private"}
    message = {"message_id": 10 + number, "date": 1_700_000_000 + seed, "chat": chat, "from": sender, "text": text}
    return {"update_id": FIRST_UPDATE + number, "message": message}
