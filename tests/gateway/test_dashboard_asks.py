"""The inbox of questions to people in a real browser: each kind is answered there, and nowhere else twice."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from perdure.scenarios.bench.browser import chromium
from tests.gateway.browser import PATIENCE_MS, browser_page
from tests.gateway.real import RealGateway, client, real_gateway

ASKER = "tests.gateway.cast:Asker"
CROWD = "tests.gateway.cast:Crowd"
ODD = "<script>document.title = 'taken'</script><b>Ship?</b>\n" + "long" * 500

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    with real_gateway(tmp_path_factory.mktemp("asks"), [ASKER, CROWD]) as started:
        yield started


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    hooks = {"hooks": {"authenticate": "tests.gateway.cast:BY_TOKEN"}}
    with real_gateway(tmp_path_factory.mktemp("guarded"), [ASKER], **hooks) as started:
        yield started


def begin(gateway: RealGateway, run_id: str, kind: str = ASKER, by: str = "", **asked: Any) -> None:
    """Start a run that asks this, and wait until it has."""
    headers = {"authorization": f"Bearer {by}"} if by else {}
    with client(gateway) as line:
        input = asked.pop("input", None) or {"question": "Ship?", **asked}
        told = line.post("/api/runs", json={"type": kind, "input": input, "run_id": run_id}, headers=headers)
        assert told.is_success, told.text
        while not line.get("/api/asks", params={"asked_by": run_id}, headers=headers).json()["asks"]:
            assert line.get(f"/api/runs/{run_id}", headers=headers).json()["status"] in ("starting", "running")


def said(gateway: RealGateway, run_id: str) -> Any:
    """What a run has returned."""
    with client(gateway) as line:
        line.get(f"/api/runs/{run_id}/events")  # they end with the run
        told = line.get(f"/api/runs/{run_id}").json()
        assert told["status"] == "completed", told
        return json.loads(told["summary"])


def answer(gateway: RealGateway, ask_id: str, value: Any, **more: Any) -> None:
    """Answer as somebody else does, at the same time."""
    with client(gateway) as line:
        told = line.post(f"/api/asks/{quote(ask_id, safe='')}/answer", json={"value": value, **more})
        assert told.is_success, told.text


def card(page: Page, ask_id: str) -> Locator:
    """A question on the page."""
    return page.locator("article.ask").filter(has=page.get_by_text(ask_id, exact=True))


def test_a_question_is_answered_and_another_way_to_answer_takes_it_from_the_page(
    gateway: RealGateway, browser: Browser
) -> None:
    begin(gateway, "first", question=ODD)
    begin(gateway, "second", to="ops")
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/asks")
        expect(page.locator("#asks")).to_have_text("2")
        expect(page.locator("article.ask").first).to_contain_text("<script>document.title = 'taken'</script>")
        assert page.title().startswith("Asks")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        expect(card(page, "second:1")).to_contain_text("ops")
        page.get_by_label("Your name").fill("ada")
        card(page, "first:1").get_by_role("button", name="Yes").click()
        expect(card(page, "first:1")).to_have_count(0)
        expect(page.get_by_role("status").filter(has_text="first:1 is answered: Yes")).to_be_visible()
        expect(card(page, "second:1")).to_be_focused()
        assert said(gateway, "first") == [True, "ada", "dashboard", None]
        answer(gateway, "second:1", False)
        expect(card(page, "second:1")).to_have_count(0)
        expect(page.locator("#asks")).to_be_hidden()
        expect(page.get_by_text("Nothing is asked.")).to_be_visible()
        page.get_by_label("closed ones too").check()
        expect(card(page, "second:1")).to_contain_text("Answered by anyone: No")
        expect(card(page, "second:1").get_by_role("button")).to_have_count(0)


def test_each_kind_of_answer_has_its_form(gateway: RealGateway, browser: Browser) -> None:
    for kind in ("choice", "many", "text", "form", "anything"):
        begin(gateway, f"of-{kind}", kind=ASKER, input={"question": "What?", "kind": kind})
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/asks")
        card(page, "of-choice:1").get_by_role("button", name="green <b>").click()
        assert said(gateway, "of-choice")[0] == "green <b>"
        card(page, "of-many:1").get_by_label("Answer").select_option(label="choice 17")
        card(page, "of-many:1").get_by_role("button", name="Answer").click()
        assert said(gateway, "of-many")[0] == "choice 17"
        card(page, "of-text:1").get_by_label("Answer").fill("one\ntwo")
        card(page, "of-text:1").get_by_role("button", name="Answer").click()
        assert said(gateway, "of-text")[0] == "one\ntwo"
        form = card(page, "of-form:1")
        form.get_by_label("Carrier").select_option(label="courier")
        form.get_by_role("button", name="Answer").click()
        expect(form.get_by_role("alert")).to_have_text("“Boxes” is missing")
        expect(form.get_by_label("Boxes")).to_be_focused()
        form.get_by_label("Boxes").fill("3")
        form.get_by_label("Boxes").press("Enter")
        shipped = {"carrier": "courier", "boxes": 3, "weight": None, "insured": False, "label": ""}
        assert said(gateway, "of-form")[0] == shipped
        anything = card(page, "of-anything:1")
        anything.get_by_text("what fits (JSON schema)").click()
        expect(anything).to_contain_text("additionalProperties")
        anything.get_by_label("Answer, as JSON").fill('{"a": ["x"]}')
        anything.get_by_role("button", name="Answer").click()
        expect(anything.get_by_role("alert")).to_contain_text("'x' is not of type 'integer'")
        anything.get_by_label("Answer, as JSON").fill('{"a": [1]}')
        anything.get_by_role("button", name="Answer").click()
        assert said(gateway, "of-anything")[0] == {"a": [1]}
        expect(page.locator("article.ask")).to_have_count(0)


def test_proposed_arguments_are_changed_and_only_the_changes_are_sent(gateway: RealGateway, browser: Browser) -> None:
    begin(gateway, "edited", args={"count": 40, "to": ["a", "b"]})
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/runs/edited")
        args = page.get_by_label("Proposed arguments")
        yes = page.get_by_role("button", name="Yes")
        args.fill('{"count": 40}')
        yes.click()
        expect(page.locator("article.ask").get_by_role("alert")).to_contain_text("“to” is missing")
        expect(args).to_be_focused()
        args.fill('{"count": 40, "to": ["a"], "more": 1}')
        yes.click()
        expect(page.locator("article.ask").get_by_role("alert")).to_contain_text("no argument is called so")
        args.fill('{"count": 40, "to": ["a"]}')
        with page.expect_request("**/answer") as sent:
            yes.click()
        assert sent.value.post_data_json["args"] == {"to": ["a"]}
        assert said(gateway, "edited")[3] == {"count": 40, "to": ["a"]}
        expect(page.locator("article.ask")).to_contain_text("Answered by")
        expect(page.locator("main .state")).to_have_text("completed")


def test_of_two_pages_the_later_one_is_told_who_was_first(gateway: RealGateway, browser: Browser) -> None:
    begin(gateway, "twice")
    with browser_page(browser) as one, browser_page(browser) as two:
        for page in (one, two):
            page.goto(f"{gateway.url}/#/asks")
            expect(card(page, "twice:1")).to_be_visible()
        two.route("**/api/live", lambda route: route.abort())
        two.reload()
        one.get_by_label("Your name").fill("ada")
        expect(card(two, "twice:1")).to_be_visible()
        card(one, "twice:1").get_by_role("button", name="No").click()
        expect(card(one, "twice:1")).to_have_count(0)
        card(two, "twice:1").get_by_role("button", name="Yes").click()
        expect(card(two, "twice:1").get_by_role("alert")).to_contain_text("was already answered by ada (dashboard)")
        expect(card(two, "twice:1")).to_contain_text("Answered by ada: No")
        card(two, "twice:1").get_by_role("button", name="Take it away").click()
        expect(card(two, "twice:1")).to_have_count(0)


def test_what_is_written_when_somebody_else_answers_is_kept_for_its_writer(
    gateway: RealGateway, browser: Browser
) -> None:
    begin(gateway, "slow", input={"question": "What?", "kind": "text"})
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/asks")
        card(page, "slow:1").get_by_label("Answer").fill("a long th")
        answer(gateway, "slow:1", "short", who="bob")
        expect(card(page, "slow:1").get_by_role("alert")).to_have_text("It was closed while you wrote.")
        expect(card(page, "slow:1")).to_contain_text("Answered by bob: short")


def test_a_question_that_has_changed_is_refused_and_shown_anew(gateway: RealGateway, browser: Browser) -> None:
    begin(gateway, "changing")
    with browser_page(browser) as page:
        with client(gateway) as line:
            [asked] = line.get("/api/asks").json()["asks"]
        older = json.dumps({"asks": [{**asked, "question": "Ship one?", "digest": "older"}]})
        answers: list[str] = []
        page.on("request", lambda request: answers.append(request.url) if request.method == "POST" else None)

        def list_asks(route: Route) -> None:  # the older one until it is answered, however often the page asks
            if answers:
                route.continue_()
            else:
                route.fulfill(content_type="application/json", body=older)

        page.route("**/api/asks?*", list_asks)
        page.goto(f"{gateway.url}/#/asks")
        expect(card(page, "changing:1")).to_contain_text("Ship one?")
        card(page, "changing:1").get_by_role("button", name="Yes").click()
        expect(card(page, "changing:1").get_by_role("alert")).to_contain_text("has changed since it was shown")
        expect(card(page, "changing:1").get_by_role("heading")).to_have_text("Ship?")
        card(page, "changing:1").get_by_role("button", name="Yes").click()
        assert said(gateway, "changing")[0] is True


def test_two_people_are_to_say_the_same_and_the_first_is_seen_meanwhile(gateway: RealGateway, browser: Browser) -> None:
    begin(gateway, "both", people=2)
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/asks")
        page.get_by_label("Your name").fill("ada")
        card(page, "both:1").get_by_role("button", name="Yes").click()
        expect(card(page, "both:1")).to_contain_text("2 different people are to say the same")
        expect(card(page, "both:1").locator("ul")).to_contain_text("ada (dashboard)")
        card(page, "both:1").get_by_role("button", name="Yes").click()
        expect(card(page, "both:1").get_by_role("alert")).to_contain_text("ada has answered so already")
        page.get_by_label("Your name").fill("bob")
        card(page, "both:1").get_by_role("button", name="Yes").click()
        expect(card(page, "both:1")).to_have_count(0)
        assert said(gateway, "both")[1] == "bob"


@pytest.mark.thorough
def test_many_questions_are_listed_by_pages_with_their_count_and_reached_by_keys(
    gateway: RealGateway, browser: Browser
) -> None:
    with client(gateway) as line:
        most = line.get("/api/limits").json()["limits"]["asks_max"]
    names = [f"crowd-{number}" for number in range(1_010 // most + 1)]
    for run_id in names:
        begin(gateway, run_id, kind=CROWD, input=most)
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/asks")
        expect(page.locator("#asks")).to_have_text(f"{len(names) * most:,}")
        expect(page.get_by_text(f"The first 100 of {len(names) * most:,} open questions.")).to_be_visible()
        expect(page.locator("article.ask")).to_have_count(100)
        page.keyboard.press("j")
        page.keyboard.press("j")
        expect(page.locator("article.ask").nth(1)).to_be_focused()
        page.keyboard.press("Tab")
        page.keyboard.press("k")
        expect(page.locator("article.ask").first).to_be_focused()
        for shown in range(200, 1_001, 100):
            page.get_by_role("button", name="More questions").click()
            expect(page.locator("article.ask")).to_have_count(shown)
        expect(page.get_by_role("button", name="More questions")).to_be_hidden()
        expect(page.get_by_text("no more than these are listed")).to_be_visible()
        page.get_by_label("For a group or a person").fill("nobody")
        expect(page.get_by_text("Nothing is asked of these.")).to_be_visible()
    with client(gateway) as line:
        for run_id in names:
            assert line.post(f"/api/runs/{run_id}/cancel", json={}).is_success
        assert line.get("/api/overview").json()["asks"]["open"] == 0


@pytest.mark.thorough
def test_one_who_may_only_look_or_is_not_asked_sees_why_instead_of_buttons(
    guarded: RealGateway, browser: Browser
) -> None:
    begin(guarded, "for-ops", by="a", to="ops", self_answer=True)
    begin(guarded, "for-others", by="a", to=["managers"], self_answer=True)
    with browser_page(browser) as page:
        page.goto(f"{guarded.url}/?token=l#/asks")
        expect(page.locator("article.ask")).to_have_count(2)
        expect(card(page, "for-ops:1")).to_contain_text("lea may only look")
        expect(page.locator("article.ask button")).to_have_count(0)
    with browser_page(browser) as page:
        page.goto(f"{guarded.url}/?token=a#/asks")
        expect(card(page, "for-others:1")).to_contain_text("ada is not asked; managers may answer.")
        expect(card(page, "for-others:1").get_by_role("button")).to_have_count(0)
        expect(page.get_by_label("Your name")).to_be_hidden()
        card(page, "for-ops:1").get_by_role("button", name="Yes").click()
        expect(page.get_by_role("status").filter(has_text="for-ops:1 is answered")).to_be_visible()


def test_a_chat_shows_the_call_that_waits_for_approval_and_goes_on_when_it_is_answered(
    tmp_path: Path, browser: Browser
) -> None:
    agent, setup = "tests.actors.chat.test_people_waited_for:Asker", {"setup": "tests.gateway.cast:script_of_asker"}
    with real_gateway(tmp_path, [agent], **setup) as gateway, browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/agents/{quote(f'default@{agent}', safe='')}")
        page.get_by_label("Message").fill("risk")
        page.get_by_role("button", name="Send").click()
        expect(page.locator("article.ask")).to_contain_text("approval of a call")
        expect(page.locator("article.ask")).to_contain_text("risky")
        expect(page.locator("#asks")).to_have_text("1")
        page.locator("article.ask").get_by_role("button", name="Yes").click()
        expect(page.locator("article.ask")).to_have_count(0)
        expect(page.locator(".call .chip")).to_have_text("output-available")
