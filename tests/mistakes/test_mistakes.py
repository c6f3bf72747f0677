"""The most common mistakes, and what is said about each: one sentence that names the thing, the place and the remedy.

What is said stands in ``messages.txt``, exactly; ``UCP_REWRITE_MESSAGES=1`` writes there what is said now.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

import ucpformat
from tests.distributed.thread_group import ThreadGroup, run_threads
from tests.mistakes import repairs
from tests.mistakes.making import MISTAKES, STATE, mistake, refusing, run, said, ucp
from ucpformat.conversion.engine import exporting
from ucpformat.conversion.engine.out_directory import OutDirectory
from ucpformat.storage.stores.remote import store as remote

MESSAGES = Path(__file__).with_name("messages.txt")


def torch_files(place: Path) -> Path:
    """A directory as torch.distributed.checkpoint leaves it, by its names."""
    place.mkdir()
    for name in (".metadata", "__0_0.distcp"):
        (place / name).touch()
    return place


@mistake("a path that is not there")
def _(place: Path) -> str:
    run(place / "run")
    return ucp("inspect", place / "run" / "step-3.ucp")


@mistake("a directory that is not there")
def _(place: Path) -> str:
    return ucp("validate", place / "nowhere" / "step-3.ucp")


@mistake("a run directory where a checkpoint is wanted")
def _(place: Path) -> str:
    return ucp("inspect", run(place / "run"))


@mistake("a run directory to convert")
def _(place: Path) -> str:
    return ucp("convert", run(place / "run"), place / "out.dcp")


@mistake("a run directory to load")
def _(place: Path) -> str:
    return said(lambda: ucpformat.load(run(place / "run")))


@mistake("a checkpoint where a run directory is wanted")
def _(place: Path) -> str:
    return ucp("ls", run(place / "run") / "step-10.ucp")


@mistake("a run directory that is not there")
def _(place: Path) -> str:
    return ucp("gc", place / "nowhere")


@mistake("a checkpoint of torch.distributed.checkpoint, opened")
def _(place: Path) -> str:
    return said(lambda: ucpformat.open(torch_files(place / "step-100")))


@mistake("a file of torch.save, loaded")
def _(place: Path) -> str:
    (place / "model.pt").touch()
    return said(lambda: ucpformat.load(place / "model.pt"))


@mistake("a file in the checkpoint instead of its directory")
def _(place: Path) -> str:
    return ucp("inspect", run(place / "run") / "step-10.ucp" / "ucp.json")


@mistake("a save that was killed, opened")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    (place / "a.ucp" / "ucp.json").unlink()
    return said(lambda: ucpformat.open(place / "a.ucp"))


@mistake("an export that was killed, converted")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    with patch.object(OutDirectory, "finish", side_effect=KeyboardInterrupt):
        ucp("convert", place / "a.ucp", place / "b.dcp", code=130)
    return ucp("convert", place / "b.dcp", place / "c.ucp")


@mistake("a conversion that is interrupted")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    with patch.object(OutDirectory, "finish", side_effect=KeyboardInterrupt):
        return ucp("convert", place / "a.ucp", place / "b.dcp", code=130)


@mistake("a name that is not in the checkpoint")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    with ucpformat.open(place / "a.ucp") as checkpoint, pytest.raises(KeyError) as caught:
        checkpoint["fc3.weight"]
    return str(caught.value.args[0])


@mistake("a glob that matches no atom")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("inspect", place / "a.ucp", "--atoms", "fc3*")


@mistake("a model with another name")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return said(
        lambda: ucpformat.load(place / "a.ucp", {"model": {"fc3.weight": np.ones((64, 48), np.float32)}})
    )


@mistake("a model with another shape")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    model = {"fc1.weight": np.ones((48, 64), np.float32), "fc2.weight": np.ones((16, 64), np.float32)}
    return said(lambda: ucpformat.load(place / "a.ucp", {"model": model}))


@mistake("a model with another data type")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    model = {"fc1.weight": np.ones((64, 48), np.float16), "fc2.weight": np.ones((16, 64), np.float32)}
    return said(lambda: ucpformat.load(place / "a.ucp", {"model": model}))


@mistake("a world size that the entries of ranks do not fit")
def _(place: Path) -> str:
    def save(group: ThreadGroup) -> str:
        return ucpformat.save(place / "a.ucp", {"rng": ucpformat.PerRank(group.rank)}, group=group).digest

    def load(group: ThreadGroup) -> dict[str, Any]:
        return ucpformat.load(place / "a.ucp", {"rng": None}, group=group)

    run_threads(4, save)
    return str(run_threads(2, load)[0])


@mistake("a model of two layers, and patterns for one")
def _(place: Path) -> str:
    layers = {f"model.layers.{layer}.self_attn.q_proj.weight": np.ones((64, 64)) for layer in range(2)}
    ucpformat.save(place / "a.ucp", {"model": layers})
    return ucp("plan", "--from", place / "a.ucp", "--to", "llama", "--set", "tp=4")


@mistake("patterns that are misspelt")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("plan", "--from", place / "a.ucp", "--to", "lama")


@mistake("a full disk while saving")
def _(place: Path) -> str:
    with patch("os.pwritev", refusing(errno.ENOSPC)):
        return said(lambda: ucpformat.save(place / "a.ucp", STATE))


@mistake("a full disk while exporting")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    with patch.object(exporting._Counted, "write", refusing(errno.ENOSPC)):
        return ucp("convert", place / "a.ucp", place / "b.pt")


@mistake("no permission to read")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    with patch("os.open", refusing(errno.EACCES)):
        return ucp("inspect", place / "a.ucp")


@mistake("no permission to write")
def _(place: Path) -> str:
    with patch("os.mkdir", refusing(errno.EACCES)):
        return said(lambda: ucpformat.save(place / "a.ucp", STATE))


@mistake("a place that is taken")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return said(lambda: ucpformat.save(place / "a.ucp", STATE))


@mistake("a place where other files lie")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    (place / "b.ucp").mkdir()
    (place / "b.ucp" / "notes.txt").touch()
    return ucp("cp", place / "a.ucp", place / "b.ucp")


@mistake("torch is not installed")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    with patch.dict(sys.modules, {"torch": None}):
        return ucp("convert", place / "a.ucp", place / "b.dcp")


@mistake("a package for a URL is not installed")
def _(place: Path) -> str:
    with patch("fsspec.core.url_to_fs", side_effect=ImportError("Install s3fs to access S3")):
        return ucp("inspect", "s3://bucket/a.ucp")


@mistake("a server without range requests")
def _(place: Path) -> str:
    url = "memory://server/a.ucp"
    ucpformat.save(url, STATE)

    def whole(self: MemoryFileSystem, path: str, start: int | None = None, end: int | None = None) -> bytes:
        return bytes(self.store[self._strip_protocol(path)].getvalue())

    with patch.object(MemoryFileSystem, "cat_file", whole):
        return said(lambda: ucpformat.load(url))


@mistake("an archive to save into")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("cp", place / "a.ucp", f"zip://a.ucp::{place}/new.zip")


@mistake("a protocol that nobody knows")
def _(place: Path) -> str:
    return ucp("inspect", "s4://bucket/a.ucp")


@mistake("a bucket that is not there")
def _(place: Path) -> str:
    missing = patch.object(MemoryFileSystem, "pipe_file", side_effect=FileNotFoundError("bucket"))
    with missing, patch.object(remote.RemoteStore, "_make_directory"):
        return said(lambda: ucpformat.save("memory://bucket/a.ucp", STATE))


@mistake("source and destination swapped")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("convert", place / "b.dcp", place / "a.ucp")


@mistake("a suffix against --to")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("convert", place / "a.ucp", place / "b.safetensors", "--to", "dcp")


@mistake("nothing that says what to write")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("convert", place / "a.ucp", place / "b")


@mistake("an optimizer into safetensors")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("convert", place / "a.ucp", place / "b.safetensors")


@mistake("a --drop that matches nothing")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("convert", place / "a.ucp", place / "b.safetensors", "--drop", "*/exp_avgs")


@mistake("a setting that the format does not have")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("convert", place / "a.ucp", place / "b.dcp", "--set", "stage=3")


@mistake("a format that is misspelt")
def _(place: Path) -> str:
    return ucp("convert", place / "a", place / "b", "--from", "deepsped", code=2)


@mistake("a command that is misspelt")
def _(place: Path) -> str:
    return ucp("validat", place / "a", code=2)


@mistake("an option that is misspelt")
def _(place: Path) -> str:
    return ucp("inspect", place / "a", "--formt", "json", code=2)


@mistake("a value of --format that is misspelt")
def _(place: Path) -> str:
    return ucp("inspect", place / "a", "--format", "jsn", code=2)


@mistake("a flipped byte, read")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    (pack,) = (place / "a.ucp" / "packs").iterdir()
    content = bytearray(pack.read_bytes())
    content[5] ^= 1
    pack.write_bytes(content)
    return said(lambda: ucpformat.load(place / "a.ucp"))


@mistake("a file of the checkpoint that is gone")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    shutil.rmtree(place / "a.ucp" / "packs")
    return ucp("diff", place / "a.ucp", place / "a.ucp", "--bytes")


@mistake("a root document that is cut off")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    root = place / "a.ucp" / "ucp.json"
    root.write_bytes(root.read_bytes()[:100])
    return ucp("inspect", place / "a.ucp")


repairs.register()


def steady(text: str, place: Path) -> str:
    """What is said, without what differs from run to run."""
    text = re.sub(r"(?<=sha256:)(?!0{64})[0-9a-f]{64}", "DIGEST", text.replace(str(place), "DIR"))
    return re.sub(r"\b[0-9a-f]{8}(?=-)", "ATTEMPT", text).strip()


def read_messages() -> dict[str, str]:
    found = {}
    for block in MESSAGES.read_text(encoding="utf-8").split("\n\n"):
        title, _, text = block.strip().partition("\n")
        found[title.removeprefix("# ")] = text
    return found


@pytest.mark.parametrize("title", MISTAKES)
def test_what_is_said(title: str, tmp_path: Path) -> None:
    MemoryFileSystem.store.clear()
    text = steady(MISTAKES[title](tmp_path), tmp_path)
    if os.environ.get("UCP_REWRITE_MESSAGES"):
        told = read_messages() if MESSAGES.exists() else {}
        told[title] = text
        blocks = [f"# {name}\n{told[name]}" for name in MISTAKES if name in told]
        MESSAGES.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
        return
    assert text == read_messages()[title]


def test_every_message_is_of_a_mistake() -> None:
    assert list(read_messages()) == list(MISTAKES)
    assert len(MISTAKES) > 40
