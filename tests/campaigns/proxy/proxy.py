"""An HTTP proxy that passes requests on to an S3 server, and lets chosen ones fail.

It counts the requests of an operation from 0. A fault is met by the request of its number, and with ``for_ever`` by
each one behind it; the others are passed on as they are.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import socket
import struct
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector, web
from yarl import URL

from tests.campaigns.proxy.listings import with_removed, without_new

__all__ = ["KINDS", "Fault", "Proxy", "Request"]

_ERRORS: Final = {
    "400": (400, "BadDigest", {}),
    "500": (500, "InternalError", {}),
    "503": (503, "SlowDown", {}),
    "429": (429, "TooManyRequests", {"Retry-After": "1"}),
}
KINDS: Final = (
    "lost answer",
    "reset",
    "500 before",
    "500 after",
    "503 before",
    "503 after",
    "429 before",
    "truncated",
    "flipped",
    "slow",
    "stale, without new keys",
    "stale, with removed keys",
)
"""``before`` and ``after`` say whether the server has done what was asked for; with a reset it has not."""

_HOP: Final = frozenset(("connection", "keep-alive", "transfer-encoding", "expect", "te", "upgrade"))


@dataclass(frozen=True)
class Request:
    """What was asked, and what may go wrong with it."""

    number: int
    method: str
    path: str
    query: str
    sent: int
    answered: int

    def __str__(self) -> str:
        return f"{self.number}: {self.method} {self.path}{'?' if self.query else ''}{self.query}"

    @property
    def is_listing(self) -> bool:
        """Whether the answer is a list of objects."""
        return self.method == "GET" and "list-type=2" in self.query

    @property
    def is_object(self) -> bool:
        """Whether bytes of an object are sent or fetched."""
        asks_for_more = {"uploads", "list-type", "delete", "versioning", "location"}
        named = {part.partition("=")[0] for part in self.query.split("&")}
        if self.method == "PUT":
            return self.sent > 0
        return self.method == "GET" and self.answered > 0 and not named & asks_for_more

    def can_meet(self, kind: str) -> bool:
        """Whether there is anything to be truncated, flipped or left out."""
        if kind == "truncated":
            return self.method == "GET" and self.answered > 1
        if kind == "flipped":
            return self.is_object
        return self.is_listing or not kind.startswith("stale")


@dataclass(frozen=True)
class Fault:
    """A fault, and the number of the request that meets it first."""

    kind: str
    number: int
    for_ever: bool = False

    def __str__(self) -> str:
        return f"{self.kind}{' from there on' if self.for_ever else ''} at request {self.number}"


class Proxy:
    """Serves on loopback, by a thread of its own, between `start` and `stop`."""

    def __init__(self, server: str, patience: float) -> None:
        """``server`` is the address of the real one; a slow answer takes longer than ``patience`` seconds."""
        self._server = server
        self._patience = patience
        self._loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._fault: Fault | None = None
        self._count = 0
        self._made: set[str] = set()
        self._removed: set[str] = set()
        self.requests: list[Request] = []
        self.met = 0
        self.endpoint = ""

    def start(self) -> None:
        """Begin to serve."""
        self.thread.start()
        self.endpoint = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()

    async def _start(self) -> str:
        self._session = ClientSession(
            connector=TCPConnector(limit=0),
            auto_decompress=False,
            cookie_jar=DummyCookieJar(),
            timeout=ClientTimeout(total=60),
        )
        self._runner = web.ServerRunner(
            web.Server(self._answer, auto_decompress=False), handle_signals=False, shutdown_timeout=0.1
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        return f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    def stop(self) -> None:
        """Serve no more."""

        async def stop() -> None:
            await self._runner.cleanup()
            await self._session.close()

        asyncio.run_coroutine_threadsafe(stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.thread.join()
        self._loop.close()

    @contextmanager
    def armed(self, fault: Fault | None) -> Iterator[None]:
        """Count requests from 0, and let them meet ``fault``; `requests` and `met` say afterwards what has come."""
        self.requests, self.met, self._count = [], 0, 0
        self._made, self._removed = set(), set()
        self._fault = fault
        try:
            yield
        finally:
            self._fault = None

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        number, self._count = self._count, self._count + 1
        fault = self._fault
        if fault is not None and not (fault.number == number or (fault.for_ever and fault.number < number)):
            fault = None
        if request.headers.get("Expect", "").lower() == "100-continue":
            await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            request.writer.output_size = 0
        body = await request.read()
        path, _, query = request.raw_path.partition("?")
        asked = Request(number, request.method, unquote(path), unquote(query), len(body), 1 << 30)
        if fault is not None and not asked.can_meet(fault.kind):
            fault = None
        kind = "" if fault is None else fault.kind
        self.met += fault is not None
        if kind == "reset":
            return _closed(request, reset=True)
        if kind.endswith("before"):
            return _error(kind, request)
        if kind == "flipped" and body:
            body, kind = _flipped(body), ""
        if _is_damaged(request.headers, body):
            return _error("400", request)
        status, headers, data = await self._passed_on(request, body)
        self.requests.append(Request(number, asked.method, asked.path, asked.query, asked.sent, len(data)))
        if status < 300:
            self._note(asked, data if asked.query == "delete" else b"", body)
        if kind.endswith("after"):
            return _error(kind, request)
        if kind == "lost answer":
            return _closed(request)
        if kind == "slow":
            await asyncio.sleep(2 * self._patience)
            return _closed(request)
        if kind == "flipped" and data and asked.method == "GET":
            data = _flipped(data)
        if kind == "stale, without new keys":
            data = without_new(data, self._made)
        if kind == "stale, with removed keys":
            data = with_removed(data, asked.query, asked.path, self._removed)
        return await _sent(request, status, headers, data, truncated=kind == "truncated")

    async def _passed_on(self, request: web.BaseRequest, body: bytes) -> tuple[int, dict[str, str], bytes]:
        given = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in _HOP | {"content-length"}
        }
        url = URL(self._server + request.raw_path, encoded=True)
        has_body = bool(body) or "Content-Length" in request.headers
        async with self._session.request(
            request.method, url, headers=given, data=body if has_body else None, allow_redirects=False
        ) as answer:
            data = await answer.read()
            return (
                answer.status,
                {k: v for k, v in answer.headers.items() if k.lower() not in _HOP},
                data,
            )

    def _note(self, asked: Request, answer: bytes, body: bytes) -> None:
        """Remember which objects have come and gone."""
        from tests.campaigns.proxy.listings import keys_of

        key = asked.path
        if asked.method == "PUT" and "partNumber" not in asked.query:
            self._made.add(key)
            self._removed.discard(key)
        elif asked.method == "POST" and "uploadId" in asked.query:
            self._made.add(key)
        elif asked.method == "DELETE" and "uploadId" not in asked.query:
            self._removed.add(key)
        elif asked.query == "delete" and answer:
            self._removed.update(f"{key.rstrip('/')}/{one}" for one in keys_of(body))


def _closed(request: web.BaseRequest, *, reset: bool = False) -> web.Response:
    """End the connection without an answer; with ``reset`` as a peer does that was killed."""
    transport: Any = request.transport
    if transport is not None:
        if reset:
            linger = struct.pack("ii", 1, 0)
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        transport.abort()
    return web.Response(status=500)  # nobody sees it


def _error(kind: str, request: web.BaseRequest) -> web.Response:
    status, code, headers = _ERRORS[kind.partition(" ")[0]]
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>injected</Message></Error>"
    body = b"" if request.method == "HEAD" else text.encode()
    return web.Response(status=status, headers=headers, body=body, content_type="application/xml")


def _is_damaged(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether what has come is not what its sender says, as S3 would find; moto does not look."""
    crc = headers.get("x-amz-checksum-crc32")
    md5 = headers.get("Content-MD5")
    return (crc is not None and base64.b64decode(crc) != zlib.crc32(body).to_bytes(4, "big")) or (
        md5 is not None and base64.b64decode(md5) != hashlib.md5(body).digest()
    )


def _flipped(data: bytes) -> bytes:
    changed = bytearray(data)
    changed[len(changed) // 2] ^= 1
    return bytes(changed)


async def _sent(
    request: web.BaseRequest, status: int, headers: dict[str, str], data: bytes, *, truncated: bool
) -> web.StreamResponse:
    if request.method != "HEAD":
        headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        headers["Content-Length"] = str(len(data))
    answer = web.StreamResponse(status=status, headers=headers)
    await answer.prepare(request)
    if truncated:
        await answer.write(data[: len(data) // 2])
        if request.transport is not None:
            request.transport.close()
        return answer
    if data and request.method != "HEAD":
        await answer.write(data)
    await answer.write_eof()
    return answer
