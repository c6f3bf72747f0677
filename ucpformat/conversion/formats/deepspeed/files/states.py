"""What DeepSpeed's two kinds of files hold: ``model_states`` and ``optim_states``, as typed records.

Sources, DeepSpeed 0.19.8: ``runtime/engine.py`` (``_common_checkpoint_state``), and ``state_dict`` of
``runtime/zero/stage_1_and_2.py``, ``runtime/zero/stage3.py`` and ``runtime/bf16_optimizer.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ucpformat.tensor_files.deepspeed_globals import instance_state
from ucpformat.tensor_files.fields import (
    integer,
    items,
    mapping,
    member,
    refused,
    shape_of,
    tensor,
    tensors,
)
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = ["ModelStates", "OptimizerStates", "Shapes"]

Shapes = Mapping[str, tuple[int, ...]]
"""Parameters of one group (under ZeRO-3: one sub-group), in flat order."""

_MODEL_MEMBERS: Final = (
    *("module", "buffer_names", "optimizer", "param_shapes", "frozen_param_shapes", "shared_params"),
    "frozen_param_fragments",
)


@dataclass(frozen=True, slots=True)
class ModelStates:
    """A ``*_model_states.pt``. ``values`` are all its members that are not about tensors of the module.

    ``homes`` are the files of tensors of the module that other files hold: those of layers and experts.
    """

    file: TorchFile
    module: Mapping[str, StoredTensor]
    buffers: frozenset[str]
    groups: Sequence[Shapes] | None
    frozen: Shapes
    fragments: Mapping[str, StoredTensor]
    shared: Mapping[str, str]
    optimizer: Mapping[Any, Any] | None
    values: Mapping[str, Any]
    homes: Mapping[str, TorchFile] = field(default_factory=dict)
    derived: frozenset[str] = frozenset()
    """Parameters whose values are in no file, where the module has but their data types and shapes."""

    def home(self, name: str) -> TorchFile:
        """Return the file that holds a tensor of the module."""
        return self.homes.get(name, self.file)

    @classmethod
    def read(cls, file: TorchFile) -> ModelStates:
        """Read the file's tree. Raises ``UCP-E-SOURCE``."""
        at = file.name
        tree = mapping(file.tree, "the file", at)
        module = member(tree, "module", at)
        groups = tree.get("param_shapes")
        frozen = tree.get("frozen_param_shapes") or {}
        shared = mapping(tree.get("shared_params") or {}, "shared_params", at)
        if not all(type(key) is str for key in tree):
            raise refused("a name in the file is not a string", at)
        buffers = items(tree.get("buffer_names") or [], "buffer_names", at)
        if not all(type(name) is str for name in buffers):
            raise refused("a name in buffer_names is not a string", at)
        if not all(type(a) is type(b) is str for a, b in shared.items()):
            raise refused("a name in shared_params is not a string", at)
        optimizer = tree.get("optimizer")
        return cls(
            file,
            {} if module is None else tensors(module, "module", at),
            frozenset(buffers),
            None if groups is None else [_shapes(group, at) for group in items(groups, "param_shapes", at)],
            _shapes(frozen, at),
            tensors(tree.get("frozen_param_fragments") or {}, "frozen_param_fragments", at),
            shared,
            None if optimizer is None else mapping(optimizer, "optimizer", at),
            {key: value for key, value in tree.items() if key not in _MODEL_MEMBERS},
        )


def _shapes(value: object, at: str) -> Shapes:
    return {
        str(name): shape_of(extents, f"the shape of {name!r:.100}", at)
        for name, extents in mapping(value, "shapes", at).items()
    }


