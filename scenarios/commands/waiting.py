"""The commands on runs that wait: `send`, `pause` and `resume`; `asks` lists the questions to people, and `answer` answers one."""

from __future__ import annotations

import json
import shlex
import time
from typing import Annotated, Any
from uuid import uuid4

import typer

from perdure import AskClosed, BadRequest, Limits, actors
from perdure.actors import sent_event
from perdure.ledger import check_id, lasting
from perdure.scenarios.commands.opening import opened
from perdure.scenarios.commands.options import HERE, AsJson, Data, RunId
from perdure.scenarios.commands.shown import instant, json_of, print_pairs, print_table, say, shortened
from perdure.scenarios.live_view import plural


def send(
    run_id: RunId,
    event: Annotated[str, typer.Argument(help="The name by which the run waits for it.")],
    value: Annotated[str, typer.Argument(help="JSON; what is no JSON is a text.")] = "null",
    event_id: Annotated[
        str | None, typer.Option("--id", help="An id of your own: the same one again is the same event.")
    ] = None,
    data: Data = HERE,
) -> None:
    """Send an event to a run, which takes it by `run.wait_for(EVENT)`.

    It is durable when this command returns. The run takes it once: now, or when it comes to wait for it. One that has ended is refused.

    Examples:
        perdure send 3f0c9a1e approval '{"by": "Ada"}'
        perdure send 3f0c9a1e go
    """
    with opened(data) as ledger:
        ledger.ask("send", *sent_event(run_id, event, _value(value), event_id, uuid4().hex, Limits()))
        waits = ledger.ask("show", run_id)["waits"]
    is_awaited = waits is not None and event in waits["events"]
    when = "It waits for it" if is_awaited else "It takes it when it waits for it"
    if waits is not None and waits["paused"]:
        when = f"It is paused, and takes it when it {'is resumed' if is_awaited else 'goes on and waits for it'}"
    say(f"Event {event!r} is sent to run {run_id}. {when}.")


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


def pause(run_id: RunId, data: Data = HERE) -> None:
    """Pause a live run, until `perdure resume`.

    A run at work gives up its place at its next step, wait or milestone at which nothing else of it is at work. What it waits for goes on
    to come, and no time limit applies to it but a budget of its own. A run whose steps are being undone is not paused, nor one at work
    that has one attempt.

    Example:
        perdure pause 3f0c9a1e
    """
    with opened(data) as ledger:
        ledger.ask("pause", run_id, True)
        host = ledger.ask("show", run_id)["host"]
    print(f"Run {run_id} is paused{', and stops at its next step' if host else ''}. `perdure resume` lets it go on.")


def resume(run_id: RunId, data: Data = HERE) -> None:
    """Let a paused run go on.

    Example:
        perdure resume 3f0c9a1e
    """
    with opened(data) as ledger:
        was_paused = (ledger.ask("show", run_id)["waits"] or {"paused": False})["paused"]
        ledger.ask("pause", run_id, False)
    print(f"Run {run_id} goes on." if was_paused else f"Run {run_id} was not paused, and stays as it is.")


YES, NO = ("yes", "y", "true"), ("no", "n", "false")


def asks(
    to: Annotated[str | None, typer.Option(help="Only questions that have come to this group or person.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Closed ones too, of runs that are live or have ended lately.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="Number of questions.")] = 1_000,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """List the questions to people, those that wait for longest first: of runs, and about calls of chats that wait.

    Examples:
        perdure asks
        perdure asks --to ops
    """
    with opened(data) as ledger:
        found: list[dict[str, Any]] = ledger.ask("asks", to, everything, limit + 1)
    is_cut, found = len(found) > limit, found[:limit]
    if as_json:
        print(json_of(found))
        return
    now_ms = time.time_ns() / 1_000_000
    titles = ("question", "asks", "for", "of", "since", "until", *(("stands",) if everything else ()))
    cells = [
        (
            each["ask_id"],
            shortened(each["question"]),
            shortened(_wanted(each["schema"])),
            " or ".join(each["to"]) or "anybody",
            lasting(max(0, now_ms - each["opened_at_ms"])),
            instant(each["expires_at_ms"]) if each["expires_at_ms"] else "",
            *((each["status"],) if everything else ()),
        )
        for each in found
    ]
    print_table(titles, cells)
    for each in found:
        if each["note"] and each["kind"] == "question" and each["status"] == "open":  # that of a call is about its tool
            say(f"\n{each['ask_id']} is asked again: {each['note']}.")
    if is_cut:
        print(
            f"\nThere are more than these {limit:,}; `--limit` lists more of them, and `--to` those of a group or person."
        )
    if found:
        print(f"\n`perdure answer {shlex.quote(found[0]['ask_id'])} VALUE` answers the first of them.")
    else:
        print("Nobody asks anything.")


def _wanted(schema: dict[str, Any]) -> str:
    if schema.get("type") == "boolean":
        return "yes or no"
    if "enum" in schema or "const" in schema:
        return " or ".join(map(str, schema.get("enum", [schema.get("const")])))
    return str(schema.get("title") or schema.get("type") or "JSON")


def answer(
    ask: Annotated[str, typer.Argument(metavar="QUESTION", help="The id of a question (`perdure asks`).")],
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="[VALUE]", help="yes or no, one of the choices, a text, or JSON. Without it, the question is shown."
        ),
    ] = None,
    who: Annotated[
        str | None, typer.Option("--as", metavar="NAME", help="Who answers; by default the user of this machine.")
    ] = None,
    edit: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments that are to be used in place of the proposed ones.")
    ] = None,
    data: Data = HERE,
    as_json: AsJson = False,
) -> None:
    """Answer a question to people: of a run, or about a call of a chat. The first answer that fits counts, by whatever way it comes.

    Whoever has the directory may answer everything, and is recorded.

    Examples:
        perdure answer ship-42:1
        perdure answer ship-42:1 yes
        perdure answer ship-42:2 express --as ada
        perdure answer ship-42:3 yes --edit '{"customers": 12}'
    """
    about = actors.about_ask(ask)
    name = None if who is None else check_id("as", who, 256)
    args = None if edit is None else _object("edit", edit)
    with opened(data) as ledger:
        asked: dict[str, Any] = {}
        try:
            asked = ledger.ask(*about)
        except AskClosed:
            if value is None:
                raise
        if value is not None:  # whoever takes the answer knows best why a question is closed
            given, digest = value_of(asked.get("schema", {}), value), asked.get("digest")
            asked = {**ledger.answer(ask, given, who=name, args=args, digest=digest, channel="cli")}
    if as_json:
        print(json_of(asked))
    elif value is None:
        print_pairs({name: each for name, each in asked.items() if each not in (None, [])})
    elif asked["status"] == "answered":
        goes_on = "its run goes on, or asks again if that does not fit its type (`perdure asks` says why)"
        print(f"{ask} is answered, and {goes_on if asked['kind'] == 'question' else 'its turn goes on'}.")
    else:
        print(f"{ask} has {plural(len(asked['answers']), 'answer')}; {asked['people']} people have to agree.")


def value_of(schema: dict[str, Any], text: str) -> object:
    if schema.get("type") == "boolean" and text.lower() in (*YES, *NO):
        return text.lower() in YES
    return text if schema.get("type") == "string" else _value(text)  # whether it fits is said by what checks it


def _object(field: str, text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError as problem:
        raise BadRequest(field, f"{text!r:.200} is no JSON: {problem}") from None
    if not isinstance(found, dict):
        raise BadRequest(field, f"{text!r:.200} is no object of arguments by their names")
    return found
