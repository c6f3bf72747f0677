"""What is done to the files of a checkpoint that a framework wrote, and how an importer has to meet it.

A harm changes one file in place. `is_found` converts a harmed copy and says what has to come of it: a registered
refusal that names the file, nothing run, nothing written that looks like a checkpoint.
"""

from __future__ import annotations

import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.errors import UcpError

__all__ = ["Evil", "Harm", "flip", "is_found", "poison", "remove", "replace_pickle", "truncate"]

Harm = Callable[[Path], None]
_EVIL = "UCP_EVIL"


class Evil:
    """An object whose pickle runs a command: it would make the file that the environment names."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, (f"touch {os.environ[_EVIL]}",))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size * 2 // 3)


def flip(path: Path) -> None:
    """One bit of a storage, or of the pickle where there is none.

    torch pads the header before it with ``FB``, a length and as many bytes.
    """
    data = bytearray(path.read_bytes())
    names = (b"/data/1FB", b"/data/0FB", b"/data.pklFB")
    end = next(place + len(name) for name in names if (place := data.find(name)) >= 0)
    start = end + 2 + int.from_bytes(data[end : end + 2], "little")
    data[start + 20] ^= 1
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


def poison(path: Path) -> None:
    """Put an evil object into what ``torch.save`` wrote."""
    tree = torch.load(path, weights_only=False)
    tree["extra"] = Evil()
    torch.save(tree, path)


def replace_pickle(path: Path) -> None:
    """Put an evil pickle in the place of the file."""
    path.write_bytes(pickle.dumps(Evil()))


def is_found(
    source: Path,
    source_format: str,
    victim: str,
    harm: Harm,
    code: str,
    scratch: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    named: str | None = None,
) -> UcpError:
    """Harm the file ``victim`` of a copy of ``source``, convert that, and return the refusal, which has ``code``.

    ``named`` is what the refusal has to name, ``victim`` unless given.
    """
    monkeypatch.setenv(_EVIL, str(scratch / "evil"))
    copy = scratch / "copy"
    shutil.copytree(source, copy)
    harm(copy / victim)
    with pytest.raises(UcpError) as refusal:
        convert_checkpoint(copy, scratch / "out.ucp", source_format=source_format, destination_format="ucp")
    assert refusal.value.code == code, refusal.value
    assert (named or victim) in str(refusal.value)
    assert not (scratch / "evil").exists()
    assert not (scratch / "out.ucp" / "ucp.json").exists()
    return refusal.value
