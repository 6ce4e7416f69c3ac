"""Two real Chromium pages chat through a channel, with the files and commands of the example."""

from __future__ import annotations

import functools
import http.server
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.conftest import Guarded
from tests.helpers.processes import station_process

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "browser-chat"
SOON_MS = 20_000


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """The example's folder, served as its README says."""
    handler = functools.partial(_Quiet, directory=str(EXAMPLE))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://localhost:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


TALK = """
([url, offered]) => new Promise((resolve) => {
  const socket = new WebSocket(url, offered);
  socket.onopen = () =>
    socket.send(JSON.stringify({ type: "publish", messageID: "m1", content: { n: 1 } }));
  socket.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    if (frame.type === "message") resolve([socket.protocol, frame.content]);
  };
  socket.onerror = () => resolve("refused");
})
"""


def test_a_page_talks_over_a_websocket_with_its_key(
    browser: Browser, origin: str, guarded: Guarded, channel: str
) -> None:
    page = browser.new_page()
    page.goto(origin)
    url = f"{guarded.url.replace('http', 'ws', 1)}/v1/channels/{channel}/subscribers/me/socket"

    told = page.evaluate(
        TALK, [url + "?create=true", ["waystation", f"bearer.{guarded.keys.write}"]]
    )
    refused = page.evaluate(TALK, [url + "?create=true", ["waystation", "bearer.x"]])

    page.close()
    assert told == ["waystation", {"n": 1}]
    assert refused == "refused"


def test_a_page_of_another_site_opens_no_websocket_on_a_station_without_keys(
    browser: Browser, origin: str, open_url: str, channel: str
) -> None:
    url = f"{open_url.replace('http', 'ws', 1)}/v1/channels/{channel}/subscribers/me/socket"
    page = browser.new_page()
    page.goto(origin)
    assert page.evaluate(TALK, [url + "?create=true", []]) == ["", {"n": 1}]
    # A document without an origin of its own, as a page of any other site has another.
    page.goto("data:text/html,<title>elsewhere</title>")

    assert page.evaluate(TALK, [url, []]) == "refused"
    page.close()


def enter(browser: Browser, origin: str, station: str, name: str) -> Page:
    # A context of its own, as on another machine.
    page = browser.new_context(viewport={"width": 520, "height": 640}).new_page()
    page.goto(f"{origin}/?station={station}&name={name}")
    expect(page.locator("#state")).to_have_text("online", timeout=SOON_MS)
    return page


def say(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def said(page: Page) -> list[str]:
    return page.locator("#messages li:not(.sending) p").all_text_contents()


def expect_said(page: Page, texts: list[str]) -> None:
    """Exactly these, in this order: nothing lost, nothing twice."""
    expect(page.locator("#messages li:not(.sending) p")).to_have_text(texts, timeout=SOON_MS)
    expect(page.locator("#messages li.sending")).to_have_count(0, timeout=SOON_MS)


def test_two_pages_chat_over_restarts_of_the_station_and_nothing_is_lost_or_doubled(
    browser: Browser, origin: str, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    with station_process(data) as station:
        url, port = station.url, station.url.rpartition(":")[2]
        ada = enter(browser, origin, url, "Ada")
        grace = enter(browser, origin, url, "Grace")
        talk = ["Is the engine running?", "It is. Shall I stop it?", "Please do.", "Stopping…"]
        for number, text in enumerate(talk):
            say(grace if number % 2 else ada, text)
            expect_said(ada, talk[: number + 1])
            expect_said(grace, talk[: number + 1])
        station.signal(signal.SIGKILL)
    for page in (ada, grace):
        expect(page.locator("#state")).to_have_text("reconnecting", timeout=SOON_MS)
    say(ada, "I say this to nobody.")
    ada.reload()
    expect(ada.locator("#messages li.sending")).to_have_count(1)
    assert said(grace) == talk

    with station_process(data, "--insecure", "--port", port):
        talk.append("I say this to nobody.")
        expect_said(ada, talk)
        expect_said(grace, talk)
        say(grace, "And yet I heard it, once.")
        talk.append("And yet I heard it, once.")
        expect_said(ada, talk)
        # A reload forgets nothing, and gets what is said from then on.
        ada.reload()
        expect_said(ada, talk)
        say(grace, "Welcome back. <b>😀</b>")
        talk.append("Welcome back. <b>😀</b>")
        expect_said(ada, talk)
        expect_said(grace, talk)
        if folder := os.environ.get("SCREENSHOTS"):
            ada.screenshot(path=f"{folder}/chat-ada.png")
            grace.screenshot(path=f"{folder}/chat-grace.png")
    for page in (ada, grace):
        page.context.close()
