"""A server of a directory as buckets are served: ranges, and headers that say which pages may read."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote

__all__ = ["CORS", "Bucket", "serving"]

CORS = {
    "Access-Control-Allow-Origin": "*",
    "Access-Control-Allow-Headers": "Range",
    "Access-Control-Expose-Headers": "Content-Range",
}


class Bucket(ThreadingHTTPServer):
    """Serves ``folder`` with ``headers``; ``asked`` has method and path of each request."""

    daemon_threads = True

    def __init__(self, folder: Path, headers: dict[str, str]) -> None:
        self.folder = folder
        self.headers = headers
        self.asked: list[tuple[str, str]] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Bucket
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass

    def do_OPTIONS(self) -> None:
        self._send(204, b"")

    def do_GET(self) -> None:
        path = self.server.folder / unquote(self.path.partition("?")[0]).lstrip("/")
        if not path.is_file():
            self._send(404, b"")
            return
        data = path.read_bytes()
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if found is None:
            kind = "text/html" if path.suffix == ".html" else "application/octet-stream"
            self._send(200, data, {"Content-Type": kind})
            return
        first, last = int(found[1]), min(int(found[2]), len(data) - 1)
        part = data[first : last + 1]
        self._send(206, part, {"Content-Range": f"bytes {first}-{last}/{len(data)}"})

    def _send(self, status: int, body: bytes, more: dict[str, str] | None = None) -> None:
        self.server.asked.append((self.command, self.path))
        self.send_response(status)
        for name, value in {**self.server.headers, **(more or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(folder: Path, headers: dict[str, str]) -> Iterator[Bucket]:
    """The server, which ends in the end."""
    with Bucket(folder, headers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
