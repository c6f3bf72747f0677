"""The most common mistakes, and what is said about each: one sentence that names the thing, the place and the remedy.

What is said stands in ``messages.txt``, exactly; ``UCP_REWRITE_MESSAGES=1`` writes there what is said now.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from click.testing import CliRunner
from fsspec.implementations.memory import MemoryFileSystem

import ucpformat
from ucpformat.cli import main
from ucpformat.distributed.thread_group import ThreadGroup, run_threads
from ucpformat.errors import UcpError
from ucpformat.frameworks.converting import exporting
from ucpformat.frameworks.converting.out_directory import OutDirectory
from ucpformat.storage import remote, restoring
from ucpformat.writer import CheckpointWriter

MESSAGES = Path(__file__).with_name("messages.txt")
STATE: dict[str, Any] = {
    "model": {"fc1.weight": np.ones((64, 48), np.float32), "fc2.weight": np.ones((16, 64), np.float32)},
    "optim": {"state": {"fc1.weight": {"exp_avg": np.zeros((64, 48), np.float32)}}},
    "epoch": 3,
}

Mistake = Callable[[Path], str]
MISTAKES: dict[str, Mistake] = {}


def mistake(title: str) -> Callable[[Mistake], Mistake]:
    """Register what makes a mistake in a directory, and returns what was said."""

    def register(make: Mistake) -> Mistake:
        assert title not in MISTAKES
        MISTAKES[title] = make
        return make

    return register


def ucp(*arguments: object, code: int = 1) -> str:
    """What ``ucp`` says on its standard error, where it says anything."""
    done = CliRunner().invoke(main, [str(argument) for argument in arguments], catch_exceptions=False)
    assert done.exit_code == code, done.output
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if code == 2 else "\n".join(lines)  # after the usage


def said(action: Callable[[], object]) -> str:
    """What the library raises."""
    with pytest.raises(UcpError) as caught:
        action()
    return str(caught.value)


def refusing(number: int) -> Callable[..., Any]:
    """What a system call does that fails so."""

    def refuse(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


def run(place: Path) -> Path:
    """A run directory with three checkpoints."""
    for step in (10, 20, 30):
        ucpformat.save(place / f"step-{step}.ucp", STATE, step=step)
    return place


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
        return ucpformat.save(place / "a.ucp", {"rng": ucpformat.PerRank(group.rank)}, group=group)

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


@mistake("a setting that the kind does not have")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    return ucp("convert", place / "a.ucp", place / "b.dcp", "--set", "stage=3")


@mistake("a kind that is misspelt")
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


def flipped(path: Path) -> Path:
    """A checkpoint of which a byte is wrong, and whose keys are always the same."""
    ucpformat.save(path, STATE)
    (pack,) = (path / "packs").glob("*-0-0.pack")
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.write_bytes(data)
    return path


@mistake("a repair of what is not there")
def _(place: Path) -> str:
    return ucp("repair", run(place / "run") / "step-3.ucp", "--from", place / "run" / "step-10.ucp")


@mistake("a repair from what is not there")
def _(place: Path) -> str:
    return ucp("repair", flipped(place / "a.ucp"), "--from", place / "nowhere.ucp")


@mistake("a repair from nothing")
def _(place: Path) -> str:
    return ucp("repair", flipped(place / "a.ucp"), code=2)


@mistake("a repair from another model")
def _(place: Path) -> str:
    ucpformat.save(place / "b.ucp", {"model": {"wte": np.ones((4, 4), np.float32)}})
    return ucp("repair", flipped(place / "a.ucp"), "--from", place / "b.ucp")


@mistake("a repair from a step that has other bytes")
def _(place: Path) -> str:
    model = {name: tensor + 1 for name, tensor in STATE["model"].items()}
    ucpformat.save(place / "b.ucp", {**STATE, "model": model})
    return ucp("repair", flipped(place / "a.ucp"), "--from", place / "b.ucp")


@mistake("a repair of a directory that may only be read")
def _(place: Path) -> str:
    ucpformat.save(place / "b.ucp", STATE)
    path = flipped(place / "a.ucp")
    with patch.object(restoring, "os", Refusing(errno.EROFS)):
        return ucp("repair", path, "--from", place / "b.ucp")


@mistake("a repair without the permission")
def _(place: Path) -> str:
    ucpformat.save(place / "b.ucp", STATE)
    path = flipped(place / "a.ucp")
    with patch.object(restoring, "os", Refusing(errno.EACCES)):
        return ucp("repair", path, "--from", place / "b.ucp")


@mistake("a repair of a damaged root document, from another checkpoint")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    root = place / "a.ucp" / "ucp.json"
    root.write_bytes(root.read_bytes()[:100])
    return ucp("repair", place / "a.ucp", "--from", place / "nowhere.ucp")


@mistake("a repair of a checkpoint without its root document")
def _(place: Path) -> str:
    ucpformat.save(place / "a.ucp", STATE)
    shutil.copytree(place / "a.ucp", place / "b.ucp")
    (place / "a.ucp" / "ucp.json").unlink()
    return ucp("repair", place / "a.ucp", "--from", place / "b.ucp")


@mistake("another digest than the checkpoint has")
def _(place: Path) -> str:
    with CheckpointWriter(place / "a.ucp", [], attempt="x") as writer:
        writer.set_value("epoch", 3)
    return ucp("digest", place / "a.ucp", "--check", "sha256:" + "0" * 64)


@mistake("one digest for two checkpoints")
def _(place: Path) -> str:
    run(place / "run")
    paths = (place / "run" / "step-10.ucp", place / "run" / "step-20.ucp")
    return ucp("digest", *paths, "--check", "sha256:" + "0" * 64, code=2)


class Refusing:
    """The module ``os``, where files cannot be made."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __getattr__(self, name: str) -> Any:
        found = getattr(os, name)

        def call(path: str, flags: int, *rest: Any, **options: Any) -> Any:
            if flags & os.O_CREAT:
                raise OSError(self._number, os.strerror(self._number))
            return found(path, flags, *rest, **options)

        return call if name == "open" else found


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
