"""The server of the page: what it serves, to whom, and that it stops."""

from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from click.testing import CliRunner

import ucpformat as ucp
from tests.update_log.logs import LogMaker
from ucpformat.cli import main
from ucpformat.cli.view import checkpoints_of
from ucpformat.viewing.server import PageServer


@contextmanager
def served(*paths: Path) -> Iterator[PageServer]:
    checkpoints = [(path.name, ucp.open(path)) for path in paths]
    with PageServer(checkpoints) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
            for _, checkpoint in checkpoints:
                checkpoint.close()


def get(
    server: PageServer, path: str, *, method: str = "GET", **headers: str
) -> tuple[int, bytes, http.client.HTTPMessage]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), answer.headers


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "a.ucp"
    ucp.save(path, {"w": np.arange(1 << 16, dtype=np.float32)}, storage="plain")
    (path / "secret.txt").write_text("not of the checkpoint")
    (tmp_path / "outside").write_text("not of the checkpoint")
    return path


def test_it_listens_on_loopback_alone(saved: Path) -> None:
    with served(saved) as server:
        assert server.server_address[0] == "127.0.0.1"


def test_ranges_are_those_of_the_file(saved: Path) -> None:
    data = (saved / "ucp.json").read_bytes()
    with served(saved) as server:
        base = f"/{server.secret}/checkpoints/0/ucp.json"
        for asked, part in (
            ("bytes=0-9", data[:10]),
            ("bytes=5-", data[5:]),
            ("bytes=10-99999999", data[10:]),
        ):
            status, body, headers = get(server, base, Range=asked)
            assert (status, body) == (206, part)
            assert headers["Content-Range"].endswith(f"/{len(data)}")
        assert get(server, base)[:2] == (200, data)
        assert get(server, base, method="HEAD")[:2] == (200, b"")
        for asked in (f"bytes={len(data)}-", "bytes=-5", "bytes=0-1,3-4", "lines=1-2"):
            assert get(server, base, Range=asked)[0] == 416


def test_only_what_the_root_reaches_is_served(saved: Path) -> None:
    with served(saved) as server:
        base = f"/{server.secret}"
        assert get(server, f"{base}/")[0] == 200
        assert get(server, f"{base}/checkpoints/0/atoms/zarr.json")[0] == 200
        for path in (
            "/checkpoints/0/secret.txt", "/checkpoints/0/", "/checkpoints/0/atoms", "/checkpoints/0/../outside",
            "/checkpoints/0/%2e%2e/outside", "/checkpoints/0//etc/passwd", "/checkpoints/1/ucp.json", "/checkpoints/",
            "/checkpoints/0/ucp.json%00", "/page.html",
        ):  # fmt: skip
            assert get(server, f"{base}{path}")[0] == 404, path


def test_who_does_not_know_the_secret_or_comes_under_another_name_gets_nothing(saved: Path) -> None:
    with served(saved) as server:
        assert get(server, "/")[0] == 404
        assert get(server, "/checkpoints/0/ucp.json")[0] == 404
        page = f"/{server.secret}/"
        assert get(server, page, Host="evil.example")[0] == 404
        assert get(server, page, Host=f"localhost:{server.server_port}")[0] == 200
        assert get(server, page, method="POST")[0] == 501


def test_the_policy_allows_the_page_itself_alone(saved: Path) -> None:
    with served(saved) as server:
        _, _, headers = get(server, f"/{server.secret}/")
        rules = headers["Content-Security-Policy"]
        assert "default-src 'none'; script-src 'self'; style-src 'self'" in rules
        assert "unsafe" not in rules
        assert headers["X-Content-Type-Options"] == "nosniff"


def test_a_run_is_served_with_the_newest_first(tmp_path: Path) -> None:
    for step in (5, 10, 7):
        ucp.save(tmp_path / "run" / f"step-{step}.ucp", {"w": np.arange(3)}, step=step)
    names = checkpoints_of(str(tmp_path / "run"))
    assert [Path(name).name for name in names] == ["step-10.ucp", "step-7.ucp", "step-5.ucp"]
    assert checkpoints_of(names[0]) == [names[0]]


def test_what_is_neither_checkpoint_nor_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("nowhere", "empty"):
        done = CliRunner().invoke(main, ["serve", str(tmp_path / name)])
        assert done.exit_code == 1
        assert "UCP-E-NOT-FOUND" in done.stderr


@pytest.mark.distributed
def test_a_run_with_a_damaged_step_and_one_with_a_log_alone_are_served(tmp_path: Path) -> None:
    run, logged = tmp_path / "run", tmp_path / "logged"
    for step in (5, 10):
        ucp.save(run / f"step-{step}.ucp", {"w": np.arange(3.0)}, step=step)
    (run / "step-5.ucp" / "ucp.json").write_text('{"broken": ')
    LogMaker(logged / "updates.ucplog").epoch(0, 0, after=None)
    for path, told in ((run, "UCP-E-JSON"), (logged, "")):
        with subprocess.Popen(
            [sys.executable, "-m", "ucpformat", "serve", str(path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            url = process.stdout.readline().strip()
            configuration = json.loads(urlopen(f"{url}configuration.json").read())
            labels = [Path(one["label"]).name for one in configuration["checkpoints"]]
            assert labels == (["step-10.ucp", "step-5.ucp"] if path == run else [])
            assert (configuration["log"] is not None) == (path == logged)
            if path == run:
                assert urlopen(f"{url}checkpoints/1/ucp.json").read() == b'{"broken": '
                with pytest.raises(HTTPError, match="404"):
                    urlopen(f"{url}checkpoints/1/index/")
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0
            assert told in process.stderr.read()
    planned = CliRunner().invoke(main, ["serve", str(logged), "--to", "any"])
    assert "no checkpoint to plan from yet" in planned.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_the_command_stops_on_a_signal(number: int, code: int, saved: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "ucpformat", "serve", str(saved)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("http://127.0.0.1:")
        process.send_signal(number)
        assert process.wait(30) == code