@dataclass(frozen=True, slots=True)
class OptimizerStates:
    """A ``*_optim_states.pt``: what one data-parallel rank holds of the flat groups.

    ``masters`` and ``states`` are by group, under ZeRO-3 by sub-group; ``members`` lists of every parameter group the
    sub-groups it has. ``counts`` are the data-parallel degrees of the groups, ``paddings`` what the tail of this
    rank's part has, ``gaps`` the free elements behind each tensor. ``slices`` are by group the places, first element
    and length, of parameters in this rank's part, where they are named. ``around`` is
    the file without its states.
    """

    file: TorchFile
    stage: int
    masters: Sequence[StoredTensor]
    states: Sequence[Mapping[str, Any]]
    options: Sequence[Mapping[str, Any]]
    members: Sequence[Sequence[int]]
    counts: Sequence[int]
    gaps: Sequence[Sequence[int]] | None
    slices: Sequence[Mapping[str, tuple[int, int]]] | None
    values: Mapping[str, Any]
    around: Mapping[Any, Any]

    @classmethod
    def read(cls, file: TorchFile) -> OptimizerStates:
        """Read the file's tree. Raises ``UCP-E-SOURCE``."""
        at = file.name
        tree = mapping(file.tree, "the file", at)
        inner = mapping(member(tree, "optimizer_state_dict", at), "optimizer_state_dict", at)
        stage = inner.get("zero_stage", 1)  # BF16_Optimizer does not say: its files are ZeRO-1's
        if stage not in (1, 2, 3):
            raise refused(f"the ZeRO stage {stage!r:.20} is unknown", at)
        base_name, masters_name = (
            ("optimizer_state_dict", "fp32_flat_groups")
            if stage == 3
            else ("base_optimizer_state", "single_partition_of_fp32_groups")
        )
        base = member(inner, base_name, at)
        if isinstance(base, list):
            # elastic_checkpoint: states of each group, and nothing of the groups' options
            groups = [{"params": [number]} for number in range(len(base))]
            base = {"state": dict(enumerate(base)), "param_groups": groups}
        base = mapping(base, base_name, at)
        masters = [
            tensor(item, masters_name, at)
            for item in items(member(inner, masters_name, at), masters_name, at)
        ]
        listed = items(member(base, "param_groups", at), "param_groups", at)
        options = [mapping(group, "a parameter group", at) for group in listed]
        state = mapping(member(base, "state", at), "state", at)
        members = [
            [integer(number, "params", at) for number in items(member(group, "params", at), "params", at)]
            for group in options
        ]
        if sorted(number for numbers in members for number in numbers) != list(range(len(masters))):
            raise refused(f"the parameter groups do not list the {len(masters)} flat groups once each", at)
        return cls(
            file,
            stage,
            masters,
            [mapping(state.get(number, {}), "state", at) for number in range(len(masters))],
            [{key: value for key, value in group.items() if key != "params"} for group in options],
            members,
            _counts(member(inner, "partition_count", at), len(masters), at),
            _gaps(inner.get("param_alignment_paddings"), at),
            _slices(inner.get("param_slice_mappings"), at),
            {
                key: value
                for key, value in inner.items()
                if key
                in ("loss_scaler", "dynamic_loss_scale", "overflow", "clip_grad", "base_optimizer_step")
            },
            {key: value for key, value in tree.items() if key != "optimizer_state_dict"},
        )


def _counts(value: object, groups: int, at: str) -> Sequence[int]:
    if isinstance(value, list):
        return [integer(count, "partition_count", at) for count in value]
    return [integer(value, "partition_count", at)] * groups


def _gaps(value: object, at: str) -> Sequence[Sequence[int]] | None:
    if value is None:
        return None
    return [
        [integer(gap, "a padding", at) for gap in items(group, "paddings", at)]
        for group in items(value, "param_alignment_paddings", at)
    ]


def _slices(value: object, at: str) -> Sequence[Mapping[str, tuple[int, int]]] | None:
    """Return what ``param_slice_mappings`` has; None where it is of another kind, for little depends on it."""
    if not isinstance(value, list):
        return None
    slices: list[Mapping[str, tuple[int, int]]] = []
    for group in value:
        places: dict[str, tuple[int, int]] = {}
        for name, address in group.items() if isinstance(group, dict) else ():
            state = instance_state(address) if isinstance(address, Instance) else {}
            start, size = state.get("start"), state.get("numel")
            if type(name) is not str or type(start) is not int or type(size) is not int:
                return None
            places[name] = (start, size)
        slices.append(places)
    return slices
