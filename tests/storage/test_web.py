"""Reading from web servers, those that send parts of objects and those that do not."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import ucpformat
from ucpformat.cli import main
from ucpformat.errors import UcpError

pytest.importorskip("aiohttp", reason="fsspec reads from web servers by it")

Serve = Callable[[type[SimpleHTTPRequestHandler]], str]
WEIGHT = np.arange(5_000, dtype=np.float32)


class WholeObjects(SimpleHTTPRequestHandler):
    """As python -m http.server: ignores ranges."""

    sent = 0

    def log_message(self, *_: object) -> None:
        pass


class Ranges(WholeObjects):
    """Sends the parts that are asked for."""

    def do_GET(self) -> None:
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        path = Path(self.translate_path(self.path))
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        content = path.read_bytes()
        part = content[int(wanted[1]) : int(wanted[2]) + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header(
            "Content-Range", f"bytes {wanted[1]}-{int(wanted[1]) + len(part) - 1}/{len(content)}"
        )
        self.end_headers()
        self.wfile.write(part)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """The URL of a checkpoint behind a server that answers so."""
    ucpformat.save(tmp_path / "served" / "a.ucp", {"w": WEIGHT, "small": np.ones(3)}, step=7)
    servers = []

    def run(handler: type[SimpleHTTPRequestHandler]) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(tmp_path / "served")))
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/a.ucp"

    yield run
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_server_that_sends_parts(serve: Serve) -> None:
    url = serve(Ranges)
    with ucpformat.open(url) as checkpoint:
        assert checkpoint.step == 7
        assert np.array_equal(checkpoint["w"]["value"][100:200], WEIGHT[100:200])
    assert np.array_equal(ucpformat.load(url)["w"], WEIGHT)
    assert not [problem for problem in ucpformat.validate(url) if problem.severity == "error"]


def test_a_server_that_sends_whole_objects_is_named(serve: Serve) -> None:
    """Documents are whole objects, and are read; data are not, and nothing is called damaged."""
    url = serve(WholeObjects)
    with ucpformat.open(url) as checkpoint:
        assert list(checkpoint) == ["small", "w"]
        with pytest.raises(UcpError) as caught:
            checkpoint["w"]["value"].read()
    assert (caught.value.code, caught.value.path) == ("UCP-E-STORE", url)
    assert caught.value.message == (
        "the server ignores range requests, and sends whole objects; copy the checkpoint with "
        "`ucp cp URL PATH`, and use the copy"
    )
    problems = {(problem.code, problem.message) for problem in ucpformat.validate(url)}
    assert problems == {(caught.value.code, caught.value.message)}


def test_what_is_missing_is_missing(serve: Serve, tmp_path: Path) -> None:
    url = serve(Ranges)
    (pack,) = (tmp_path / "served" / "a.ucp" / "packs").iterdir()
    with ucpformat.open(url) as checkpoint:
        pack.unlink()
        with pytest.raises(UcpError) as caught:
            checkpoint["w"]["value"].read()
    assert caught.value.code == "UCP-E-MISSING"


@pytest.mark.parametrize("handler", [Ranges, WholeObjects])
def test_a_copy_comes_from_either(
    serve: Serve, tmp_path: Path, handler: type[SimpleHTTPRequestHandler]
) -> None:
    url = serve(handler)
    done = CliRunner().invoke(main, ["cp", url, str(tmp_path / "b.ucp")])
    assert done.exit_code == 0, done.output
    assert np.array_equal(ucpformat.load(tmp_path / "b.ucp")["w"], WEIGHT)
