"""DeepSpeed's universal checkpoints, out and in (SPEC appendix A).

DeepSpeed has two dialects: below ZeRO-3 a state is a dict with the tensor in its shape, under ZeRO-3 a bare flat
tensor, and each loader wants other members of ``optimizer_state.pt``. What is written here is read by both, so that a
run changes its stage with it. Sources, DeepSpeed 0.19.8: ``ds_to_universal.py`` and ``universal_checkpoint.py`` in
``checkpoint/``, ``runtime/base_optimizer.py``, ``runtime/zero/stage3.py``.
"""

from __future__ import annotations

import os
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.contract.foreign import ExportPlan
from ucpformat.conversion.formats.deepspeed.experts.groups_out import SharedGroup, shared_groups
from ucpformat.conversion.formats.deepspeed.export_settings import DeepSpeedSettings
from ucpformat.conversion.formats.deepspeed.files.directory import LATEST_UNIVERSAL
from ucpformat.conversion.formats.deepspeed.out_values import (
    INFO,
    VERSION,
    model_values,
    universal_info,
    wrapper_values,
)
from ucpformat.conversion.formats.deepspeed.outlines import Outline, Range
from ucpformat.errors import error
from ucpformat.tensor_files.out_files import OutFiles, text_file
from ucpformat.tensor_files.source_files import SourceFiles, is_component
from ucpformat.tensor_files.stand_ins import TorchSize
from ucpformat.tensor_files.torch_archive_writer import archive_file

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content

__all__ = ["detect_universal", "export_universal", "universal_folder"]

_ZERO: Final = "zero"
_OPTIMIZER_STATE: Final = "optimizer_state.pt"
_MODEL_STATES: Final = re.compile(r"(?:zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt")
_MAX_TAG: Final = 4096

_INFO: Final = {"universal_checkpoint_version": 0.4}


def export_universal(
    content: Content,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str],
) -> ExportPlan:
    """Plan a directory for ``load_checkpoint`` under ``load_universal``.

    Stock DeepSpeed takes frozen parameters and buffers from nowhere then, and under ZeRO-3 the options of the first
    parameter group for all; it knows Adam's states alone. Experts are written for one expert-parallel degree: what its
    ranks call by one name is stacked.

    Raises:
        UcpError: as `exporter.export_deepspeed`.
    """
    chosen = DeepSpeedSettings.read({"tag": "universal", **settings}, content)
    outline = Outline(content)
    groups = shared_groups(outline, outline.groups, replace(chosen, stage=1))
    parts = [
        archive_file(f"{chosen.tag}/zero/{name}/{file}", tree)
        for group in groups
        for name, file, tree in _states(outline, group)
    ]
    model = _model_states(outline, groups)
    parts += [
        archive_file(f"{chosen.tag}/{file}", model)
        for file in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt")
    ]
    parts += outline.companions(chosen.tag)
    last = [
        archive_file(f"{chosen.tag}/zero/optimizer_state.pt", _optimizer_state(outline, groups)),
        text_file(LATEST_UNIVERSAL, chosen.tag),
    ]
    files = OutFiles(parts, lambda _: last)
    plan = ExportPlan(len(outline.values), files=files, dropped=outline.left_out(1))
    return replace(plan, warnings=_limits(outline))


def _limits(outline: Outline) -> list[str]:
    """Return what is in the files, and what stock DeepSpeed's loader does not make of it."""
    limits = []
    untrained = sorted(outline.module.keys() - outline.trained)
    if untrained:
        named = ", ".join(untrained[:3]) + (", ..." if len(untrained) > 3 else "")
        limits.append(
            f"{len(untrained)} frozen parameters and buffers ({named}) stay as the job begins: under load_universal "
            "DeepSpeed restores none; load them from 'module' of the model file"
        )
    if any(group.options != outline.groups[0].options for group in outline.groups):
        limits.append(
            "under load_universal and ZeRO-3 DeepSpeed gives all parameter groups the options of the first; set those "
            "of the others again after loading"
        )
    others = {state for name in outline.trained for state in outline.states(name)} - {"exp_avg", "exp_avg_sq"}
    if others:
        limits.append(
            f"under load_universal and ZeRO-3 DeepSpeed reads exp_avg and exp_avg_sq alone, and not "
            f"{', '.join(sorted(others))}"
        )
    return limits


def _states(outline: Outline, group: SharedGroup) -> Iterator[tuple[str, str, Any]]:
    """Yield parameter, file name and content of every state of a group, whose states are sorted by parameter."""
    for names in sorted(zip(*group.names, strict=True)):
        name = group.local.get(names[0], names[0])
        _check_folder(name)
        slots = {"fp32": ["master" if "master" in outline.module[held] else "value" for held in names]}
        slots |= {key: [key] * len(names) for key in outline.states(names[0])}
        numbers = outline.numbers(names[0])
        for other in names[1:]:
            if outline.states(other).keys() | {"fp32"} != slots.keys() or any(
                _read(outline, other, key) != _read(outline, names[0], key) for key in numbers
            ):
                raise error(
                    "UCP-E-MISMATCH",
                    f"{other!r} has other states than {names[0]!r}, with which it is stacked",
                )
        for key, held_in in slots.items():
            kind = "float32" if key == "fp32" else None
            if len(names) == 1:
                yield name, f"{key}.pt", {"param": outline.tensor(name, held_in[0], kind), "cat_dim": 0}
            else:
                yield name, f"{key}.pt", _stacked(outline, names, held_in, kind)
        for key, number in numbers.items():
            if key != "step":
                raise error(
                    "UCP-E-MISMATCH", f"{name!r}: DeepSpeed's loader knows no number but step, not {key!r}"
                )
            yield name, "step.pt", number


