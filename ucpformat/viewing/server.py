"""The server of the page: on this machine alone, below a secret path, with the objects that root documents reach.

Who else is logged in on the machine can connect to its ports, and any page in the browser can send requests there: the
secret in the path, and the check of the header ``Host``, keep both out.
"""

from __future__ import annotations

import json
import re
import secrets
import sys
from dataclasses import dataclass
from functools import cached_property
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from ucpformat.copying import reached_objects
from ucpformat.errors import UcpError
from ucpformat.model.root import ROOT_KEY
from ucpformat.reader import Checkpoint
from ucpformat.viewing.page import policy, ready_made_patterns, served_parts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ucpformat.storage.stores.store import Objects

__all__ = ["PageServer"]

LOOPBACK: Final = "127.0.0.1"
_RANGE: Final = re.compile(r"bytes=(\d{1,16})-(\d{0,16})")
_MOST: Final = 64 << 20
"""Bytes that one answer has at most; a range that is longer gets its first."""
_POLICY: Final = policy("'self'", "'self'", "'self'") + "; frame-ancestors 'none'"


@dataclass
class _Served:
    """A checkpoint, or the store of one whose root document is refused: of that, the document alone is served."""

    label: str
    source: Checkpoint | Objects

    @property
    def store(self) -> Objects:
        """Return where the objects are."""
        return self.source.store if isinstance(self.source, Checkpoint) else self.source

    @cached_property
    def documents(self) -> frozenset[str]:
        """Return keys of the documents and tables, which the root document itself names."""
        if not isinstance(self.source, Checkpoint):
            return frozenset((ROOT_KEY,))
        return frozenset((ROOT_KEY, *(reference.key for _, reference in self.source.root.references())))

    @cached_property
    def objects(self) -> frozenset[str]:
        """Return keys of all objects that are reached; reads the documents."""
        return frozenset(reached_objects(self.source)) if isinstance(self.source, Checkpoint) else frozenset()

    def size(self, key: str) -> int | None:
        """Return length of an object that is reached; None for any other."""
        return self.store.size(key) if key in self.documents or key in self.objects else None


class PageServer(ThreadingHTTPServer):
    """Serves the page and checkpoints on a port of 127.0.0.1; ``url`` is where."""

    daemon_threads = True

    def __init__(
        self,
        checkpoints: Sequence[tuple[str, Checkpoint | Objects]],
        *,
        port: int = 0,
        compared: int | None = None,
        plan: Mapping[str, object] | None = None,
        log: Mapping[str, object] | None = None,
    ) -> None:
        self.served = tuple(_Served(label, source) for label, source in checkpoints)
        self.parts = served_parts()
        listed = [
            {"label": one.label, "source": {"url": f"checkpoints/{number}/"}}
            for number, one in enumerate(self.served)
        ]
        configuration = {
            "checkpoints": listed,
            "compared": compared,
            "plan": plan,
            "log": log,
            "patterns": ready_made_patterns(),
        }
        self.parts["configuration.json"] = ("application/json", json.dumps(configuration).encode())
        self.secret = secrets.token_urlsafe(16)
        super().__init__((LOOPBACK, port), _Handler)
        self.hosts = frozenset(f"{name}:{self.server_port}" for name in (LOOPBACK, "localhost"))

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that no longer waits for its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is, with its secret."""
        return f"http://{LOOPBACK}:{self.server_port}/{self.secret}/"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"
    server_version = "ucp"
    sys_version = ""

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        """Log nothing: paths hold the secret."""

    def _answer(self, *, has_body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        base = f"/{self.server.secret}/"
        if self.headers.get("Host") not in self.server.hosts or not path.startswith(base):
            self._send(HTTPStatus.NOT_FOUND)
            return
        name = path.removeprefix(base)
        if name in self.server.parts:
            kind, data = self.server.parts[name]
            self._send(HTTPStatus.OK, data if has_body else b"", {"Content-Type": kind}, length=len(data))
            return
        found = re.fullmatch(r"checkpoints/(\d{1,9})/(.+)", name, re.DOTALL)
        number = int(found[1]) if found else -1
        if found is None or number >= len(self.server.served):
            self._send(HTTPStatus.NOT_FOUND)
            return
        served, key = self.server.served[number], found[2]
        try:
            size = served.size(key)
        except (UcpError, OSError):
            size = None
        if size is None:
            self._send(HTTPStatus.NOT_FOUND)
        else:
            self._send_object(served.store, key, size, has_body=has_body)

    def _send_object(self, store: Objects, key: str, size: int, *, has_body: bool) -> None:
        wanted = _RANGE.fullmatch(self.headers.get("Range") or "bytes=0-")
        start = int(wanted[1]) if wanted else 0
        if wanted is None or (start >= size and (size or self.headers.get("Range"))):
            self._send(
                HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, headers={"Content-Range": f"bytes */{size}"}
            )
            return
        stop = min(size, int(wanted[2]) + 1 if wanted[2] else size)
        is_part = self.headers.get("Range") is not None
        if is_part:
            stop = min(stop, start + _MOST)
        headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"}
        if is_part:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
        status = HTTPStatus.PARTIAL_CONTENT if is_part else HTTPStatus.OK
        self._send_head(status, headers, max(0, stop - start))
        for at in range(start, stop if has_body else start, _MOST):
            self.wfile.write(store.read(key, at, min(stop, at + _MOST)))

    def _send(
        self,
        status: HTTPStatus,
        data: bytes = b"",
        headers: dict[str, str] | None = None,
        length: int | None = None,
    ) -> None:
        self._send_head(status, headers or {}, len(data) if length is None else length)
        self.wfile.write(data)

    def _send_head(self, status: HTTPStatus, headers: dict[str, str], length: int) -> None:
        self.send_response(status)
        common = {
            "Content-Security-Policy": _POLICY,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cache-Control": "no-store",
            "Content-Length": str(length),
        }
        for name, value in (common | headers).items():
            self.send_header(name, value)
        self.end_headers()
