"""In a real Chromium: a page of another origin uses a channel, and the reference renders."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.api.conftest import Guarded

pytestmark = pytest.mark.slow

TALK = """
async ([url, key, channel]) => {
  const headers = key ? { authorization: `Bearer ${key}` } : {};
  const subscription = `${url}/channel/${channel}/subscription/polling/page`;
  await fetch(subscription, { method: "PUT", headers });
  const poll = fetch(`${subscription}?timeout=10s`, { headers });
  const message = `${url}/channel/${channel}/message/m1`;
  await fetch(message, { method: "PUT", headers, body: '{"n": 1.0}' });
  const reply = await poll;
  const { messages, ackHandle } = await reply.json();
  const handle = `${subscription}/message?ackHandle=${ackHandle}`;
  const ack = await fetch(handle, { method: "DELETE", headers });
  return { messages, ack: ack.status, durability: reply.headers.get("waystation-durability") };
}
"""


class _Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>a page of another origin</title>")

    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def origin() -> Iterator[str]:
    """Another loopback origin than the station's."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_page_publishes_and_long_polls_across_origins_with_its_key(
    browser: Browser, origin: str, guarded: Guarded, channel: str
) -> None:
    page = browser.new_page()
    page.goto(origin)

    told = page.evaluate(TALK, [guarded.url, guarded.keys.write, channel])

    page.close()
    assert told == {
        "messages": [{"messageID": "m1", "content": {"n": 1}}],
        "ack": 204,
        "durability": "memory",
    }


def test_without_keys_a_page_of_this_machine_may_and_another_may_not(
    browser: Browser, origin: str, open_url: str, channel: str
) -> None:
    page = browser.new_page()
    page.goto(origin)
    assert page.evaluate(TALK, [open_url, "", channel])["ack"] == 204
    # A document without an origin of its own, as a page of any other site has another.
    page.goto("data:text/html,<title>elsewhere</title>")

    with pytest.raises(Exception, match="Failed to fetch"):
        page.evaluate(TALK, [open_url, "", channel])
    page.close()


def test_the_reference_renders_without_a_complaint(browser: Browser, open_url: str) -> None:
    page = browser.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))

    page.goto(open_url + "/reference")
    page.get_by_text("Publish a message").click()

    assert page.get_by_text("/channel/{channelID}/message/{messageID}").is_visible()
    assert page.get_by_text("Id for deduplication.").is_visible()
    assert page.locator("details").count() >= 15
    assert not [each for each in complaints if "favicon" not in each]
    page.close()
