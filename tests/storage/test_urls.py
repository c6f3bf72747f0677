"""URLs by which checkpoints are read and saved, and those by which they can only be read."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pytest
from click.testing import CliRunner
from fsspec.registry import known_implementations

import ucpformat
from ucpformat.cli import main
from ucpformat.copying import copy_checkpoint
from ucpformat.errors import UcpError
from ucpformat.storage.stores.local_objects import LocalObjects
from ucpformat.storage.stores.urls import local_path, name_of, open_store, refuse_target

STATE: dict[str, Any] = {"w": np.arange(5000.0), "n": 7}


@pytest.mark.parametrize(
    ("url", "path", "name"),
    [
        ("a/b.ucp", "a/b.ucp", "b.ucp"),
        ("file:///a/b.ucp", "/a/b.ucp", "b.ucp"),
        ("local:///a/b.ucp/", "/a/b.ucp/", "b.ucp"),
        ("s3://bucket/a/b.ucp", None, "b.ucp"),
        ("simplecache::s3://bucket/b.ucp", None, "b.ucp"),
        ("zip://run/b.ucp::s3://bucket/all.zip", None, "b.ucp"),
        ("dir::file:///a/b.ucp", None, "b.ucp"),
    ],
)
def test_the_parts_of_a_url(url: str, path: str | None, name: str) -> None:
    assert (local_path(url), name_of(url)) == (path, name)


def test_local_urls_are_local_paths(tmp_path: Path) -> None:
    """Through fsspec nothing would be synced."""
    for protocol in ("file", "local"):
        store = open_store(f"{protocol}://{tmp_path}/c")
        assert isinstance(store, LocalObjects)
        assert store.url == f"{tmp_path}/c"
        ucpformat.save(f"{protocol}://{tmp_path}/{protocol}.ucp", STATE)
        assert ucpformat.load(tmp_path / f"{protocol}.ucp")["n"] == 7
    with ucpformat.CheckpointManager(f"local://{tmp_path}/run") as manager:
        manager.save(1, STATE)
    assert (tmp_path / "run" / "step-1.ucp" / "ucp.json").is_file()


def test_a_tilde_is_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    (here / "~").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    monkeypatch.chdir(here)
    ucpformat.save("~/runs/a.ucp", STATE)
    ucpformat.save("./~/a.ucp", {"n": 8})  # a directory of that name
    assert (home / "runs" / "a.ucp" / "ucp.json").is_file()
    assert ucpformat.load(Path("~/runs/a.ucp"))["n"] == 7
    assert ucpformat.load("./~/a.ucp")["n"] == ucpformat.load(here / "~" / "a.ucp")["n"] == 8
    for name in ("b.safetensors", "b.ucp"):
        found = CliRunner().invoke(main, ["convert", "~/runs/a.ucp", f"~/{name}", "--drop", "values/*"])
        assert found.exit_code == 0, found.output
        assert (home / name).exists()
    assert CliRunner().invoke(main, ["convert", "~/b.safetensors", "~/c.ucp"]).exit_code == 0
    assert np.array_equal(ucpformat.load("~/c.ucp")["model"]["w"], STATE["w"])
    with ucpformat.CheckpointManager("~/run") as manager:
        manager.save(1, STATE)
        assert Path(manager.path(1)) == home / "run" / "step-1.ucp"
    assert sorted(path.name for path in here.iterdir()) == ["~"]


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_are_read_by_many_threads(tmp_path: Path, kind: str) -> None:
    """An archive is one file with one place in it, which threads would move under one another."""
    state = {f"w{number}": np.full((300, 40), number, np.float32) for number in range(40)}
    ucpformat.save(tmp_path / "in" / "a.ucp", state, storage="plain", chunk_bytes=4096)
    url = f"{kind}://a.ucp::{shutil.make_archive(str(tmp_path / 'all'), kind, tmp_path / 'in', 'a.ucp')}"
    found = ucpformat.load(url)
    assert all(np.array_equal(found[name], data) for name, data in state.items())


@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_archives_are_read(tmp_path: Path, kind: str) -> None:
    ucpformat.save(tmp_path / "in" / "a.ucp", STATE, step=3)
    archive = shutil.make_archive(str(tmp_path / "all"), kind, tmp_path / "in", "a.ucp")
    url = f"{kind}://a.ucp::{archive}"
    with ucpformat.open(url) as checkpoint:
        assert (checkpoint.step, checkpoint.path) == (3, url)
        assert np.array_equal(checkpoint["w"]["value"][10:20], STATE["w"][10:20])
    assert np.array_equal(ucpformat.load(url)["w"], STATE["w"])
    assert ucpformat.validate(url) == []
    copy_checkpoint(url, tmp_path / "b.ucp")
    assert ucpformat.validate(tmp_path / "b.ucp") == []


@pytest.mark.parametrize(
    "url",
    [
        "zip://a.ucp::{}/new.zip",
        "zip://a.ucp::{}/old.zip",
        "tar://a.ucp::{}/new.tar",
        "libarchive://a.ucp::{}/new.7z",
        "http://127.0.0.1:9/a.ucp",
        "https://127.0.0.1:9/a.ucp",
        "github://someone:something@main/a.ucp",
        "git://a.ucp",
        "hf://someone/something/a.ucp",
        "reference://a.ucp",
        "data://a.ucp",
        "filecache::memory://a.ucp",
        "blockcache::memory://a.ucp",
        "jupyter://a.ucp",
        "ftp://127.0.0.1:9/a.ucp",
    ],
)
def test_what_cannot_take_a_save_is_refused_before_anything_is_written(tmp_path: Path, url: str) -> None:
    ucpformat.save(tmp_path / "a.ucp", STATE)
    shutil.make_archive(str(tmp_path / "old"), "zip", tmp_path / "a.ucp")
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    target = url.format(tmp_path)
    attempts: list[Callable[[], object]] = [
        lambda: ucpformat.save(target, STATE),
        lambda: ucpformat.CheckpointWriter(target, []),
        lambda: ucpformat.CheckpointManager(target),
        lambda: copy_checkpoint(tmp_path / "a.ucp", target),
    ]
    said = f"nothing can be saved through {target.partition(':')[0]}://, since "
    for attempt in attempts:
        with pytest.raises(UcpError, match=said) as caught:
            attempt()
        assert caught.value.code == "UCP-E-STORE"
    refused = CliRunner().invoke(main, ["convert", str(tmp_path / "a.ucp"), target, "--to", "ucp"])
    assert refused.exit_code == 1
    assert refused.stderr.startswith(f"error UCP-E-STORE at {target}: {said}")
    assert before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}


def test_every_protocol_of_fsspec_was_looked_at() -> None:
    """A new one is read up on before it is listed: can it create exclusively, list, read back and remove?"""
    takes_saves = {
        *("file", "local", "memory", "dir", "simplecache"),
        *("s3", "s3a", "gcs", "gs", "abfs", "az", "adl", "oss", "oci", "ocilake", "tos", "tosfs"),
        *("hdfs", "arrow_hdfs", "webhdfs", "dbfs", "sftp", "ssh", "smb", "webdav"),
        *("box", "dropbox", "gdrive"),
    }
    wrappers = {"async_wrapper", "asyncwrapper", "asynclocal", "generic", "dask"}
    for protocol in set(known_implementations) - wrappers:
        if protocol in takes_saves:
            refuse_target(f"{protocol}://x/a.ucp")
            continue
        with pytest.raises(UcpError, match="nothing can be saved through"):
            refuse_target(f"{protocol}://x/a.ucp")


def test_what_a_url_needs_is_said(tmp_path: Path) -> None:
    for url, message in (
        (f"zip://a.ucp::{tmp_path}/none.zip", f"there is no such file: {tmp_path}/none.zip"),
        ("nosuchprotocol://x", "Protocol not known: nosuchprotocol"),
    ):
        with pytest.raises(UcpError, match="UCP-E-STORE") as caught:
            ucpformat.open(url)
        assert message in caught.value.message
        assert str(caught.value).startswith(f"UCP-E-STORE at {url}: ")


def test_a_save_through_a_directory_of_another_file_system(tmp_path: Path) -> None:
    url = f"dir::memory://{uuid4().hex}"
    ucpformat.save(url, STATE)
    assert ucpformat.load(url)["n"] == 7
    assert ucpformat.validate(url) == []
