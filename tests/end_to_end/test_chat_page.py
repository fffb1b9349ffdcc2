"""The chat page in a real browser, against a scripted server where each word comes when the test says, and the node."""

import re
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from protocol.wire import Cancel, Credit, Draining, Failed
from tests.end_to_end.page_server import PageServer
from tests.end_to_end.running_node import RunningNode

CHROMIUM = shutil.which("chromium")
OPTIONS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
expect.set_options(timeout=20_000)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="Debian's chromium is not installed"),
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser) -> AsyncIterator[Page]:
    """A fresh page; whatever it logs as an error, a breach of its policy too, fails the test."""
    problems: list[str] = []
    page = await browser.new_page(viewport={"width": 1280, "height": 800})
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
    yield page
    await page.close()
    assert not [problem for problem in problems if "WebSocket" not in problem]


@pytest_asyncio.fixture(loop_scope="module")
async def server() -> AsyncIterator[PageServer]:
    async with PageServer(key=None, max_model_len=2048).running() as server:
        yield server


async def ask(page: Page, text: str) -> None:
    await expect(page.get_by_role("status")).to_have_text("Ready")
    await page.get_by_label("Your message").fill(text)
    await page.keyboard.press("Enter")


async def test_an_answer_appears_word_by_word(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await ask(page, "Hello?")
    question = await server.next_question()
    assert question.turns == [("user", "Hello?")]
    answer = page.get_by_label("Assistant")
    await question.write("Good")
    await expect(answer.locator(".text")).to_have_text("Good")
    await expect(answer).to_have_attribute("aria-busy", "true")
    await question.write(" morning", count=2)
    await expect(answer.locator(".text")).to_have_text("Good morning")
    await question.end()
    await expect(answer).to_have_attribute("aria-busy", "false")
    await expect(answer.locator(".stats")).to_have_text(
        re.compile(r"^3 tokens · 40\.0 tokens/s · first after [\d.]+ m?s$")
    )
    await ask(page, "And now?")
    question = await server.next_question()
    assert question.turns == [("user", "Hello?"), ("assistant", "Good morning"), ("user", "And now?")]


@pytest.mark.parametrize("how", ["button", "escape"])
async def test_a_stopped_answer_keeps_its_text_and_another_can_be_asked(
    page: Page, server: PageServer, how: str
) -> None:
    await page.goto(server.url)
    await ask(page, "Count")
    question = await server.next_question()
    await question.write("one two")
    await expect(page.get_by_text("one two")).to_be_visible()
    if how == "button":
        await page.get_by_label("Stop").click()
    else:
        await page.keyboard.press("Escape")
    assert await server.commands.get() == Cancel(id=question.command.id)
    await question.end("cancelled")
    await expect(page.locator(".stats")).to_have_text(re.compile("stopped$"))
    await ask(page, "Again")
    assert (await server.next_question()).turns[1:] == [("assistant", "one two"), ("user", "Again")]


async def test_code_is_set_apart_and_no_answer_is_ever_markup(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await ask(page, "<img src=x onerror=alert(1)>")
    question = await server.next_question()
    await question.write("**See** `x<y`:\n\n```html\n<script>alert(1)</script>\n")
    await expect(page.locator(".code pre")).to_have_text("<script>alert(1)</script>")
    await question.write("<b>```\n  bold\n```\ndone <i>it</i>")
    await expect(page.locator(".code pre")).to_have_text("<script>alert(1)</script>\n<b>```\n  bold")
    await expect(page.get_by_label("Assistant").locator(".text p").last).to_have_text("done <i>it</i>")
    await expect(page.locator("strong")).to_have_text("See")
    assert await page.locator("main img, main script, main b, main i").count() == 0


async def test_settings_are_sent_kept_and_checked(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("System prompt").fill("Be brief.")
    await page.get_by_label("Temperature").fill("3")
    await page.get_by_role("button", name="Save").click()
    await expect(page.get_by_role("dialog")).to_be_visible()
    await page.get_by_label("Temperature").fill("0.5")
    await page.get_by_label("Top-p").fill("0.9")
    await page.get_by_label("Max tokens").fill("64")
    await page.get_by_label("Seed").fill("7")
    await page.get_by_role("button", name="Save").click()
    await page.reload()
    await ask(page, "Hi")
    command = (await server.next_question()).command
    assert (command.temperature, command.top_p, command.max_tokens, command.seed) == (0.5, 0.9, 64, 7)
    assert command.messages is not None
    assert (command.messages[0].role, command.messages[0].content) == ("system", "Be brief.")


async def test_a_new_line_is_typed_with_shift_and_sent_as_it_is(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await page.get_by_label("Your message").fill("one")
    await page.keyboard.press("Shift+Enter")
    await page.keyboard.type("two")
    await page.keyboard.press("Enter")
    assert (await server.next_question()).turns == [("user", "one\ntwo")]


async def test_a_new_chat_forgets_the_old_one(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await ask(page, "First")
    await (await server.next_question()).write("text")
    await page.get_by_label("New chat").click()
    assert isinstance(await server.commands.get(), Cancel)
    await expect(page.get_by_role("article")).to_have_count(0)
    await ask(page, "Second")
    assert (await server.next_question()).turns == [("user", "Second")]


async def test_a_long_answer_is_granted_credit_before_it_runs_out(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await ask(page, "Long")
    question = await server.next_question()
    await question.write("x", count=1000)
    await question.write("y", count=1000)
    assert await server.commands.get() == Credit(id=question.command.id, tokens=2000)


async def test_a_refusal_is_shown_and_can_be_tried_again(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await ask(page, "Hi")
    busy = Failed(code="overloaded", message="1,024 requests are waiting, which is the limit", retry_after_ms=1500)
    await (await server.next_question()).fail(busy)
    problem = "1,024 requests are waiting, which is the limit (try again in 2 s)"
    await expect(page.get_by_role("alert")).to_have_text(problem)
    await page.get_by_role("button", name="Try again").click()
    question = await server.next_question()
    assert question.turns == [("user", "Hi")]
    await expect(page.get_by_role("alert")).to_have_count(0)
    await question.write("ok")
    await expect(page.get_by_text("ok", exact=True)).to_be_visible()


async def test_the_oldest_turns_are_left_out_of_a_conversation_that_grew_too_long(
    page: Page, server: PageServer
) -> None:
    await page.goto(server.url)
    for text in ("first", "second"):
        await ask(page, text)
        question = await server.next_question()
        await question.write("answer")
        await question.end()
        await expect(page.get_by_role("button", name="Try again").last).to_be_visible()
    await ask(page, "third")
    too_long = Failed(code="context_length_exceeded", message="prompt has 3,000 tokens; limit is 2,048")
    await (await server.next_question()).fail(too_long)
    question = await server.next_question()
    assert question.turns == [("user", "second"), ("assistant", "answer"), ("user", "third")]
    await expect(page.get_by_text("oldest turns are left out")).to_be_visible()
    await question.fail(too_long)
    last = await server.next_question()
    assert last.turns == [("user", "third")]
    await last.fail(too_long)
    await expect(page.get_by_role("alert").last).to_have_text(too_long.message)


async def test_a_conversation_near_the_limit_is_shortened_before_it_is_sent(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await ask(page, "x" * 4000)
    question = await server.next_question()
    await question.write("answer")
    await question.fail(Failed(code="internal", message="a worker died"))
    await ask(page, "y" * 4000)
    assert (await server.next_question()).turns == [("user", "y" * 4000)]


async def test_a_lost_connection_is_told_and_made_anew(page: Page, server: PageServer) -> None:
    await page.goto(server.url)
    await ask(page, "Hi")
    await (await server.next_question()).write("half an ans")
    await expect(page.get_by_text("half an ans")).to_be_visible()
    await server.say(Draining(deadline_ms=10))
    await expect(page.get_by_role("status")).to_have_text("Server is shutting down")
    assert server.socket is not None
    await server.socket.close(1001)
    await expect(page.get_by_role("alert")).to_have_text("The connection was lost before the answer was complete.")
    await expect(page.get_by_role("status")).to_have_text("Ready")
    await page.get_by_role("button", name="Try again").click()
    assert (await server.next_question()).turns == [("user", "Hi")]


async def test_a_key_is_asked_for_until_it_is_right_and_kept_for_the_tab(page: Page) -> None:
    async with PageServer(key="opensesame", max_model_len=2048).running() as server:
        await page.goto(server.url)
        for key in ("wrong", "opensesame"):
            await page.get_by_label("API key").fill(key)
            await page.keyboard.press("Enter")
            expected = "Ready" if key == "opensesame" else "Key needed"
            await expect(page.get_by_role("status")).to_have_text(expected)
        await page.reload()
        await expect(page.get_by_role("status")).to_have_text("Ready")
        await ask(page, "Hi")
        assert (await server.next_question()).turns == [("user", "Hi")]


@pytest.mark.parametrize(("width", "height"), [(390, 844), (320, 568), (1280, 800)])
async def test_the_page_fits_its_screen_with_controls_large_enough_to_touch(
    browser: Browser, server: PageServer, width: int, height: int
) -> None:
    page = await browser.new_page(viewport={"width": width, "height": height})
    await page.goto(server.url)
    await ask(page, "word " * 200 + "x" * 300)
    question = await server.next_question()
    await question.write("```\n" + "long line " * 60 + "\n```\n" + "y" * 300)
    await expect(page.locator(".code pre")).to_be_visible()
    assert await page.evaluate("document.documentElement.scrollWidth") == width
    for label in ("Stop", "Settings", "New chat"):
        box = await page.get_by_role("button", name=label).bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 44
        assert box["x"] + box["width"] <= width
    await page.close()


async def test_the_real_model_answers_is_stopped_and_answers_again(
    page: Page, demo_node: RunningNode, tmp_path: Path
) -> None:
    await page.goto(demo_node.http_url)
    await expect(page.get_by_role("status")).to_have_text("Ready")
    await page.get_by_role("button", name="Settings").click()
    await page.get_by_label("Temperature").fill("0")
    await page.get_by_role("button", name="Save").click()
    await ask(page, "Write a long story about a fox.")
    text = page.get_by_label("Assistant").first.locator(".text")
    await expect(text).to_have_text(re.compile(r"\w+ \w+"))
    early = await text.inner_text()
    await expect(text).not_to_have_text(early)
    later = await text.inner_text()
    assert later.startswith(early.rstrip())
    await page.get_by_label("Stop").click()
    await expect(page.locator(".stats").first).to_have_text(re.compile(r"tokens/s · first after .* · stopped$"))
    await ask(page, "What is the capital of France?")
    answer = page.get_by_label("Assistant").nth(1)
    await expect(answer).to_have_attribute("aria-busy", "false", timeout=60_000)
    await expect(answer.locator(".text")).to_have_text(re.compile("Paris"))
    await page.screenshot(path=tmp_path / "chat.png")
