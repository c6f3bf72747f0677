"""Classic checkpoints of Megatron-LM: a directory of each model-parallel rank, ``mp_rank_TT[_PPP][_EEE]``.

Source: Megatron-LM, ``megatron/training/checkpointing.py`` (``get_checkpoint_name``, ``ensure_directory_exists``):
``model_optim_rng.pt``, and ``distrib_optim.pt`` of a distributed optimizer, below ``iter_0001000`` or ``release``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ucpformat.errors import error
from ucpformat.tensor_files.source_files import SourceFiles

__all__ = ["MODEL", "OPTIMIZER", "ClassicDirectory", "detect", "directory_name"]

MODEL: Final = "model_optim_rng.pt"
OPTIMIZER: Final = "distrib_optim.pt"
_LATEST: Final = "latest_checkpointed_iteration.txt"
_MAX_LATEST: Final = 64
_RANK: Final = re.compile(r"mp_rank_(\d{2,4})(?:_(\d{3,4}))?(?:_(\d{3,4}))?")


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` holds the directories of ranks, or names an iteration that does; never raises."""
    root = Path(path)
    return root.is_dir() and (_has_ranks(root) or (root / _LATEST).is_file() or bool(_iterations(root)))


def _iterations(root: Path) -> list[str]:
    """Return the iterations of a run directory."""
    return sorted(entry.name for entry in root.glob("iter_*") if entry.is_dir() and _has_ranks(entry))


def _has_ranks(root: Path) -> bool:
    return any(_RANK.fullmatch(entry.name) and (entry / MODEL).is_file() for entry in root.iterdir())


@dataclass(frozen=True, slots=True)
class ClassicDirectory:
    """``ranks``: the name of each directory, by the numbers in it; ``optimizers``: those with a distributed one."""

    files: SourceFiles
    ranks: Mapping[tuple[int, ...], str]
    optimizers: frozenset[tuple[int, ...]]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> ClassicDirectory:
        """List the ranks of ``path``, or of the iteration that it names.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE`` for a directory that is none; ``UCP-E-KEY`` for an iteration that is
                no number.
        """
        root = _iteration(Path(path))
        ranks: dict[tuple[int, ...], str] = {}
        for entry in sorted(root.iterdir()):
            if (match := _RANK.fullmatch(entry.name)) and entry.is_dir():
                if entry.is_symlink():
                    raise error("UCP-E-LINK", "the directory of a rank is a link", at=str(entry))
                ranks[tuple(int(part) for part in match.groups() if part is not None)] = entry.name
        if not ranks:
            raise error("UCP-E-SOURCE", f"there is no mp_rank_*/{MODEL}", at=str(root))
        lengths = {len(rank) for rank in ranks}
        if len(lengths) > 1:
            raise error("UCP-E-SOURCE", "directories of ranks of two saves, with other numbers", at=str(root))
        for name in ranks.values():
            if not (root / name / MODEL).is_file():
                raise error("UCP-E-SOURCE", "the file is missing", at=f"{name}/{MODEL}")
        optimizers = frozenset(rank for rank, name in ranks.items() if (root / name / OPTIMIZER).is_file())
        return cls(SourceFiles(root), ranks, optimizers)


def directory_name(rank: tuple[int, ...]) -> str:
    """Return what the directory of a rank is called."""
    first, *rest = rank
    return "_".join([f"mp_rank_{first:02d}", *(f"{number:03d}" for number in rest)])


def _iteration(root: Path) -> Path:
    latest = root / _LATEST
    if _has_ranks(root):
        return root
    if not latest.is_file():
        if there := _iterations(root):
            raise error(
                "UCP-E-SOURCE",
                f"it is missing, which names the iteration; give the directory of one, such as {there[-1]}",
                at=_LATEST,
            )
        return root
    text = SourceFiles(root).read(_LATEST, _MAX_LATEST).decode("utf-8", "replace").strip()
    if text == "release":
        if (root / text).is_symlink():
            raise error("UCP-E-LINK", "the release is a link; give the directory it leads to", at=text)
        return root / text
    if not text.isdecimal() or not text.isascii():
        raise error("UCP-E-KEY", f"the iteration {text[:50]!r} is no number", at=str(latest))
    folder = root / f"iter_{int(text):07d}"
    if not folder.is_dir() or folder.is_symlink():
        raise error("UCP-E-SOURCE", f"{latest.name} names {folder.name}, which is not there", at=str(latest))
    return folder
