"""The files of a DeepSpeed checkpoint: which tag, which file is whose, and whether all are there.

Source: DeepSpeed 0.19.8, ``runtime/engine.py`` (``_get_ckpt_name``, ``_get_zero_ckpt_name``, ``_get_expert_ckpt_name``)
and ``runtime/pipe/module.py`` (``ckpt_layer_path``). What a file name calls ``pp_rank`` is the data-parallel rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ucpformat.errors import error
from ucpformat.frameworks.converting.source_files import SourceFiles

__all__ = ["DeepSpeedDirectory", "detect"]

_LATEST: Final = "latest"
_MAX_TAG: Final = 4096
_MODEL: Final = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_MODEL_3: Final = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER: Final = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_LAYER: Final = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")
_EXPERT: Final = re.compile(r"(?:layer_(\d+)_)?expert_(\d+)_mp_rank_(\d+)_model_states\.pt")
_EXPERT_OPTIMIZER: Final = re.compile(r"expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


def detect(path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` is a directory that DeepSpeed saved into, or one tag in it."""
    root = Path(path)
    if not root.is_dir():
        return False
    return _is_tag(root) or (root / _LATEST).is_file()


def _is_tag(root: Path) -> bool:
    return any(_MODEL.fullmatch(name) or _MODEL_3.fullmatch(name) for name in SourceFiles(root).names())


@dataclass(frozen=True, slots=True)
class DeepSpeedDirectory:
    """The files of one tag, by what they hold.

    ``model``: by (data-parallel rank, model-parallel rank); below ZeRO-3 one data-parallel rank saves for all, 0.
    ``optimizer``: the same, empty without ZeRO. ``layers`` (pipeline): by (layer, tensor-parallel rank).
    ``experts``: by (layer, expert, model-parallel rank).
    """

    files: SourceFiles
    tag: str
    model: Mapping[tuple[int, int], str]
    optimizer: Mapping[tuple[int, int], str]
    layers: Mapping[tuple[int, int], str]
    experts: Mapping[tuple[int, int, int], str]
    expert_optimizer: Mapping[tuple[int, int], str]
    is_partitioned: bool

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, is_universal: bool = False) -> DeepSpeedDirectory:
        """List the tag that ``latest`` names, or the directory itself where that is a tag.

        A universal tag may have model files for loaders of either stage; those below ZeRO-3 are listed then.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for a tag that is not there, ranks that are missing,
                and files of ZeRO-3 beside others.
        """
        root = _tag_directory(Path(path))
        files = SourceFiles(root)
        names = files.names()
        model = {(0, rank): name for (rank,), name in _by_place(names, _MODEL).items()}
        model_3 = _pairs(names, _MODEL_3)
        if model and model_3 and not is_universal:
            raise error(
                "UCP-E-SOURCE",
                f"{model[min(model)]} and {model_3[min(model_3)]} are from two saves: ZeRO-3 beside another stage",
                at=str(root),
            )
        for name in (*model.values(), *model_3.values()):
            files.size(name)  # of two forms for loaders of either stage, one is read
        found = cls(
            files,
            root.name,
            model or model_3,
            _pairs(names, _OPTIMIZER),
            _pairs(names, _LAYER),
            {
                (layer, expert, rank): name
                for (layer, expert, rank), name in _by_place(names, _EXPERT, absent=-1).items()
            },
            _pairs(names, _EXPERT_OPTIMIZER),
            bool(model_3) and not model,
        )
        if not found.model:
            raise error("UCP-E-SOURCE", "there is no *_model_states.pt: not a DeepSpeed tag", at=str(root))
        found._check_ranks()
        return found

    @property
    def data_degree(self) -> int:
        """How many data-parallel ranks saved an optimizer (or, under ZeRO-3, a model)."""
        return 1 + max(rank for rank, _ in (self.optimizer or self.model))

    @property
    def model_degree(self) -> int:
        """How many model-parallel ranks there were: pipeline stages times tensor-parallel ranks."""
        return 1 + max(rank for _, rank in self.model)

    def _check_ranks(self) -> None:
        """Refuse gaps; that ranks at the end are missing is seen from what the files say."""
        for held, what in ((self.model, "model_states"), (self.optimizer, "optim_states")):
            if not held:
                continue
            data = self.data_degree if held is self.optimizer or self.is_partitioned else 1
            for place in ((d, m) for d in range(data) for m in range(self.model_degree)):
                if place not in held:
                    raise missing(*place, what, self.tag)
        for place, name in self.optimizer.items():
            if place[1] >= self.model_degree:
                raise error(
                    "UCP-E-SOURCE",
                    f"mp_rank_{place[1]:02d}_model_states.pt, of the same model-parallel rank, is missing",
                    at=name,
                )


def missing(data: int, model: int, what: str, tag: str) -> Exception:
    """The refusal of a checkpoint without the file of a rank."""
    name = f"zero_pp_rank_{data}_mp_rank_{model:02d}_{what}.pt"
    return error(
        "UCP-E-SOURCE", f"the file of data-parallel rank {data}, model-parallel rank {model} is missing; "
        "copy the files of all ranks into one directory", at=f"{tag}/{name}"
    )  # fmt: skip


def _by_place(
    names: Sequence[str], pattern: re.Pattern[str], *, absent: int = 0
) -> dict[tuple[int, ...], str]:
    """The files of a pattern by the numbers in their names, ``absent`` where there is none. Refuses two of a place."""
    found: dict[tuple[int, ...], str] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            place = tuple(int(part or absent) for part in match.groups())
            if place in found:
                raise error(
                    "UCP-E-SOURCE",
                    f"{found[place]} and {name} are of one rank, from two saves: keep those of one",
                    at=name,
                )
            found[place] = name
    return found


def _pairs(names: Sequence[str], pattern: re.Pattern[str]) -> dict[tuple[int, int], str]:
    return {(first, second): name for (first, second), name in _by_place(names, pattern).items()}


def _tag_directory(root: Path) -> Path:
    latest = root / _LATEST
    if _is_tag(root) or not latest.is_file():
        return root
    tag = SourceFiles(root).read(_LATEST, _MAX_TAG).decode("utf-8", "replace").strip()
    if not tag or tag in (".", "..") or "/" in tag or "\\" in tag or "\0" in tag:
        raise error(
            "UCP-E-KEY", f"the tag {tag[:100]!r} is no name of a directory in this one", at=str(latest)
        )
    if not (root / tag).is_dir():
        raise error(
            "UCP-E-SOURCE",
            f"'latest' names {tag!r}, which is not there; give the directory of a tag",
            at=str(latest),
        )
    if not _is_tag(root / tag):
        raise error("UCP-E-SOURCE", "there is no *_model_states.pt: not a DeepSpeed tag", at=str(root / tag))
    if (root / tag).is_symlink():
        raise error("UCP-E-LINK", "the tag is a link; give the directory it leads to", at=str(root / tag))
    return root / tag
