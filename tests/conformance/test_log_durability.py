"""A batch of a log, its name and the directories above are durable before the next one of its rank is created."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from ucp_conformance.connection import Connection

from tests.campaigns.power.recording import What, build, read_trace
from tests.conformance.suite import CONFORMANCE, REFERENCE

sys.path.append(str(CONFORMANCE / "mutants"))
from campaign import command_of
from defects import Defect, Edit, planted

pytestmark = [
    pytest.mark.skipif(
        shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler, and Linux"
    ),
    pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node here"),
]
COMMANDS = {"python": REFERENCE, "node": f"node {CONFORMANCE / 'drivers' / 'node' / 'driver.mjs'}"}
EPOCH = {
    "first_step": 0, "after": None, "ranks": 2, "groups": [[0]], "exactness": "bitwise",
    "tensors": [{"atom": "w", "role": "gradient", "dtype": "float32", "shape": [4]}],
    "pieces": [{"tensor": 0, "rank": rank, "offset": [2 * rank], "shape": [2]} for rank in range(2)],
    "optimizer": {"type": "ucp.sgd", "profile": {}},
}  # fmt: skip
BATCHES = 4
_NAMED_FIRST = "        linkSync(staged, path);\n        finish(fd, chunks);\n"
UNSYNCED = {
    "python": {
        "bytes": Edit("                    os.fsync(descriptor)\n", "", "LogPlace.create"),
        "name": Edit("            sync(parent)\n", "", "LogPlace.create"),
        "directory": Edit("(Path(path), is_durable=True)", "(Path(path), is_durable=False)", "LogPlace.create"),
    },
    "node": {
        "bytes": Edit("        finish(fd, chunks);\n        linkSync(staged, path);\n", _NAMED_FIRST, ""),
        "name": Edit("      syncDirectory(folder);\n    });", "    });", ""),
        "directory": Edit("      syncDirectory(dirname(made));\n", "", ""),
    },
}  # fmt: skip


def faults(command: str, directory: Path) -> list[str]:
    """Have a driver write batches of two ranks under a library that writes down what it asks of the disk.

    Returns what was not durable when a rank's next batch was begun, or when the driver said that all was done.
    """
    scope, trace = directory / "scope", directory / "trace"
    scope.mkdir()
    path = scope / "run" / "updates.ucplog"
    path.parent.mkdir()
    words = {
        "LD_PRELOAD": str(build(directory)), "UCP_TRACE": str(trace), "UCP_TRACE_SCOPE": str(scope),
        "UV_USE_IO_URING": "0",
    }  # fmt: skip
    told = " ".join(f"{name}={shlex.quote(word)}" for name, word in words.items())
    connection = Connection(f"env {told} {command}", label="traced", timeout=60.0)
    given = directory / "gradient.bin"
    given.write_bytes(bytes(range(8)))
    try:
        reply = connection.request("begin-epoch", {"path": str(path), **EPOCH})
        assert reply.kind == "result", reply
        for number in range(BATCHES):
            for rank in (0, 1):
                step = {"options": [{"lr": 0.5}], "entries": [{"piece": rank, "in": str(given)}]}
                batch = {"path": str(path), "epoch": 0, "rank": rank, "steps": [step], "values": {}}
                reply = connection.request("write-batch", batch)
                assert reply.body == {"durable_step": number + 1}, reply
        connection.shutdown()
    finally:
        connection.kill()
    return _not_durable(trace, path)


def _not_durable(trace: Path, path: Path) -> list[str]:
    """Return which batches, of which part, were not durable in time; a file is known by its number."""
    records = list(read_trace(trace))
    found: list[str] = []
    for rank in range(2):
        folder = path / "batches" / "0" / str(rank)
        files = [folder / f"{number}.batch" for number in range(BATCHES)]
        begun = []
        for file in files:
            inode = file.stat().st_ino
            # It gets its own name last, by which nothing else is created.
            begun.append(next(n for n, one in enumerate(records) if one.inode == inode))
        for number, file in enumerate(files):
            stop = begun[number + 1] if number + 1 < len(files) else len(records)
            inode, above = file.stat().st_ino, folder.stat().st_ino
            named = next(n for n, one in enumerate(records) if one.target == os.fspath(file))
            written = max(
                n
                for n, one in enumerate(records)
                if one.inode == inode and one.what in (What.WRITTEN, What.CUT, What.ALLOCATED)
            )
            synced = [(n, one.inode) for n, one in enumerate(records[:stop]) if one.what == What.SYNCED]
            if not any(n > written and one == inode for n, one in synced) or named < written:
                found.append(f"rank {rank}, batch {number}: its bytes")
            if not any(n > named and one == above for n, one in synced):
                found.append(f"rank {rank}, batch {number}: its name")
            for made in (folder, *folder.parents):
                if made == path.parent:
                    break
                if made.parent.stat().st_ino not in {one for _, one in synced}:
                    found.append(f"rank {rank}, batch {number}: the directory {made.name}")
    return found


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_batch_is_durable_before_the_next_one(tmp_path: Path, name: str) -> None:
    """UCP-W-037."""
    assert faults(COMMANDS[name], tmp_path) == []


@pytest.mark.parametrize("part", ["bytes", "name", "directory"])
@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_what_is_not_durable_is_found(tmp_path: Path, name: str, part: str) -> None:
    edit = UNSYNCED[name][part]
    defect = Defect("unsynced", name, "logs", "Does not sync.", (), (), (edit,))
    tree = tmp_path / "tree"
    tree.mkdir()
    planted(defect, tree)
    found = faults(command_of(name, tree), tmp_path)
    assert found
    assert all(part.partition(" ")[0] in one for one in found), found
