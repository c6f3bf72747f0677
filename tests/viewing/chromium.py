"""A headless Chromium that is driven by the DevTools protocol, over two pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any, Self

_NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in _NAMES if (path := shutil.which(name))), None)
"""The program, or None."""
PATIENCE_S = 60.0
# Chromium reads from file descriptor 3 and writes to 4.
_START = """
import fcntl, os, sys
reads, writes = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(reads, 3)
os.dup2(writes, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class PageError(AssertionError):
    """The page does not come to what is waited for."""


class Chromium:
    """One browser with one page; ``log`` has what the page wrote to its console, and what broke its policy."""

    def __init__(self, folder: Path, *, width: int = 1200, height: int = 800) -> None:
        assert CHROMIUM is not None
        self._ids = 0
        self._events: deque[dict[str, Any]] = deque()
        self._pending = b""
        self.log: list[str] = []
        self.requests: list[str] = []
        commands_out, self._commands = os.pipe()
        self._answers, answers_in = os.pipe()
        program = [
            CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
            "--disable-extensions", "--disable-background-networking", "--disable-component-update",
            f"--window-size={width},{height}", f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank",
        ]  # fmt: skip
        words = [sys.executable, "-c", _START, str(commands_out), str(answers_in), *program]
        self._process = subprocess.Popen(
            words,
            pass_fds=(commands_out, answers_in),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(commands_out)
        os.close(answers_in)
        try:
            self._attach()
        except BaseException:
            self.__exit__()
            raise

    def _attach(self) -> None:
        targets = self._call("Target.getTargets")["targetInfos"]
        (target,) = [one["targetId"] for one in targets if one["type"] == "page"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "DOM"):
            self.call(f"{domain}.enable")
        # Requests of workers are seen as well.
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        os.close(self._commands)
        os.close(self._answers)

    @property
    def pid(self) -> int:
        """The process that the others of the browser are below."""
        return self._process.pid

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method on the page."""
        return self._call(method, session=self._session, **params)

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._ids += 1
        message = {"id": self._ids, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._commands, data) :]
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self._receive(deadline)
            if found.get("id") == message["id"]:
                if "error" in found:
                    raise PageError(f"{method}: {found['error']}")
                result: dict[str, Any] = found["result"]
                return result

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._answers], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(self._answers, 1 << 20) if ready else b""
            if not data:
                raise PageError("Chromium says nothing")
            self._pending += data
        text, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.log.append(" ".join(str(one.get("value", one.get("description"))) for one in params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.log.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.log.append(f"{params['entry']['source']}: {params['entry']['text']}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Target.attachedToTarget":
            self._ids += 1
            told = {
                "id": self._ids,
                "method": "Network.enable",
                "sessionId": params["sessionId"],
                "params": {},
            }
            os.write(self._commands, json.dumps(told).encode() + b"\0")

    def go(self, url: str) -> None:
        """Load a page."""
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Return what an expression is in the page, awaited."""
        found = self.call(
            "Runtime.evaluate",
            expression=expression,
            returnByValue=True,
            awaitPromise=True,
            allowUnsafeEvalBlockedByCSP=False,
        )
        if "exceptionDetails" in found:
            raise PageError(json.dumps(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait(self, expression: str, seconds: float = PATIENCE_S) -> Any:
        """Return what an expression is as soon as it is true of the page."""
        promise = f"""new Promise((resolve, reject) => {{
            const end = performance.now() + {1000 * seconds};
            const look = () => {{
                const found = (() => {{ try {{ return {expression}; }} catch {{ return null; }} }})();
                if (found) resolve(found);
                else if (performance.now() > end) reject(new Error('waited in vain'));
                else setTimeout(look, 20);
            }};
            look();
        }})"""
        try:
            return self.value(promise)
        except PageError as failed:
            text = self.value("document.body.innerText")
            raise PageError(f"{expression}: {failed}\n{text[:2000]}\n{self.log}") from None

    def key(self, name: str, text: str = "") -> None:
        """Press and release a key."""
        codes = {
            "Enter": 13,
            "ArrowDown": 40,
            "ArrowUp": 38,
            "ArrowRight": 39,
            "ArrowLeft": 37,
            "End": 35,
            "Home": 36,
            "Tab": 9,
        }
        parts = {"key": name, "windowsVirtualKeyCode": codes.get(name, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", **parts, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **parts)

    def type(self, selector: str, text: str) -> None:
        """Put a text into a field, as typing does."""
        self.value(f"document.querySelector({json.dumps(selector)}).focus()")
        self.value(f"document.querySelector({json.dumps(selector)}).select()")
        self.call("Input.insertText", text=text)

    def click(self, selector: str) -> None:
        """Click on the first element of a selector."""
        self.value(f"document.querySelector({json.dumps(selector)}).click()")

    def choose_files(self, selector: str, paths: list[str]) -> None:
        """Choose files, or one directory, for an input."""
        root = self.call("DOM.getDocument")["root"]["nodeId"]
        node = self.call("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.call("DOM.setFileInputFiles", files=paths, nodeId=node)

    def drop(self, paths: list[str]) -> None:
        """Drop files or directories on the page."""
        data = {"items": [], "files": paths, "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.call("Input.dispatchDragEvent", type=kind, x=300, y=300, data=data)

    def screenshot(self, path: Path) -> None:
        """Write a picture of what is seen."""
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
