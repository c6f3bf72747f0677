"""Mistakes of who repairs a checkpoint, or asks for its digest."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np

import ucpformat
from tests.mistakes.making import STATE, mistake, run, ucp
from ucpformat.storage.stores import restoring
from ucpformat.storage.stores.local_io import opened
from ucpformat.writer import CheckpointWriter


def flipped(path: Path) -> Path:
    """A checkpoint of which a byte is wrong, and whose keys are always the same."""
    ucpformat.save(path, STATE)
    (pack,) = (path / "packs").glob("*-0-0.pack")
    data = bytearray(pack.read_bytes())
    data[0] ^= 1
    pack.write_bytes(data)
    return path


def refusing(number: int) -> Callable[..., int]:
    """Open files, and make none."""

    def call(path: str, flags: int, *, within: int) -> int:
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return opened(path, flags, within=within)

    return call


def register() -> None:
    """List them, behind those that are listed already."""

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
        with patch.object(restoring, "opened", refusing(errno.EROFS)):
            return ucp("repair", path, "--from", place / "b.ucp")

    @mistake("a repair without the permission")
    def _(place: Path) -> str:
        ucpformat.save(place / "b.ucp", STATE)
        path = flipped(place / "a.ucp")
        with patch.object(restoring, "opened", refusing(errno.EACCES)):
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
