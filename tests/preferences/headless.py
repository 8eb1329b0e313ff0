"""A real browser without a window, driven by the WebDriver protocol: JSON over HTTP."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from typing import Any

import pytest

KEYS = {"left": "\ue012", "right": "\ue014", "down": "\ue015"}
_ARGUMENTS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
_SECONDS = 300.0  # that anything may take on a busy machine


class Browser:
    """Chromium, or a skipped test where it is missing."""

    def __init__(self) -> None:
        driver = shutil.which("chromedriver")
        if driver is None or not (shutil.which("chromium") or shutil.which("google-chrome")):
            pytest.skip("needs chromium and chromium-driver")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self._process = subprocess.Popen(
            [driver, f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        self._root = f"http://127.0.0.1:{port}"
        try:
            self.wait(self._is_up)
            options = {"goog:chromeOptions": {"args": _ARGUMENTS}}
            made = self._call("POST", "/session", {"capabilities": {"alwaysMatch": options}})
            self._session = f"/session/{made['sessionId']}"
        except BaseException:
            self._process.kill()
            self._process.wait()
            raise

    def _is_up(self) -> bool:
        try:
            return bool(self._call("GET", "/status")["ready"])
        except OSError:
            return False

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._root + path, data, kind, method=method)
        with urllib.request.urlopen(request, timeout=_SECONDS) as reply:
            return json.load(reply)["value"]

    def open(self, address: str) -> None:
        self._call("POST", f"{self._session}/url", {"url": address})

    def run(self, script: str) -> Any:
        """Return what a script returns."""
        return self._call("POST", f"{self._session}/execute/sync", {"script": script, "args": []})

    def press(self, key: str) -> None:
        """Press a key of the keyboard."""
        value = KEYS.get(key, key)
        strokes = [{"type": kind, "value": value} for kind in ("keyDown", "keyUp")]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        self._call("POST", f"{self._session}/actions", {"actions": actions})

    def click(self, id: str) -> None:
        """Click an element where it is on the page."""
        using = {"using": "css selector", "value": f"#{id}"}
        [element] = self._call("POST", f"{self._session}/element", using).values()
        self._call("POST", f"{self._session}/element/{element}/click", {})

    def wait(self, happened: Any) -> None:
        """Wait until a function, or a script that returns something, says that it has happened."""
        end = time.monotonic() + _SECONDS
        while not (self.run(f"return {happened}") if isinstance(happened, str) else happened()):
            assert time.monotonic() < end, f"waited too long for {happened}"
            time.sleep(0.05)

    def close(self) -> None:
        try:
            self._call("DELETE", self._session)
        finally:
            self._process.terminate()
            self._process.wait()
