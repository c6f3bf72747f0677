"""Talking to a driver: one process, one request at a time, and every way in which that can fail."""

from __future__ import annotations

import json
import os
import queue
import shlex
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ucp_conformance.resources import protocol_validator

__all__ = ["Claims", "Connection", "DriverError", "Reply"]

_TAIL = 4000


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a request.

    ``kind`` is a reply's member, or ``timeout``, ``crash``, ``noise``, ``wrong-id``, ``schema``.
    """

    kind: str
    body: dict[str, Any]
    ms: float

    @property
    def is_answer(self) -> bool:
        """Whether the driver answered by the protocol."""
        return self.kind in ("result", "error", "unsupported", "internal")


@dataclass(frozen=True, slots=True)
class Claims:
    """The result of ``hello``."""

    document: dict[str, Any]

    def has(self, member: str, value: str) -> bool:
        """Return whether a list of claims names ``value``."""
        return value in self.document.get(member, self.document.get("compressors", []))

    def writes_compressor(self, name: str) -> bool:
        """Return whether the compressor can be written."""
        return name in self.document.get("writes_compressors", self.document["compressors"])

    def writes_feature(self, name: str) -> bool:
        """Return whether ``write`` takes what the read feature is about."""
        return name in self.document.get("writes_features", ())


class DriverError(Exception):
    """A driver that never says hello."""


class Connection:
    """A driver's process, started when it is needed and started anew when it has failed."""

    def __init__(self, command: str, *, label: str, timeout: float = 30.0) -> None:
        self.command = [
            _resolved(word, is_program=not number) for number, word in enumerate(shlex.split(command))
        ]
        self.label = label
        self._text = command
        self.timeout = timeout
        self.scratch = Path(tempfile.mkdtemp(prefix="ucp-driver-"))
        self.claims: Claims | None = None
        self.failures_in_a_row = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._lines: queue.Queue[bytes | None] = queue.Queue()
        self._id = 0
        self._log = self.scratch.parent / f"{self.scratch.name}.stderr"

    def twin(self) -> Connection:
        """Return a connection to another process of the same driver."""
        return Connection(self._text, label=self.label, timeout=self.timeout)

    def hello(self) -> Claims:
        """Start the driver if need be; returns what it claims. Raises `DriverError`."""
        if self._process is None or self.claims is None:
            self._start()
        if self.claims is None:
            raise DriverError(f"{self.label} did not say hello: {self.stderr()}")
        return self.claims

    def request(self, method: str, params: dict[str, Any]) -> Reply:
        """Send a request and wait for what comes of it."""
        if self._process is None:
            try:
                self._start()
            except DriverError as wrong:
                return Reply("crash", {"detail": str(wrong)}, 0.0)
        reply = self._exchange(method, params)
        self.failures_in_a_row = 0 if reply.is_answer else self.failures_in_a_row + 1
        if not reply.is_answer:
            self.kill()
        return reply

    def send_and_kill(self, method: str, params: dict[str, Any], delay: float) -> None:
        """Send a request and kill the process ``delay`` seconds later, whatever it is doing."""
        self.hello()
        self._send(method, params)
        time.sleep(delay)
        self.kill()

    def shutdown(self) -> Reply:
        """Ask the process to end; a failure if it does not do so by itself with exit code 0."""
        process = self._process
        if process is None:
            return Reply("result", {}, 0.0)
        reply = self.request("shutdown", {})
        if reply.kind == "result":
            try:
                code = process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                reply = Reply("timeout", {"detail": "the process did not end"}, reply.ms)
            else:
                if code != 0:
                    reply = Reply("crash", {"detail": f"exit code {code}"}, reply.ms)
        self.kill()
        return reply

    def kill(self) -> None:
        """End the process and its children at once."""
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()

    def stderr(self) -> str:
        """Return the end of the log."""
        if not self._log.exists():
            return ""
        return self._log.read_bytes()[-_TAIL:].decode("utf-8", "replace")

    def _start(self) -> None:
        with self._log.open("ab") as log:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - the user named it
                    self.command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    cwd=self.scratch,
                    start_new_session=True,
                )
            except OSError as wrong:
                raise DriverError(f"{self.label} cannot be started: {wrong}") from None
        self._lines = queue.Queue()
        assert self._process.stdout is not None  # noqa: S101 - asked for above
        threading.Thread(target=_pump, args=(self._process.stdout, self._lines), daemon=True).start()
        reply = self._exchange("hello", {"protocols": [1]})
        if reply.kind != "result":
            self.kill()
            raise DriverError(self._silence(reply))
        self.claims = Claims(reply.body)

    def _silence(self, reply: Reply) -> str:
        """Return what came instead of a hello, and the driver's last words."""
        detail = reply.body.get("detail", "")
        what = {
            "crash": f"died before it said hello: {detail}",
            "timeout": f"did not say hello: {detail}",
            "noise": f"did not say hello, but: {detail}",
        }.get(reply.kind, f"answered hello by {reply.kind}: {detail or json.dumps(reply.body)}")
        words = self.stderr().strip()
        last = f"its last words:\n{words}" if words else "it wrote nothing to standard error"
        return f"{self.label} {what}; {last}"

    def _ended(self) -> str:
        """Return how the process ended, which has closed its standard output."""
        try:
            code = self._process.wait(5.0) if self._process is not None else None
        except subprocess.TimeoutExpired:
            return "standard output ended, and the process goes on"
        if code is not None and code < 0:
            return f"signal {signal.Signals(-code).name}"
        return f"exit code {code}"

    def _send(self, method: str, params: dict[str, Any]) -> int:
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        fault = next(iter(protocol_validator("request").iter_errors(message)), None)
        if fault is not None:
            raise AssertionError(f"the suite sent a wrong request: {fault.message}")
        process = self._process
        if process is not None and process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
                process.stdin.flush()
        return self._id

    def _exchange(self, method: str, params: dict[str, Any]) -> Reply:
        start = time.monotonic()

        def outcome(kind: str, body: dict[str, Any]) -> Reply:
            return Reply(kind, body, 1000 * (time.monotonic() - start))

        if not self._lines.empty():
            line = self._lines.get()
            if line is not None:
                return outcome("noise", {"detail": _quoted(line)})
        expected = self._send(method, params)
        try:
            line = self._lines.get(timeout=self.timeout)
        except queue.Empty:
            return outcome("timeout", {"detail": f"no reply in {self.timeout} s"})
        if line is None:
            return outcome("crash", {"detail": self._ended()})
        try:
            reply = json.loads(line)
        except ValueError:
            return outcome("noise", {"detail": _quoted(line)})
        fault = next(iter(protocol_validator("reply").iter_errors(reply)), None)
        if fault is not None:
            return outcome("noise", {"detail": f"{fault.message} in {_quoted(line)}"})
        if reply["id"] != expected:
            return outcome("wrong-id", {"detail": f"{reply['id']} and not {expected}"})
        kind = next(name for name in reply if name != "id")
        if kind == "result":
            fault = next(iter(protocol_validator(f"{method}-result").iter_errors(reply["result"])), None)
            if fault is not None:
                place = "/".join(map(str, fault.absolute_path))
                return outcome("schema", {"detail": f"{place}: {fault.message}"})
        return outcome(kind, reply[kind])


def _resolved(word: str, *, is_program: bool) -> str:
    """Return a path to a file as it is from anywhere: the driver runs in a folder of its own."""
    path = Path(word)
    found = path.exists() if "/" in word else path.is_file() and not is_program
    return str(path.absolute()) if found else word


def _pump(stream: BinaryIO, lines: queue.Queue[bytes | None]) -> None:
    with suppress(ValueError, OSError):
        for line in stream:
            lines.put(line)
    lines.put(None)


def _quoted(line: bytes) -> str:
    """Return the beginning of a line, as JSON has a string."""
    return json.dumps(line[:200].decode("utf-8", "replace").rstrip("\n"), ensure_ascii=False)
