"""The files of a DeepSpeed checkpoint: which tag, which file is whose, and whether all are there.

Source: DeepSpeed 0.19.8, ``runtime/engine.py`` (``_get_ckpt_name``, ``_get_zero_ckpt_name``, ``_get_expert_ckpt_name``)
and ``runtime/pipe/module.py`` (``ckpt_layer_path``). What a file name calls ``pp_rank`` is the data-parallel rank.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from ucpformat.conversion.contract.foreign import Lost
from ucpformat.conversion.formats.deepspeed.files.companions import TAG_FILES, Blobs, companions
from ucpformat.conversion.formats.deepspeed.files.stated_counts import (
    DATA,
    MODEL,
    STAGES,
    TENSOR,
    check_counts,
    stated_by_model,
    stated_by_optimizer,
)
from ucpformat.errors import UcpError, error
from ucpformat.tensor_files.source_files import SourceFiles, is_component

if TYPE_CHECKING:
    from ucpformat.conversion.formats.deepspeed.files.states import ModelStates, OptimizerStates

__all__ = ["DeepSpeedDirectory", "detect"]

_LATEST: Final = "latest"
LATEST_UNIVERSAL: Final = "latest_universal"
_FIRST_MODEL: Final = "mp_rank_00_model_states.pt (under ZeRO-3 zero_pp_rank_0_mp_rank_00_model_states.pt)"
_MAX_TAG: Final = 4096
_MAX_LISTED: Final = 1000
_MODEL: Final = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_MODEL_3: Final = re.compile(r"zero_pp_rank_(\d+)_mp_rank_(\d+)_model_states\.pt")
_OPTIMIZER: Final = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_LAYER: Final = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")
_EXPERT: Final = re.compile(r"(?:layer_(\d+)_)?expert_(\d+)_mp_rank_(\d+)_model_states\.pt")
_EXPERT_OPTIMIZER: Final = re.compile(r"expp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")
_KINDS: Final = (_MODEL, _MODEL_3, _OPTIMIZER, _LAYER, _EXPERT, _EXPERT_OPTIMIZER)


def detect(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a directory that DeepSpeed saved into, or one tag in it."""
    root = Path(path)
    if not root.is_dir():
        return False
    return _is_tag(root) or (root / _LATEST).is_file() or bool(_tags_in(root))


def _is_tag(root: Path) -> bool:
    return any(kind.fullmatch(name) for name in SourceFiles(root).names() for kind in _KINDS)


