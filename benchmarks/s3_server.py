"""An S3 server on loopback, in a process of its own: moto's, behind a layer that delays answers and counts.

``python -m benchmarks.s3_server --milliseconds 20`` prints its address and ends when its standard input does.
Every request is answered by a thread of its own, which sleeps first: requests that are made at once wait at once.
With ``--per-connection 20`` an answer also waits until its bytes, both ways, would have passed at 20 MB/s: what a
connection over a distance carries, and several carry several times.
Whole objects and ranges are handed out by the layer, since moto copies the whole object for each range of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

import click

__all__ = ["BUCKET", "Counts", "S3Server", "missing_packages", "served"]

BUCKET: Final = "checkpoints"
_COUNTS: Final = "/_counts"  # no bucket may have this name
_CLIENT: Final = {"key": "nobody", "secret": "nothing"}
_IN_MEMORY: Final = {"MOTO_S3_DEFAULT_KEY_BUFFER_SIZE": str(1 << 40)}
"""Objects of more than 5 MiB would lie in temporary files, and a disk would be measured."""


class Counts(NamedTuple):
    """Requests, bytes of their bodies and of the answers'."""

    requests: int
    received: int
    sent: int


def missing_packages() -> list[str]:
    """Packages that the server and its clients need and that are not installed."""
    return [name for name in ("s3fs", "moto", "flask") if find_spec(name) is None]


class S3Server(NamedTuple):
    """Where a server listens, and what its clients are to be configured with."""

    endpoint: str

    def options(self) -> dict[str, Any]:
        """What s3fs wants to know, such as for ``fsspec.config.conf["s3"]``."""
        return {**_CLIENT, "endpoint_url": self.endpoint, "client_kwargs": {"region_name": "us-east-1"}}

    def counts(self) -> Counts:
        """What was asked since the last look."""
        with urlopen(f"{self.endpoint}{_COUNTS}", timeout=60) as answer:
            return Counts(**json.load(answer))


@contextmanager
def served(milliseconds: int = 0, per_connection: float = 0) -> Iterator[S3Server]:
    """A server with one empty bucket, for the time of the block; ``per_connection`` in MB/s, 0 for no limit."""
    command = [sys.executable, "-m", "benchmarks.s3_server", "--milliseconds", str(milliseconds)]
    command += ["--per-connection", str(per_connection)]
    process = subprocess.Popen(
        command,
        env={**os.environ, **_IN_MEMORY},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        endpoint = process.stdout.readline().strip()
        if not endpoint:
            raise RuntimeError(f"`{' '.join(command)}` has not started; run it to see why")
        yield S3Server(endpoint)
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait()


class _Layer:
    """A WSGI application around moto's."""

    def __init__(self, inner: Any, backend: Any, seconds: float, per_byte: float) -> None:
        self._inner = inner
        self._backend = backend
        self._seconds = seconds
        self._per_byte = per_byte
        self._lock = threading.Lock()
        self._counts = Counts(0, 0, 0)
        self._contents: dict[str, tuple[object, bytes]] = {}

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _COUNTS:
            with self._lock:
                counts, self._counts = self._counts, Counts(0, 0, 0)
            data = json.dumps(counts._asdict()).encode()
            start_response("200 OK", [("Content-Length", str(len(data)))])
            return [data]
        began = time.perf_counter()
        answer = self._object(environ, start_response)
        if answer is None:
            answer = self._inner(environ, start_response)
        body = b"".join(answer)
        given = int(environ.get("CONTENT_LENGTH") or 0)
        passed = time.perf_counter() - began
        time.sleep(self._seconds + max(0.0, (given + len(body)) * self._per_byte - passed))
        with self._lock:
            requests, received, sent = self._counts
            self._counts = Counts(requests + 1, received + given, sent + len(body))
        return [body]

    def _object(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes] | None:
        """Answer a GET of an object that is there, or of a range within it; None leaves it to moto."""
        bucket, _, key = environ["PATH_INFO"].lstrip("/").partition("/")
        if (
            environ["REQUEST_METHOD"] != "GET"
            or not key
            or environ.get("QUERY_STRING") not in ("", "x-id=GetObject")
        ):
            return None
        found = self._backend.get_object(bucket, key)
        if found is None:
            return None
        with self._lock:
            known = self._contents.get(key)
            if known is None or known[0] is not found:
                known = self._contents[key] = (found, found.value)
        content = known[1]
        first, last = 0, len(content) - 1
        status = "200 OK"
        if "HTTP_RANGE" in environ:
            begin, _, end = environ["HTTP_RANGE"].removeprefix("bytes=").partition("-")
            if not begin.isdigit() or int(begin) > last:
                return None
            first, last = int(begin), min(last, int(end)) if end else last
            status = "206 Partial Content"
        data = content[first : last + 1]
        start_response(
            status,
            [
                ("Content-Length", str(len(data))),
                ("Content-Range", f"bytes {first}-{last}/{len(content)}"),
                ("ETag", found.etag),
                ("Last-Modified", found.last_modified_RFC1123),
                ("Accept-Ranges", "bytes"),
            ],
        )
        return [data]


@click.command()
@click.option("--milliseconds", default=0, type=click.IntRange(0), help="How late each answer comes.")
@click.option("--per-connection", default=0.0, type=click.FloatRange(0), help="MB/s; 0 is without limit.")
def main(milliseconds: int, per_connection: float) -> None:
    """Serve until standard input ends."""
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from moto.s3.models import s3_backends
    from werkzeug.serving import make_server

    backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
    backend.create_bucket(BUCKET, "us-east-1")
    per_byte = 1 / (per_connection * 1e6) if per_connection else 0.0
    layer = _Layer(DomainDispatcherApplication(create_backend_app), backend, milliseconds / 1000, per_byte)
    server = make_server("127.0.0.1", 0, layer, True, request_handler=MotoRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    click.echo(f"http://127.0.0.1:{server.server_port}")
    sys.stdin.read()


if __name__ == "__main__":
    main()
