"""The web page in headless Chromium: what a person does with it, and that it asks nobody but its server."""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import httpx
import pytest
from playwright.sync_api import Page, expect, sync_playwright

from strixhlo.bundle import Bundle

from .conftest import start, stop

SECONDS = 120_000  # milliseconds, for a machine that is busy with other tests
expect.set_options(timeout=SECONDS)
# Every state of the answer that the page shows while its Stop button is there.
WATCH = """() => {
  window.shown = [];
  new MutationObserver(() => {
    const body = document.querySelector(".message.assistant .body");
    if (body && document.getElementById("send").hidden) shown.push(body.innerText);
  }).observe(document.getElementById("messages"), { childList: true, subtree: true });
}"""
# Presses Stop as soon as that answer has a word: from out here it may come too late.
STOP_AT_ONCE = """(number) => {
  new MutationObserver((_, self) => {
    const body = document.querySelectorAll(".message.assistant .body")[number];
    if (body && body.innerText.trim()) { self.disconnect(); document.getElementById("stop").click(); }
  }).observe(document.getElementById("messages"), { childList: true, subtree: true });
}"""


@dataclass
class Opened:
    """The page, its server's address, and what the browser asked for and complained of."""

    page: Page
    url: str
    asked: list[str] = field(default_factory=list)
    bodies: list[dict] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def send(self, text: str) -> None:
        self.page.get_by_label("Message", exact=True).fill(text)
        self.page.get_by_role("button", name="Send").click()

    def answers(self) -> list[str]:
        return self.page.locator(".message.assistant .body").all_inner_texts()


@pytest.fixture(scope="module")
def opened(smollm2: Callable[[str], Bundle], tiny: Bundle) -> Iterator[Opened]:
    """Two models behind one server, and a browser that has loaded its page."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert chromium, "Chromium is not installed: apt-get install chromium"
    process, url = start(str(smollm2("int8").path), str(tiny.path), "--webui")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"], timeout=SECONDS)
            found = Opened(browser.new_page(), url)
            found.page.set_default_timeout(SECONDS)
            found.page.on("request", lambda request: found.asked.append(request.url))
            found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
            found.page.on(
                "request", lambda r: found.bodies.append(json.loads(r.post_data)) if r.method == "POST" else None
            )
            found.page.goto(url)
            yield found
            browser.close()
    finally:
        stop(process)


def test_a_message_is_answered_in_a_stream(opened: Opened) -> None:
    page = opened.page
    expect(page.get_by_label("Model").locator("option")).to_have_count(2)
    page.get_by_label("Temperature").fill("0")
    page.get_by_label("Max tokens").fill("120")
    page.evaluate(WATCH)
    opened.send("What is gravity?")
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    seen = page.evaluate("shown")  # while it could be stopped
    seen.append(page.locator(".message.assistant .body").inner_text())
    assert len(set(seen)) > 3 and all(b.startswith(a.strip()[:20]) for a, b in pairwise(seen))
    assert "gravity" in seen[-1].lower()
    assert page.locator(".message.user").inner_text() == "What is gravity?"
    expect(page.locator("#speed")).to_have_text(re.compile(r"\d+ tokens at [\d.]+ tokens/s, first after [\d.]+ s"))
    used = re.fullmatch(r"context (\d+) of 1024 tokens", page.locator("#context").inner_text())
    assert used and int(used[1]) > 70
    assert opened.bodies[-1]["temperature"] == 0 and opened.bodies[-1]["max_tokens"] == 120


def test_stop_ends_it_here_and_on_the_server(opened: Opened) -> None:
    page = opened.page
    page.get_by_label("Max tokens").fill("800")
    before = len(opened.answers())
    page.evaluate(STOP_AT_ONCE, before)
    opened.send("Count to a thousand.")
    expect(page.locator(".message.assistant .body").nth(before)).to_have_text(re.compile(r"\w"))
    expect(page.get_by_role("button", name="Send")).to_be_visible()
    deadline = time.monotonic() + 60
    while httpx.get(f"{opened.url}/slots").json()[0]["running"] and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not httpx.get(f"{opened.url}/slots").json()[0]["running"]
    kept = opened.answers()[before]
    time.sleep(0.3)
    assert opened.answers()[before] == kept != ""
    assert len(opened.bodies[-1]["messages"]) == 3  # the conversation so far goes along
    used = re.fullmatch(r"context (\d+) of 1024 tokens", page.locator("#context").inner_text())
    assert used and 100 < int(used[1]) < 1024


def test_model_and_settings_go_with_the_request(opened: Opened, tiny: Bundle) -> None:
    page = opened.page
    page.get_by_role("button", name="New chat").click()
    expect(page.locator(".message")).to_have_count(0)
    wanted = {"temperature": 0.5, "top_p": 0.8, "top_k": 7, "min_p": 0.1, "max_tokens": 3, "seed": 11}
    for name, value in wanted.items():
        page.locator(f"#{name}").fill(str(value))
    page.get_by_label("System message").fill("Be brief.")
    page.get_by_label("Model").select_option(tiny.manifest.name)
    expect(page.locator("#context")).to_have_text("context 0 of 256 tokens")
    opened.send("w1 w2")
    expect(page.locator(".message.error")).to_have_text(re.compile("chat template"))
    sent = opened.bodies[-1]
    assert sent["model"] == tiny.manifest.name and {name: sent[name] for name in wanted} == wanted
    assert sent["messages"] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "w1 w2"}]
    page.get_by_label("Model").select_option(index=0)
    opened.send("Hi")
    expect(page.locator("#speed")).to_have_text(re.compile("^3 tokens at"))
    assert opened.bodies[-1]["model"] != tiny.manifest.name


def test_nobody_else_is_asked(opened: Opened) -> None:
    """Everything that the browser loaded here and in the tests above came from the server itself."""
    opened.page.locator("#max_tokens").fill("3")
    opened.send("Hi")
    expect(opened.page.locator("#speed")).to_have_text(re.compile("^3 tokens at"))
    assert f"{opened.url}/page.js" in opened.asked and f"{opened.url}/v1/chat/completions" in opened.asked
    elsewhere = [url for url in opened.asked if not url.startswith((f"{opened.url}/", "data:"))]
    assert not elsewhere and not opened.complaints