def _tags_in(root: Path) -> list[str]:
    """Return tags in a directory without ``latest``, where each may be meant."""
    names = SourceFiles(root).names()
    return [name for name in names[:_MAX_LISTED] if (root / name).is_dir() and _is_tag(root / name)]


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
    is_universal: bool = False
    beside: Path | None = None
    """The directory that was saved into; None where that of the tag was given."""

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> DeepSpeedDirectory:
        """List the tag that ``latest`` names, or the directory itself where that is a tag.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for a tag that is not there, ranks that are missing,
                and files of ZeRO-3 beside others.
        """
        return cls._listed(_tag_directory(Path(path)), Path(path), is_universal=False)

    @classmethod
    def open_universal(cls, root: Path, saved_into: Path) -> DeepSpeedDirectory:
        """List a universal tag, ``root``; it may have model files for either loader, of which one kind is listed.

        Raises:
            ImportRefusedError: as `open`.
        """
        return cls._listed(root, saved_into, is_universal=True)

    @classmethod
    def _listed(cls, root: Path, saved_into: Path, *, is_universal: bool) -> DeepSpeedDirectory:
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
        directory = cls(
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
            is_universal,
            saved_into if root != saved_into else None,
        )
        if not directory.model:
            raise error(
                "UCP-E-SOURCE",
                f"{_FIRST_MODEL} is missing: a DeepSpeed tag has a *_model_states.pt of each model-parallel rank; "
                "copy the files of all ranks into one directory",
                at=str(root),
            )
        directory._check_ranks()
        return directory

    def companions(self) -> tuple[Blobs, list[Lost]]:
        """Return the files beside DeepSpeed's own, and those that are left out (`companions`)."""

        def is_own(name: str) -> bool:
            return (self.is_universal and name == "zero") or any(kind.fullmatch(name) for kind in _KINDS)

        blobs, lost = companions(self.files.root, is_own, TAG_FILES)
        if self.beside is not None:
            pointer = LATEST_UNIVERSAL if self.is_universal else _LATEST
            more, left = companions(self.beside, lambda name: name in (pointer, self.tag))
            blobs, lost = {**blobs, **more}, [*lost, *left]
        return blobs, lost

    def missing_name(
        self, what: Literal["model", "optim"], data: int, model: int, *, is_bf16: bool = False
    ) -> str:
        """Return what the file of a rank that has none would be called; ``is_bf16`` where no other file tells."""
        others = self.model if what == "model" else self.optimizer
        rank = f"zero_pp_rank_{data}_mp_rank_{model:02d}"
        if what == "model" and not self.is_partitioned:
            return f"mp_rank_{model:02d}_model_states.pt"
        # Optimizers' files of bf16 have a prefix, model files of ZeRO-3 none.
        is_bf16 = is_bf16 or any(name.startswith("bf16_") for name in others.values())
        return f"{'bf16_' if is_bf16 and what == 'optim' else ''}{rank}_{what}_states.pt"

    def layer_name(self, layer: int, tensor_rank: int) -> str:
        """Return the name of a layer's file."""
        shard = (
            f"-model_{tensor_rank:02d}"
            if any("-model_" in name[:-16] for name in self.layers.values())
            else ""
        )
        return f"layer_{layer:02d}{shard}-model_states.pt"

    @property
    def layers_without_files(self) -> Sequence[int]:
        """The numbers of layers, up to one behind the last, of which no file is here."""
        held = {layer for layer, _ in self.layers}
        return [layer for layer in range(max(held, default=-1) + 2) if layer not in held][:_MAX_LISTED]

    def layers_in_doubt(self, behind: int = 0) -> list[Lost]:
        """Return layers between others, and as many as ``behind`` the last of them, that have no file, for the report.

        Functions have none, nor has a layer that uses tied weights in its own way; but neither would one whose file was
        lost, where none of its weights is trained, and nothing tells the one from the other.
        """
        last = max((layer for layer, _ in self.layers), default=-1) + 1
        why = (
            "there is no such file: its layer has no weights of its own, or is called through a function, or none of "
            "its weights is trained, and the file is lost"
        )
        return [
            Lost(f"files/{self.layer_name(layer, 0)}", why, matters=False)
            for layer in self.layers_without_files
            if layer < last + behind
        ]

    def missing(
        self, what: Literal["model", "optim"], data: int, model: int, *, is_bf16: bool = False
    ) -> UcpError:
        """Return the refusal of a checkpoint without the file of a rank."""
        return error(
            "UCP-E-SOURCE",
            f"the file of data-parallel rank {data}, model-parallel rank {model} is missing; "
            "copy the files of all ranks into one directory",
            at=f"{self.tag}/{self.missing_name(what, data, model, is_bf16=is_bf16)}",
        )

    def check_counts(self, models: Sequence[ModelStates], ranks: Sequence[OptimizerStates]) -> None:
        """Compare the numbers of ranks and stages that the files of a model-parallel rank state with what is here.

        Raises:
            ImportRefusedError: ``UCP-E-SOURCE``, naming the file, as `stated_counts.check_counts`.
        """
        there = {MODEL: self.model_degree}
        tensor = 1 + max((rank for _, rank in self.layers), default=self.model_degree - 1)
        # No file of experts in a pipeline says which stage it is of, and universal checkpoints lack those of layers.
        if self.layers:
            there |= {TENSOR: tensor, STAGES: self.model_degree // tensor}
        elif not self.experts and not self.is_universal:
            there |= {STAGES: 1, TENSOR: tensor}
        if ranks or self.is_partitioned:
            there[DATA] = len(ranks) or self.data_degree

        def missing(of: str, number: int) -> str:
            if of == DATA:
                return self.missing_name("optim" if ranks else "model", number, 0)
            if of == TENSOR and self.layers:
                return f"layer_{min(self.layers)[0]:02d}-model_{number:02d}-model_states.pt"
            if of == STAGES and not self.layers:
                return "layer_00-model_states.pt"
            return self.missing_name("model", 0, number * tensor if of == STAGES else number)

        groups = models[0].groups or ()
        stated = (*map(stated_by_model, models), *(stated_by_optimizer(rank, groups) for rank in ranks))
        check_counts(chain.from_iterable(stated), there, missing)

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
        kinds: tuple[tuple[Mapping[tuple[int, int], str], Literal["model", "optim"]], ...]
        kinds = ((self.model, "model"), (self.optimizer, "optim"))
        for held, what in kinds:
            if not held:
                continue
            data = self.data_degree if held is self.optimizer or self.is_partitioned else 1
            for place in ((d, m) for d in range(data) for m in range(self.model_degree)):
                if place not in held:
                    raise self.missing(what, *place)
        tensor = 1 + max((rank for _, rank in self.layers), default=0)
        for layer, rank in ((layer, rank) for layer, _ in self.layers for rank in range(tensor)):
            if (layer, rank) not in self.layers:
                raise error(
                    "UCP-E-SOURCE",
                    f"the file of layer {layer}, tensor-parallel rank {rank} is missing; "
                    "copy the files of all ranks into one directory",
                    at=f"{self.tag}/{self.layer_name(layer, rank)}",
                )
        for place, name in self.optimizer.items():
            if place[1] >= self.model_degree:
                raise error(
                    "UCP-E-SOURCE",
                    f"{self.missing_name('model', 0, place[1])}, of the same model-parallel rank, is missing",
                    at=name,
                )


def _by_place(
    names: Sequence[str], pattern: re.Pattern[str], *, absent: int = 0
) -> dict[tuple[int, ...], str]:
    """Return files of a pattern by the numbers in their names, ``absent`` without; refuses two with the same."""
    by_place: dict[tuple[int, ...], str] = {}
    for name in names:
        if match := pattern.fullmatch(name):
            place = tuple(int(part or absent) for part in match.groups())
            if place in by_place:
                raise error(
                    "UCP-E-SOURCE",
                    f"{by_place[place]} and {name} are of one rank, from two saves: keep those of one",
                    at=name,
                )
            by_place[place] = name
    return by_place


def _pairs(names: Sequence[str], pattern: re.Pattern[str]) -> dict[tuple[int, int], str]:
    return {(first, second): name for (first, second), name in _by_place(names, pattern).items()}


def _tag_directory(root: Path) -> Path:
    latest = root / _LATEST
    if _is_tag(root):
        return root
    if not latest.is_file():
        tags = _tags_in(root)
        if tags:
            pointer = LATEST_UNIVERSAL if (root / tags[0] / "zero").is_dir() else _LATEST
            raise error(
                "UCP-E-SOURCE",
                f"the file {pointer!r} is missing, which names the tag; give the directory of one: "
                f"{', '.join(tags[:8])}",
                at=str(root),
            )
        return root
    tag = SourceFiles(root).read(_LATEST, _MAX_TAG).decode("utf-8", "replace").strip()
    if not is_component(tag):
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
        raise error(
            "UCP-E-SOURCE",
            f"{_FIRST_MODEL} is missing, and there are no other files of ranks: copy those of all ranks into this "
            "directory",
            at=str(root / tag),
        )
    if (root / tag).is_symlink():
        raise error("UCP-E-LINK", "the tag is a link; give the directory it leads to", at=str(root / tag))
    return root / tag
