"""Headless Chromium, driven over its own debugging pipe: open, press, drag, look, take a picture.

The protocol is the Chrome DevTools Protocol (https://chromedevtools.github.io/devtools-protocol): JSON messages that
end with a zero byte, read from file descriptor 3 and written to 4, so it needs neither a port nor a driver.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--force-color-profile=srgb")

UNNAMED = """
[...document.querySelectorAll('button, a, [role=img], [role=region], nav')]
  .filter((one) => !(one.getAttribute('aria-label') || one.textContent).trim())
  .map((one) => one.outerHTML.slice(0, 80))
"""
# WCAG 2.1, 1.4.3: the contrast of text is at least 4.5 to 1 (AA).
FAINT = """(() => {
  const parts = (text) => text.match(/[0-9.]+/g).map(Number);
  const linear = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
  const light = (rgb) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * linear(rgb[i] / 255), 0);
  const back = (one) => {
    for (; one; one = one.parentElement) {
      const colour = parts(getComputedStyle(one).backgroundColor);
      if (colour.length < 4 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const worded = (one) => [...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  const ratio = (one) => {
    const [low, high] = [light(parts(getComputedStyle(one).color)), light(back(one))].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  return [...document.querySelectorAll('header *, main *, footer')]
    .filter((one) => worded(one) && !one.closest('svg') && ratio(one) < 4.5)
    .map((one) => [ratio(one), one.outerHTML.slice(0, 90)]);
})()"""


class Browser:
    """One Chromium with one page. `folder` holds its profile."""

    def __init__(self, folder: Path, width: int = 1280, height: int = 900) -> None:
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()

        def pipe() -> None:
            low, high = os.dup(reads), os.dup(writes)  # either may be 3 or 4 itself
            os.dup2(low, 3)
            os.dup2(high, 4)

        flags = [*FLAGS, f"--user-data-dir={folder / 'profile'}", f"--window-size={width},{height}"]
        self.process = subprocess.Popen(
            [str(CHROMIUM), *flags, "about:blank"], preexec_fn=pipe, pass_fds=(3, 4), stderr=subprocess.DEVNULL
        )
        os.close(reads)
        os.close(writes)
        self._rest = b""
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = next(one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *failure: object) -> None:
        self._session = None
        self.call("Browser.close")
        self.process.wait(30)
        os.close(self._out)
        os.close(self._in)

    def _message(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            read = os.read(self._in, 1 << 20)
            if not read:
                raise RuntimeError("Chromium closed its debugging pipe")
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """What the protocol's `method` answers; events that come meanwhile are kept."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        left = json.dumps(message).encode() + b"\0"
        while left:
            left = left[os.write(self._out, left) :]
        while True:
            answer = self._message()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return dict(answer["result"])
            self.events.append(answer)

    def open(self, path: Path) -> None:
        """Load a file; returns after its `load` event."""
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for_load()

    def wait_for_load(self) -> None:
        """Wait for the next `load` event."""
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._message())

    def run(self, script: str) -> Any:
        """The value of an expression of JavaScript in the page; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until what is in view has been drawn."""
        self.run("new Promise((done) => requestAnimationFrame(() => setTimeout(() => requestAnimationFrame(done))))")

    def show(self, selector: str) -> tuple[float, float, float, float]:
        """Scroll an element into view; its left, top, width and height on the screen."""
        self.run(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        self.settle()
        box = self.run(
            f"(({{x, y, width, height}}) => [x, y, width, height])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        return (box[0], box[1], box[2], box[3])

    def mouse(self, kind: str, x: float, y: float, clicks: int = 1) -> None:
        """One event of the mouse: `mousePressed`, `mouseMoved` or `mouseReleased`, in pixels of the screen."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=clicks)

    def press(self, selector: str) -> None:
        """Click the middle of an element."""
        left, top, width, height = self.show(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.mouse(kind, left + width / 2, top + height / 2)
        self.settle()

    def drag(self, selector: str, start: float, end: float) -> None:
        """Drag along the middle of an element, from and to a share of its width."""
        left, top, width, height = self.show(selector)
        y = top + height / 2
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=left + width * start, y=y)
        self.mouse("mousePressed", left + width * start, y)
        for share in (start + (end - start) * step / 5 for step in range(1, 6)):
            self.mouse("mouseMoved", left + width * share, y)
        self.mouse("mouseReleased", left + width * end, y)
        self.settle()

    def phone(self) -> None:
        """A screen of 390 x 844 points with a finger instead of a mouse."""
        self.call("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)

    def prefer(self, scheme: str) -> None:
        """Ask for `dark` or `light`."""
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        self.settle()

    def picture(self, path: Path, whole: bool = False) -> bytes:
        """A PNG of the screen, or of the whole page, written to `path`."""
        data = base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=whole)["data"])
        path.write_bytes(data)
        return data

    def problems(self) -> list[str]:
        """What the page threw, logged as an error, or was refused by its content security policy."""
        found = []
        for event in self.events:
            if event.get("method") == "Runtime.exceptionThrown":
                found.append(str(event["params"]["exceptionDetails"]))
            elif event.get("method") == "Log.entryAdded" and event["params"]["entry"]["level"] == "error":
                found.append(event["params"]["entry"]["text"])
        return found

    def requests(self) -> list[str]:
        """The addresses that the page asked for after its own, without what it carries in it."""
        sent = [e["params"]["request"]["url"] for e in self.events if e.get("method") == "Network.requestWillBeSent"]
        return [url for url in sent[1:] if not url.startswith(("data:", "blob:"))]
