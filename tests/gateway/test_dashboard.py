"""The dashboard in a real browser: it shows what happens at once, and stays whole when the gateway is killed and the page reloaded."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from perdure.scenarios.bench.browser import chromium
from tests.gateway.browser import PATIENCE_MS, browser_page
from tests.gateway.real import RealGateway, client, real_gateway

GATED = "tests.gateway.cast:Gated"
BOOKER = "tests.gateway.cast:Booker"
AGENTS = [GATED, BOOKER, "tests.gateway.cast:Talker"]

expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    setup = {"setup": "tests.gateway.cast:script", "setup_options": {"between_ms": 20}}
    with real_gateway(tmp_path_factory.mktemp("dashboard"), AGENTS, **setup) as started:
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as started:
        yield started


def begin(gateway: RealGateway, run_id: str, gate: Path, type_name: str = GATED) -> None:
    """Start a run that waits for a file."""
    with client(gateway) as asked:
        told = asked.post("/api/runs", json={"type": type_name, "input": str(gate), "run_id": run_id})
        assert told.is_success, told.text


def row(page: Page, run_id: str) -> Locator:
    """The first row of a run in the list."""
    return page.locator(f'a.row[href="#/runs/{run_id}"]').first


def notes(page: Page) -> list[str]:
    """The timeline of a run, without its times, as it is at one moment."""
    read = "items => items.map(each => [each.textContent, each.querySelector(':scope > time').textContent])"
    told: list[list[str]] = page.locator("ol.timeline > li").evaluate_all(read)
    return [item.removeprefix(time) for item, time in told]


def test_a_run_is_shown_from_its_beginning_to_its_end_and_by_keys_alone(
    gateway: RealGateway, browser: Browser, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    begin(gateway, "shown", gate)
    with browser_page(browser) as page:
        page.goto(gateway.url)
        expect(page.locator("#line")).to_have_class("up")
        expect(row(page, "shown").locator(".state")).to_have_text("running")
        expect(row(page, "shown").locator("progress")).to_be_visible()
        page.keyboard.press("j")
        expect(row(page, "shown")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("h1")).to_contain_text("Gated")
        gate.touch()
        expect(page.locator("main .state")).to_have_text("completed")
        expect(page.locator("pre").filter(has_text="there")).to_be_visible()
        expect(page.locator("ol.timeline > li").last).to_contain_text("completed")
        assert notes(page) == ["requested", "completed"]
        page.get_by_role("button", name="Explain").click()
        expect(page.get_by_label("Explanation")).to_contain_text("shown")
        page.keyboard.press("u")
        expect(row(page, "shown").locator(".state")).to_have_text("completed")


def test_the_page_goes_on_after_the_gateway_was_killed_and_tells_nothing_twice(
    gateway: RealGateway, browser: Browser, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    begin(gateway, "long", gate)
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/runs/long")
        expect(page.locator("progress")).to_be_visible()
        gateway.kill()
        expect(page.locator("#line")).to_have_class("down")
        gateway.start()
        expect(page.locator("#line")).to_have_class("up")
        gate.touch()
        expect(page.locator("main .state")).to_have_text("completed")
        expect(page.locator("ol.timeline > li").last).to_contain_text("completed")
        told = notes(page)
        assert told[0] == "requested"
        assert told[-1] == "completed"
        assert len(told) == len(set(told))
        assert any("attempt" in each for each in told), told
        page.reload()
        expect(page.locator("ol.timeline > li")).to_have_count(len(told))
        assert notes(page) == told


def test_a_run_is_cancelled_and_found_in_the_history_by_its_status(
    gateway: RealGateway, browser: Browser, tmp_path: Path
) -> None:
    begin(gateway, "unwanted", tmp_path / "never")
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/runs/unwanted")
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Leave it").click()
        expect(page.locator("dialog.asks")).to_have_count(0)
        expect(page.locator("main .state")).to_have_text("running")
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_contain_text("This run is aborted for good")
        page.get_by_role("button", name="Cancel it").click()
        expect(page.locator("main .state")).to_have_text("aborted")
        expect(page.get_by_role("status").filter(has_text="The run is aborted.")).to_have_class("notice good")
        expect(page.get_by_role("button", name="Cancel")).to_be_disabled()
        page.goto(f"{gateway.url}/#/runs")
        page.get_by_label("Status", exact=True).select_option("aborted")
        expect(row(page, "unwanted")).to_be_visible()
        page.get_by_label("Status", exact=True).select_option("completed")
        expect(row(page, "unwanted")).to_have_count(0)
        page.get_by_label("Status", exact=True).select_option("")
        page.get_by_label("Agent type or run id").fill("unwant")
        expect(row(page, "unwanted")).to_be_visible()


def test_a_run_whose_steps_are_undone_is_shown_as_such_until_it_has_ended(
    gateway: RealGateway, browser: Browser, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    begin(gateway, "booked", gate, BOOKER)
    with browser_page(browser) as page, browser_page(browser) as listed:
        page.goto(f"{gateway.url}/#/runs/booked")
        listed.goto(f"{gateway.url}/#/runs")
        expect(row(listed, "booked").locator(".state")).to_have_text("running")
        with client(gateway) as asked:
            while not any(
                "undone if the run fails" in each for each in asked.get("/api/runs/booked/explain").json()["lines"]
            ):
                page.wait_for_timeout(50)
        page.get_by_role("button", name="Cancel").click()
        page.get_by_role("button", name="Cancel it").click()
        told = page.get_by_role("status").filter(has_text="The run is aborted when its steps are undone.")
        expect(told).to_have_class("notice good")
        expect(page.locator("main .state")).to_have_text("undoing")
        expect(row(listed, "booked").locator(".state")).to_have_text("undoing")
        expect(row(listed, "booked").locator(".said")).to_have_text("cancelled by an operator")
        gate.touch()
        expect(page.locator("main .state")).to_have_text("aborted")
        expect(row(listed, "booked").locator(".state")).to_have_text("aborted")


def test_the_runs_that_are_listed_are_steered_together_with_their_count_in_the_question(
    gateway: RealGateway, browser: Browser, tmp_path: Path
) -> None:
    for number in range(3):
        begin(gateway, f"bundle-{number}", tmp_path / "never")
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/runs")
        page.get_by_label("Agent type or run id").fill("bundle-")
        expect(page.get_by_role("button", name="Cancel all")).to_be_disabled()
        page.get_by_label("Status", exact=True).select_option("running")
        expect(page.get_by_role("button", name="Try all again")).to_be_disabled()
        page.get_by_role("button", name="Cancel all").click()
        expect(page.get_by_role("dialog")).to_contain_text("3 runs would be cancelled: bundle-2, bundle-1, bundle-0.")
        page.get_by_role("button", name="Leave it").click()
        expect(page.locator("dialog.asks")).to_have_count(0)
        expect(page.locator("p.notice:visible")).to_have_count(0)
        page.get_by_role("button", name="Cancel all").click()
        page.get_by_role("dialog").get_by_role("button", name="Cancel all").click()
        expect(page.get_by_role("status").filter(has_text="3 runs were cancelled.")).to_have_class("notice good")
        page.get_by_role("button", name="Cancel all").click()
        expect(page.get_by_role("status").filter(has_text="There is no run that would be cancelled.")).to_be_visible()
        page.get_by_label("Status", exact=True).select_option("")
        expect(row(page, "bundle-1").locator(".state")).to_have_text("aborted")
        page.get_by_role("button", name="Clear all").click()
        page.get_by_role("dialog").get_by_role("button", name="Clear all").click()
        expect(page.get_by_role("status").filter(has_text="3 runs were cleared.")).to_be_visible()
        expect(row(page, "bundle-1")).to_have_count(0)


def test_a_run_is_cleared_when_that_is_meant_and_a_success_is_told_as_one(
    gateway: RealGateway, browser: Browser, tmp_path: Path
) -> None:
    begin(gateway, "spoilt", tmp_path / "never")
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/runs/spoilt")
        page.get_by_role("button", name="Clear").click()
        asked = page.get_by_role("dialog")
        expect(asked).to_contain_text("This run and its child's storage are deleted for good")
        expect(asked).to_contain_text("1 run of these is live and aborted first")
        page.keyboard.press("u")
        expect(asked).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("main .state")).to_have_text("running")
        page.get_by_role("button", name="Clear").click()
        page.get_by_role("button", name="Clear it").click()
        expect(page.get_by_role("status").filter(has_text="The run was cleared.")).to_have_class("notice good")
        expect(page.get_by_role("alert")).to_have_count(0)
        expect(page.get_by_role("button", name="Clear")).to_be_disabled()
        page.reload()
        expect(page.get_by_role("alert")).to_contain_text("spoilt")


def test_a_process_is_killed_when_that_is_meant(tmp_path: Path, browser: Browser) -> None:
    """What is struck really is told elsewhere (`test_kill`): here all processes are one."""
    options = {"options": {"allows_kill": True}, "hooks": {"striker": "tests.gateway.cast:strike_nobody"}}
    with real_gateway(tmp_path, [GATED], **options) as gateway, browser_page(browser) as page:
        begin(gateway, "struck", tmp_path / "never")
        page.goto(f"{gateway.url}/#/hosts")
        kill = page.get_by_role("button", name="Kill").nth(1)
        kill.click()
        expect(page.get_by_role("dialog")).to_contain_text("is ended at once, with")
        page.get_by_role("button", name="Leave it").click()
        expect(page.locator("p.notice")).to_be_hidden()
        kill.click()
        page.get_by_role("button", name="Kill it").click()
        expect(page.get_by_role("status").filter(has_text="was ended by SIGKILL")).to_have_class("notice good")


def test_an_interrupted_run_is_counted_as_such_and_not_as_live(
    gateway: RealGateway, browser: Browser, tmp_path: Path
) -> None:
    with client(gateway) as asked:
        counts = asked.get("/api/overview").json()["runs"]
    told = {"runs": {**counts, "starting": 1, "running": 2, "interrupted": 4}, "live": [], "hosts": [], "agents": []}
    with browser_page(browser) as page:
        stream = f"id: 1\nevent: overview\ndata: {json.dumps(told)}\n\n"
        page.route("**/api/live", lambda route: route.fulfill(content_type="text/event-stream", body=stream))
        page.goto(gateway.url)
        expect(page.locator("#counts div").nth(0)).to_have_text("live3")
        expect(page.locator("#counts div").nth(1)).to_have_text("interrupted4")


def test_a_run_that_does_not_exist_is_told_so(gateway: RealGateway, browser: Browser) -> None:
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/runs/nobody")
        expect(page.get_by_role("alert")).to_contain_text(re.compile("nobody"))


def test_someone_talks_to_a_chat_agent_and_finds_the_conversation_again(gateway: RealGateway, browser: Browser) -> None:
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/agents")
        page.get_by_role("link", name="talker").click()
        page.get_by_label("Message").fill("sum")
        page.get_by_role("button", name="Send").click()
        expect(page.get_by_role("log")).to_contain_text("That is all.")
        expect(page.locator(".message")).to_have_count(2)
        page.reload()
        expect(page.locator(".message")).to_have_count(2)
        expect(page.get_by_role("log")).to_contain_text("That is all.")


def test_the_figures_tell_how_long_a_commit_takes(gateway: RealGateway, browser: Browser, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    with browser_page(browser) as page:
        page.goto(f"{gateway.url}/#/figures")
        expect(page.locator("#line")).to_have_class("up")
        commit = page.locator("figure", has_text="a commit takes").locator("b")
        expect(commit).to_have_text("–")
        begin(gateway, "measured", gate)
        expect(commit).to_have_text(re.compile(r"^[\d.,]+ ms · most [\d.,]+$"))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_has_a_heading_and_fits_on_a_narrow_screen(
    gateway: RealGateway, browser: Browser, scheme: Any
) -> None:
    with browser_page(browser, color_scheme=scheme, viewport={"width": 360, "height": 700}) as page:
        for name in ("runs", "asks", "agents", "hosts", "figures"):
            page.goto(f"{gateway.url}/#/{name}")
            expect(page.locator("h1")).to_contain_text(name.title())
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
            cells = "[...document.querySelectorAll('thead th')].map((each) => each.getBoundingClientRect().height)"
            assert max(page.evaluate(cells), default=0) < 60, "no word of a heading is broken"
            unnamed = page.evaluate(
                "[...document.querySelectorAll('button, input, select, a')].filter((each) => "
                "!(each.textContent.trim() || each.ariaLabel || each.labels?.length)).map((each) => each.outerHTML)"
            )
            assert unnamed == []


def test_the_files_of_the_page_are_given_to_everybody_and_are_asked_for_again_cheaply(gateway: RealGateway) -> None:
    with client(gateway) as asked:
        first = asked.get("/")
        assert first.headers["content-security-policy"].startswith("default-src 'none'")
        assert asked.get("/", headers={"if-none-match": first.headers["etag"]}).status_code == 304
        assert asked.get("/dashboard/nothing.js").status_code == 404
        assert asked.get("/dashboard/..%2fpage.py").status_code == 404


def test_the_wheel_of_the_dashboard_has_all_files() -> None:
    folder = Path(__file__).resolve().parents[2] / "actors/dashboard/assets"
    named = set(re.findall(r'"\./([\w.]+)"', "\n".join(each.read_text() for each in folder.glob("*.js"))))
    assert named <= {each.name for each in folder.iterdir()}


@pytest.mark.thorough
def test_what_the_first_view_needs_is_asked_for_at_once() -> None:
    folder = Path(__file__).resolve().parents[2] / "actors/dashboard/assets"
    needed, found = ["main.js", "runs.js"], set[str]()
    while needed:
        name = needed.pop()
        found.add(name)
        named = re.findall(r'^import .* from "\./([\w.]+)";$', (folder / name).read_text(), re.MULTILINE)
        needed += [each for each in named if each not in found]
    told = re.findall(r'<link rel="modulepreload" href="dashboard/([\w.]+)">', (folder / "index.html").read_text())
    assert sorted(told) == sorted(found)
