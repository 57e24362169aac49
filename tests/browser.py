"""Pages as people see them: headless Chromium over its debugging pipe, with nothing but the standard library.

`look` opens a page at a width and in a theme and gives its text, what the console complained of, what was requested,
and what stands beyond the page's right edge. Tests take the `chromium` fixture and are skipped where there is none.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
    *("--force-color-profile=srgb", "--remote-debugging-pipe"),
)
PATIENCE = 60.0
"""Seconds until a browser that says nothing is given up."""
WIDTHS = (360, 1440)
"""A telephone and a desk."""
BEYOND = """
(width => [...document.querySelectorAll("body *")].filter(one => {
  for (let up = one.parentElement; up && up !== document.body; up = up.parentElement)
    if (getComputedStyle(up).overflowX !== "visible") return false;
  const box = one.getBoundingClientRect();
  return box.width > 0 && (box.right > width + 1 || box.left < -1);
}).slice(0, 9).map(one => one.tagName.toLowerCase() + (one.className ? "." + one.getAttribute("class") : "")))
"""


@dataclass(frozen=True)
class Seen:
    """A page at a width and in a theme."""

    text: str
    complaints: tuple[str, ...]
    requested: tuple[str, ...]
    beyond: tuple[str, ...]
    width: int
    background: tuple[int, ...]

    @property
    def dark(self) -> bool:
        """Whether the page's background is dark."""
        return sum(self.background[:3]) < 3 * 128


@dataclass
class Browser:
    """A running Chromium: one page at a time."""

    process: subprocess.Popen[bytes]
    asks: int
    answers: int
    waiting: bytes = b""
    number: int = 0
    session: str = ""
    heard: list[dict[str, Any]] = field(default_factory=list)

    def look(self, page: Path | str, *, width: int = 1440, dark: bool = False, picture: Path | None = None) -> Seen:
        """Open a file or an address, and say what is to be seen; `picture`: also the whole page as PNG."""
        address = page.absolute().as_uri() if isinstance(page, Path) else page
        with self._tab():
            mobile = width < 600
            self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=mobile)
            theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
            self.ask("Emulation.setEmulatedMedia", features=[theme])
            self.ask("Page.navigate", url=address)
            self._until("Page.loadEventFired")
            seen = self._seen(address, width)
            if picture is not None:
                shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True, clip=self._all(width))
                picture.write_bytes(base64.b64decode(shot["data"]))
            return seen

    def evaluate(self, script: str) -> Any:
        """What a script gives in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Ask the browser, and wait for its answer; what it tells meanwhile is kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.asks, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self.number:
                assert "error" not in told, f"{method}: {told['error']}"
                found: dict[str, Any] = told["result"]
                return found
            self.heard.append(told)

    @contextmanager
    def _tab(self) -> Iterator[None]:
        """A new tab that tells everything."""
        self.heard.clear()
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for part in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{part}.enable")
        try:
            yield
        finally:
            self.session = ""
            self.ask("Target.closeTarget", targetId=target)

    def _seen(self, address: str, width: int) -> Seen:
        self.evaluate("new Promise(done => requestAnimationFrame(() => setTimeout(done, 50)))")
        colour = self.evaluate("getComputedStyle(document.body).backgroundColor.match(/[\\d.]+/g).map(Number)")
        wide = self.evaluate("document.documentElement.scrollWidth")
        text, beyond = self.evaluate("document.body.innerText"), self.evaluate(f"({BEYOND})({width})")
        requested = [one["request"]["url"] for one in self._told("Network.requestWillBeSent")]
        outside = [one for one in requested if one != address and not one.startswith("data:")]
        return Seen(text, tuple(self._complaints()), tuple(outside), tuple(beyond), wide, tuple(map(int, colour)))

    def _complaints(self) -> Iterator[str]:
        for one in self._told("Runtime.exceptionThrown"):
            yield json.dumps(one["exceptionDetails"])
        for one in self._told("Runtime.consoleAPICalled"):
            if one["type"] in ("error", "warning", "assert"):
                yield json.dumps(one["args"])
        for one in self._told("Log.entryAdded"):
            if one["entry"]["level"] in ("error", "warning"):
                yield str(one["entry"]["text"])

    def _told(self, method: str) -> list[dict[str, Any]]:
        return [one["params"] for one in self.heard if one.get("method") == method]

    def _until(self, method: str) -> None:
        while not self._told(method):
            self.heard.append(self._next())

    def _all(self, width: int) -> dict[str, float]:
        height = self.evaluate("document.documentElement.scrollHeight")
        return {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}

    def _next(self) -> dict[str, Any]:
        """The next message; they end with a zero byte."""
        until = time.monotonic() + PATIENCE
        while b"\0" not in self.waiting:
            ready, _, _ = select.select([self.answers], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self.answers, 1 << 20) if ready else b""
            assert part, f"Chromium said nothing for {PATIENCE:.0f} seconds, or ended: {self.process.poll()}"
            self.waiting += part
        first, _, self.waiting = self.waiting.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message


@contextmanager
def started(program: str) -> Iterator[Browser]:
    """A browser with a profile of its own, ended with everything it started."""
    (reads, asks), (answers, writes) = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # Chromium takes questions from descriptor 3 and answers to 4
        handed = f'exec "$0" "$@" 3<&{reads} 4>&{writes}'
        command = ["bash", "-c", handed, program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
        quiet = subprocess.DEVNULL
        process = subprocess.Popen(command, pass_fds=(reads, writes), stdin=quiet, stdout=quiet, stderr=quiet)
        for one in (reads, writes):
            os.close(one)
        browser = Browser(process, asks, answers)
        try:
            yield browser
        finally:
            with suppress(AssertionError, OSError):
                browser.ask("Browser.close")
            for one in (asks, answers):
                os.close(one)
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Headless Chromium; the test is skipped where there is none."""
    program = next((found for name in NAMES if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (Debian: apt-get install chromium)")
    with started(program) as browser:
        yield browser
