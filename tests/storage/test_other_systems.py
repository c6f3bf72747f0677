"""What other systems lack, taken away before the library is imported: macOS saves and reads, Windows reads.

This is emulation on the system that runs the tests; nothing here has met a real macOS or Windows.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.builders import GZIP, STORAGES, Tensor, save
from ucpformat.storage.stores import urls

STATE = {
    ("w", "value"): Tensor(np.arange(1 << 20, dtype=np.float32).reshape(64, -1), "float32"),
    ("w", "step"): Tensor(np.array(7, np.int64), "int64"),
    ("z", "value"): Tensor(np.arange(99, dtype=np.int32), "int32", GZIP),
}

PREPARED = """
import asyncio, concurrent.futures, ctypes, os, shutil, sys, tempfile
import awscrt.checksums, fsspec.implementations.local, jsonschema, ml_dtypes, numcodecs, numpy, referencing
sys.path.insert(0, REPOSITORY)

def without(*names):
    for name in names:
        if hasattr(os, name):
            delattr(os, name)
"""

MACOS = """
without("preadv", "pwritev", "posix_fallocate", "posix_fadvise", "sched_getaffinity", "O_DIRECT", "O_TMPFILE")
sys.platform = "darwin"
real_open = os.open

def opened(path, *arguments, **options):
    assert not str(path).startswith("/proc"), path
    return real_open(path, *arguments, **options)

os.open = opened
os.supports_dir_fd.add(opened)
"""

WINDOWS = """
sys.modules["fcntl"] = sys.modules["resource"] = None
without("pread", "preadv", "pwrite", "pwritev", "readv", "writev", "fork", "register_at_fork", "link", "fchmod")
without("posix_fallocate", "posix_fadvise", "sched_getaffinity", "fstatvfs", "statvfs", "getuid", "geteuid", "uname")
without("O_CLOEXEC", "O_DIRECT", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_TMPFILE", "O_SYNC", "O_DSYNC")
os.O_BINARY = os.O_NOINHERIT = 0
os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks = set(), set(), set()
real_open, real_cdll = os.open, ctypes.CDLL

def opened(path, *arguments, dir_fd=None, **options):
    assert dir_fd is None, "dir_fd unavailable on this platform"
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", path)
    return real_open(path, *arguments, **options)

def library(name, *arguments, **options):
    assert name is not None, "there is no library of the process itself"
    return real_cdll(name, *arguments, **options)

os.open, ctypes.CDLL = opened, library
sys.platform = "win32"
"""

READ = """
import ucpformat as ucp
expected = numpy.arange(1 << 20, dtype=numpy.float32).reshape(64, -1)

def check(path):
    assert ucp.validate(path) == [], ucp.validate(path)
    with ucp.open(path) as checkpoint:
        assert numpy.array_equal(checkpoint["w"]["value"][3:60], expected[3:60])
        assert numpy.array_equal(checkpoint["w"]["value"].read(), expected)
        assert [numpy.array_equal(part, expected[box.offset[0]:box.stop[0]])
                for box, part in checkpoint["w"]["value"].mapped_parts()]
        assert checkpoint["z"]["value"][98] == 98
        whole = {("w", "value"): numpy.empty_like(expected), ("w", "step"): numpy.empty((), numpy.int64)}
        checkpoint.load(whole)
        assert numpy.array_equal(whole["w", "value"], expected) and whole["w", "step"] == 7

for path in sys.argv[1:3]:
    check(path)
"""


def run(program: str, *arguments: object) -> None:
    repository = str(Path(__file__).parents[2])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            PREPARED.replace("REPOSITORY", repr(repository)) + program,
            *map(str, arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "good\n"), done.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = [tmp_path_factory.mktemp("saved") / storage for storage in STORAGES]
    for path, storage in zip(paths, STORAGES, strict=True):
        save(path, STATE, storage=storage, chunk_bytes=1 << 20)
    return paths


def test_windows_reads_and_validates_and_refuses_to_save(saved: list[Path], tmp_path: Path) -> None:
    """Both storages; links are refused where the system cannot refuse them itself."""
    link = tmp_path / "linked"
    save(link, STATE)
    (pack,) = sorted((link / "packs").iterdir())[:1]
    pack.rename(tmp_path / "elsewhere")
    pack.symlink_to(tmp_path / "elsewhere")
    program = """
try:
    ucp.CheckpointWriter(sys.argv[3], [])
except ucp.UcpError as refusal:
    assert refusal.code == "UCP-E-STORE" and "save to an object store" in str(refusal), refusal
else:
    raise AssertionError("nothing was refused")
assert not os.path.exists(os.path.dirname(sys.argv[3]))
(problem, *_) = ucp.validate(sys.argv[4])
assert problem.code == "UCP-E-LINK", problem
print("good")
"""
    run(WINDOWS + READ + program, *saved, tmp_path / "new" / "c", link)


def test_macos_saves_reads_and_validates(saved: list[Path], tmp_path: Path) -> None:
    program = """
for storage in ("packed", "plain"):
    path = os.path.join(sys.argv[3], storage)
    atoms = [
        ucp.AtomSpec("w", {"value": ucp.SlotSpec("float32", (64, 1 << 14)), "step": ucp.SlotSpec("int64", ())}),
        ucp.AtomSpec("z", {"value": ucp.SlotSpec("int32", (99,))}),
    ]
    with ucp.CheckpointWriter(path, atoms, storage=storage, chunk_bytes=1 << 20) as writer:
        writer.submit("w", "value", expected)
        writer.write("w", "step", numpy.array(7))
        writer.write("z", "value", numpy.arange(99, dtype=numpy.int32))
    check(path)
    try:
        ucp.CheckpointWriter(path, atoms)
    except ucp.UcpError as refusal:
        assert refusal.code == "UCP-E-EXISTS", refusal
    else:
        raise AssertionError("nothing was refused")
print("good")
"""
    run(MACOS + READ + program, *saved, tmp_path)


def test_paths_of_windows_are_local() -> None:
    assert urls.local_path("C:\\runs\\step-1.ucp") == "C:\\runs\\step-1.ucp"
    assert urls.local_path("C:/runs/step-1.ucp") == "C:/runs/step-1.ucp"
    assert urls.local_path("\\\\server\\share\\step-1.ucp") == "\\\\server\\share\\step-1.ucp"
    assert urls.local_path("file:///C:/runs") == "/C:/runs"
    with patch.object(urls, "_IS_WINDOWS", True):
        assert urls.local_path("file:///C:/runs") == "C:/runs"
        assert urls.local_path("file:///runs") == "/runs"
    assert urls.local_path("s3://bucket/C:/runs") is None
