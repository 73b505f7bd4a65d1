"""A real Chromium without a window, driven through chromedriver by the W3C WebDriver protocol: plain HTTP and JSON."""

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
DRIVER = shutil.which("chromedriver")

KEYS = {
    "Tab": "\ue004",
    "ArrowLeft": "\ue012",
    "ArrowUp": "\ue013",
    "ArrowRight": "\ue014",
    "ArrowDown": "\ue015",
}
KEYS |= {"Enter": "\ue007", "Escape": "\ue00c", "Home": "\ue011", "End": "\ue010"}


class Browser:
    """One window of Chromium. Everything it prints to its console is kept for `errors`."""

    def __init__(self) -> None:
        assert CHROMIUM is not None
        assert DRIVER is not None
        with socket.socket() as place:
            place.bind(("127.0.0.1", 0))
            port = place.getsockname()[1]
        self._driver = subprocess.Popen(
            [DRIVER, f"--port={port}", "--log-level=OFF"], stdout=subprocess.DEVNULL
        )
        self._address = f"http://127.0.0.1:{port}"
        options = {
            "binary": CHROMIUM,
            "args": [
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ],
        }
        capabilities = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        deadline = time.monotonic() + 120
        while True:
            try:
                self._session = ""
                answer = self._ask(
                    "POST", "/session", {"capabilities": {"alwaysMatch": capabilities}}
                )
                break
            except urllib.error.URLError:
                if time.monotonic() > deadline:
                    self._driver.kill()
                    raise
                time.sleep(0.05)
        self._session = f"/session/{answer['sessionId']}"

    def _ask(self, method: str, path: str, data: dict[str, Any] | None = None) -> Any:
        body = None if data is None else json.dumps(data).encode()
        request = urllib.request.Request(
            self._address + self._session + path,
            body,
            {"Content-Type": "application/json"},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return json.load(reply)["value"]
        except urllib.error.HTTPError as fault:
            raise AssertionError(json.load(fault)["value"]["message"].splitlines()[0]) from fault

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Shows a local page, with the network cut off."""
        self._ask("POST", "/window/rect", {"width": width, "height": height})
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._devtools("Emulation.setEmulatedMedia", {"features": [scheme]})
        self._devtools("Network.enable", {})
        offline = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
        self._devtools("Network.emulateNetworkConditions", offline)
        self._ask("POST", "/url", {"url": page.as_uri()})
        self._draw()

    def _draw(self) -> None:
        """Waits until the page has been drawn twice: a busy machine may press keys before, and look before they act."""
        self.run(
            "window.focus(); return new Promise(d => requestAnimationFrame(() => requestAnimationFrame(() => d())))"
        )

    def _devtools(self, command: str, parameters: dict[str, Any]) -> None:
        self._ask("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def run(self, script: str, *arguments: Any) -> Any:
        """What a piece of JavaScript returns; its arguments are `arguments[0]` and so on."""
        return self._ask("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def press(self, *keys: str) -> None:
        """Presses and lets go keys, one after the other, by name."""
        actions = [
            {"type": kind, "value": KEYS[key]} for key in keys for kind in ("keyDown", "keyUp")
        ]
        self._ask(
            "POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]}
        )
        self._draw()

    def point(self, selector: str, click: bool = False) -> None:
        """Moves the mouse to the middle of an element, and clicks there if asked to."""
        element = self._ask("POST", "/element", {"using": "css selector", "value": selector})
        actions: list[dict[str, Any]] = [
            {"type": "pointerMove", "duration": 0, "x": 0, "y": 0, "origin": element}
        ]
        if click:
            actions += [{"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0}]
        self._ask(
            "POST",
            "/actions",
            {"actions": [{"type": "pointer", "id": "mouse", "actions": actions}]},
        )

    def errors(self) -> list[str]:
        """What the page has complained of since the last call."""
        return [entry["message"] for entry in self._ask("POST", "/se/log", {"type": "browser"})]

    def close(self) -> None:
        """Ends Chromium and its driver."""
        try:
            self._ask("DELETE", "")
        finally:
            self._driver.terminate()
            self._driver.wait(60)