def _stacked(
    outline: Outline, names: Sequence[str], slots: Sequence[str], kind: str | None
) -> dict[str, Any]:
    """Return what all expert-parallel ranks call by one name, one after another: a rank takes its part of dim 0."""
    views = [outline.module[name][slot] for name, slot in zip(names, slots, strict=True)]
    extent, *inner = views[0].shape or (1,)
    flat = outline.flat([Range(view, 0, prod(view.shape)) for view in views], kind or views[0].dtype.name)
    count = extent * len(names)
    return {
        "param": replace(flat, shape=(count, *inner)),
        "cat_dim": 0,
        "is_expert_param": True,
        "ep_num_experts": count,
    }


def _read(outline: Outline, name: str, slot: str) -> bytes:
    view = outline.module[name]
    return view[slot].read().tobytes() if slot in view else b""


def _check_folder(name: str) -> None:
    """Check that a parameter has the name of its directory."""
    if not name or name in (".", "..") or set(name) & set("/\\\0") or len(name.encode()) > 255:
        raise error("UCP-E-NAME", f"{name[:100]!r} cannot be the name of a directory")


def _optimizer_state(outline: Outline, groups: Sequence[SharedGroup]) -> dict[str, Any]:
    options = [{**group.options, "params": [number]} for number, group in enumerate(groups)]
    steps = [outline.numbers(name).get("step") for name in sorted(outline.trained)]
    state = {} if not steps or steps[0] is None else {0: {"step": steps[0]}}
    return {
        **wrapper_values(outline, 1),
        "group_paddings": [0] * len(options),
        "partition_count": [1] * len(options),
        "ds_version": VERSION,
        "param_groups": options,
        "optimizer_state_dict": {"state": state, "param_groups": options},
    }


def _model_states(outline: Outline, groups: Sequence[SharedGroup]) -> dict[str, Any]:
    module: OrderedDict[str, Any] = OrderedDict()
    buffers = []
    for name, view in outline.module.items():
        module[name] = outline.tensor(name, "value")
        module.update(dict.fromkeys(view.aliases, module[name]))
        if outline.role(name) == "buffer":
            buffers.append(name)
    return {
        "module": module,
        "buffer_names": buffers,
        "optimizer": None,
        "param_shapes": [
            OrderedDict(
                (group.local.get(name, name), TorchSize(outline.shape(name))) for name in group.names[0]
            )
            for group in groups
        ],
        "frozen_param_shapes": None,
        "shared_params": outline.shared,
        "frozen_param_fragments": None,
        **model_values(outline),
        "dp_world_size": 1,
        INFO: {**_INFO, **universal_info(outline)},
    }


def detect_universal(path: str | os.PathLike[str]) -> bool:
    """Return whether ``path`` is a universal checkpoint's tag, or holds ``latest_universal``."""
    root = Path(path)
    if (root / _ZERO).is_dir():
        return any(_MODEL_STATES.fullmatch(entry) for entry in SourceFiles(root).names()) or (
            (root / _ZERO / _OPTIMIZER_STATE).is_file()
        )
    if not (root / LATEST_UNIVERSAL).is_file():
        return False
    # Where DeepSpeed's own saves lie beside it, only what is whole comes before them.
    if not (root / "latest").is_file():
        return True
    tag = _tag(root)
    return is_component(tag) and (root / tag / _ZERO / _OPTIMIZER_STATE).is_file()


def universal_folder(path: str | os.PathLike[str]) -> Path:
    """Return the directory of a universal checkpoint's tag: ``path``, or what ``latest_universal`` in it names.

    Raises:
        ImportRefusedError: ``UCP-E-KEY`` and ``UCP-E-LINK`` for a tag elsewhere; ``UCP-E-SOURCE``, naming the file, for
            one that is not there or has no ``zero/optimizer_state.pt``.
    """
    root = Path(path)
    if not (root / _ZERO).is_dir() and (root / LATEST_UNIVERSAL).is_file():
        latest, tag = root / LATEST_UNIVERSAL, _tag(root)
        if not is_component(tag):
            raise error(
                "UCP-E-KEY", f"the tag {tag[:100]!r} is no name of a directory in this one", at=str(latest)
            )
        root = root / tag
        if root.is_symlink():
            raise error("UCP-E-LINK", "the tag is a link; give the directory it leads to", at=str(root))
        if not root.is_dir():
            raise error(
                "UCP-E-SOURCE",
                f"it names {tag!r:.100}, which is not there; give the directory of a tag",
                at=str(latest),
            )
    if not (root / _ZERO / _OPTIMIZER_STATE).is_file():
        raise error(
            "UCP-E-SOURCE",
            f"{_ZERO}/{_OPTIMIZER_STATE} is missing: every universal checkpoint has one; copy it there, too",
            at=str(root),
        )
    return root


def _tag(root: Path) -> str:
    return SourceFiles(root).read(LATEST_UNIVERSAL, _MAX_TAG).decode("utf-8", "replace").strip()
