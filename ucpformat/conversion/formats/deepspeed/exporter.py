"""Universal checkpoints to DeepSpeed's own files, for a chosen ZeRO stage and data-parallel degree (SPEC appendix A).

The files are those of DeepSpeed 0.19.8, and what its ``load_checkpoint`` reads; neither it nor torch is needed.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from ucpformat.conversion.contract.foreign import ExportPlan
from ucpformat.conversion.formats.deepspeed.experts.groups_out import ExpertLayers, SharedGroup, shared_groups
from ucpformat.conversion.formats.deepspeed.experts.stacks import expert_name
from ucpformat.conversion.formats.deepspeed.export_settings import DeepSpeedSettings
from ucpformat.conversion.formats.deepspeed.out_values import (
    VERSION,
    configuration,
    model_values,
    wrapper_values,
)
from ucpformat.conversion.formats.deepspeed.outlines import Group, Outline
from ucpformat.conversion.formats.deepspeed.pipeline.stage_outlines import StageOutline, stages_of
from ucpformat.conversion.formats.deepspeed.pipeline.tied_layers import own_parts
from ucpformat.conversion.formats.deepspeed.tensor_parallel.shards_out import shards_of
from ucpformat.conversion.formats.deepspeed.zero.flat_out import FlatPlan, part_of
from ucpformat.conversion.formats.deepspeed.zero.unpartitioned_out import unpartitioned_optimizer
from ucpformat.errors import error
from ucpformat.tensor_files.out_files import OutFile, OutFiles, text_file
from ucpformat.tensor_files.stand_ins import TorchSize
from ucpformat.tensor_files.torch_archive_writer import OutTensor, archive_file, later_file

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import Content

__all__ = ["export_deepspeed"]


def export_deepspeed(
    content: Content,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, str],
) -> ExportPlan:
    """Plan a directory for ``load_checkpoint``.

    Raises:
        UcpError: ``UCP-E-EXISTS`` for a directory that is not empty; ``UCP-E-MISMATCH`` for what DeepSpeed cannot hold;
            ``UCP-E-DTYPE`` and ``UCP-E-OBJECT`` for what torch cannot; what reading raises.
    """
    chosen = DeepSpeedSettings.read(settings, content)
    outline = Outline(content, chosen.buffers)
    if chosen.stage == 0 and chosen.pipeline and _is_bfloat16(outline):
        # `BF16_Optimizer`, which has ZeRO-1's flat groups whatever the stage; no other keeps bf16 pipelines.
        chosen = replace(chosen, stage=1)
    parts = [
        part
        for rank, (shards, own) in enumerate(shards_of(content, chosen, settings))
        for held in [outline if shards is content else Outline(shards, chosen.buffers)]
        for number, stage in enumerate(stages_of(held, chosen.pipeline, chosen.ties, chosen.stage))
        for part in _Stage(held, chosen, stage, max(rank, number), own).files()
    ]
    parts += outline.companions(chosen.tag)
    files = OutFiles(parts, lambda _: [text_file("latest", chosen.tag)])
    ranks = chosen.world_size if chosen.stage == 3 else 1
    return ExportPlan(len(outline.values), files=files, dropped=outline.left_out(ranks))


class _Stage:
    """The files of one stage of a pipeline, or of all there is."""

    def __init__(
        self,
        outline: Outline,
        chosen: DeepSpeedSettings,
        stage: StageOutline,
        number: int,
        own: Mapping[str, Any],
    ) -> None:
        self._own = own
        self._outline = outline
        self._chosen = chosen
        self._stage = stage
        self._number = number
        self._groups: Sequence[SharedGroup] = [
            replace(group, local={**group.local, **_own_names(group)})
            for group in shared_groups(outline, stage.groups, chosen)
        ]
        for group in self._groups:
            if chosen.world_size % group.degree:
                raise error(
                    "UCP-E-MISMATCH", f"ep_size {group.degree} does not divide the {chosen.world_size} ranks"
                )
        self._flat = FlatPlan(outline, chosen, self._groups if chosen.stage > 0 else ())
        self._layers = ExpertLayers(outline, stage.atoms)
        if self._layers.counts and chosen.tensor_degree > 1:
            raise error(
                "UCP-E-MISMATCH", "experts are not written for tensor-parallel ranks; set tp_degree=1"
            )
        frozen = sorted(set(filter(expert_name, stage.atoms)) - outline.trained)
        if frozen and chosen.stage == 2:
            raise error(
                "UCP-E-MISMATCH",
                f"{frozen[0]!r} is not trained, and under ZeRO-2 DeepSpeed loads frozen experts of rank 0 on all; "
                "set stage=1",
            )

    def files(self) -> Iterator[OutFile]:
        """Yield the files; what one cannot hold is found by spelling one of each kind out."""
        chosen = self._chosen
        mp_rank = f"mp_rank_{self._number:02d}"
        for layer, held in () if self._layers.counts else self._stage.layers.items():
            keys = {name: key for key, name in held.items()}
            yield self._weights(f"layer_{layer:02d}-model_states.pt", keys)
        if chosen.pipeline:
            yield archive_file(f"{chosen.tag}/{mp_rank}_model_states.pt", self._stage_tree())
        else:
            yield from self._model_files(mp_rank)
        if chosen.stage > 0:
            yield from self._optimizer_files(mp_rank)
        elif self._layers.counts:
            for number, rank in enumerate(self._expert_ranks()):
                tree = {"optimizer": self._unpartitioned(rank)}
                yield archive_file(f"{chosen.tag}/expp_rank_{number}_{mp_rank}_optim_states.pt", tree)
        for number, expert, names in self._layers.files():
            name = f"layer_{number}_expert_{expert}_{mp_rank}_model_states.pt"
            yield self._weights(name, {held: held for held in names})

    def _weights(self, name: str, keys: Mapping[str, str]) -> OutFile:
        """Return a file of values, of which ``keys`` are by atom."""
        outline = self._outline
        module = OrderedDict((keys[atom], outline.tensor(atom, "value")) for atom in outline.in_order(keys))
        return archive_file(f"{self._chosen.tag}/{name}", module)

    def _model_files(self, mp_rank: str) -> Iterator[OutFile]:
        chosen = self._chosen
        first = archive_file("first", self._model_tree(0))
        for rank in range(chosen.world_size) if chosen.stage == 3 else (0,):
            name = f"zero_pp_rank_{rank}_{mp_rank}" if chosen.stage == 3 else mp_rank
            make = partial(self._model_tree, rank)
            yield later_file(f"{chosen.tag}/{name}_model_states.pt", make, first.nbytes)

    def _optimizer_files(self, mp_rank: str) -> Iterator[OutFile]:
        # All ranks of an expert-parallel one have the same parameters, and about as much.
        nbytes = [archive_file("first", self._optimizer_tree(rank)).nbytes for rank in self._expert_ranks()]
        prefix = "bf16_" if _is_bfloat16(self._outline) else ""
        for rank in range(self._chosen.world_size):
            name = f"{prefix}zero_pp_rank_{rank}_{mp_rank}_optim_states.pt"
            make = partial(self._optimizer_tree, rank)
            yield later_file(f"{self._chosen.tag}/{name}", make, nbytes[0])

    def _expert_ranks(self) -> list[int]:
        """Return a data-parallel rank of each expert-parallel one, in their order."""
        degree = max((group.degree for group in self._groups), default=1)
        ranks = {
            self._chosen.place(rank, degree)[0]: rank for rank in reversed(range(self._chosen.world_size))
        }
        return [ranks[number] for number in sorted(ranks)]

    def _unpartitioned(self, rank: int) -> dict[str, Any]:
        """Return the optimizer of a rank without ZeRO."""
        held = [
            Group(group.names[self._chosen.place(rank, group.degree)[0]], group.options)
            for group in self._groups
        ]
        return unpartitioned_optimizer(self._outline, held)

    def _named(self) -> dict[str, Any]:
        """Return what a model file says of the optimizer: without ZeRO all of it, else the names in the flat groups."""
        if self._chosen.stage == 0:
            # Experts have files of their own for it.
            return {
                "optimizer": None if self._layers.counts else self._unpartitioned(0),
                "param_shapes": None,
            }
        return {"optimizer": None, "param_shapes": [flat.shapes(self._outline) for flat in self._flat.of(0)]}

    def _stage_tree(self) -> dict[str, Any]:
        """Return the model file of a stage, which has no tensors but where it has experts: then all but those."""
        outline, stages = self._outline, len(self._chosen.pipeline)
        counts = list(self._layers.counts.values())
        names = [f"{layer}.{key}" for layer, keys in self._stage.layers.items() for key in keys]
        atoms = [name for keys in self._stage.layers.values() for name in keys.values()]
        if counts:
            names = atoms = outline.in_order(self._stage.atoms)
        values = model_values(outline)
        values.pop("num_experts", None)
        return {
            "module": OrderedDict(
                (name, outline.tensor(name, "value")) for name in atoms if not expert_name(name)
            )
            if counts
            else None,
            "buffer_names": [
                key for key, name in zip(names, atoms, strict=True) if outline.role(name) == "buffer"
            ],
            **self._named(),
            "frozen_param_shapes": None,
            "shared_params": {},
            "frozen_param_fragments": None,
            **values,
            **({"num_experts": counts} if counts else {}),
            "dp_world_size": self._chosen.world_size,
            "mp_world_size": stages,
            "checkpoint_parallel_dimensions": {"pp_degree": stages, "tp_degree": 1},
        }

    def _model_tree(self, rank: int) -> dict[str, Any]:
        outline, chosen = self._outline, self._chosen
        frozen = [
            name
            for name in outline.module
            if chosen.stage > 1 and name not in outline.trained and not outline.is_buffer(name)
        ]
        module: OrderedDict[str, OutTensor] = OrderedDict()
        for name in outline.in_order(outline.module):
            if expert_name(name):
                continue
            tensor = outline.tensor(name, "value")
            if chosen.stage == 3 and (name in outline.trained or name in frozen):
                tensor = outline.flat([], tensor.dtype)
            module[name] = tensor
            module.update(dict.fromkeys(outline.module[name].aliases, tensor))
        shapes = OrderedDict((name, TorchSize(outline.shape(name))) for name in frozen)
        counts = list(self._layers.counts.values())
        return {
            "module": module,
            "buffer_names": [name for name in outline.module if outline.role(name) == "buffer"],
            **self._named(),
            "frozen_param_shapes": shapes if chosen.stage > 1 else None,
            "shared_params": outline.shared if chosen.stage > 0 else None,
            "frozen_param_fragments": OrderedDict(
                (name, self._fragment(name, rank) if chosen.stage == 3 else module[name]) for name in frozen
            )
            if chosen.stage > 1
            else None,
            **model_values(outline, rank, chosen.tensor_degree),
            **self._own,
            **({"num_experts": counts} if counts else {}),
            "dp_world_size": chosen.world_size,
            "mp_world_size": chosen.tensor_degree,
            "checkpoint_parallel_dimensions": {"pp_degree": 1, "tp_degree": chosen.tensor_degree},
        }

    def _fragment(self, name: str, rank: int) -> OutTensor:
        slot = self._outline.module[name]["value"]
        return self._outline.flat(list(part_of(slot, self._chosen.world_size, rank)), slot.dtype.name)

    def _optimizer_tree(self, rank: int) -> dict[str, Any]:
        outline, chosen = self._outline, self._chosen
        flat = self._flat.of(rank)
        places = [chosen.place(rank, group.expert_degree)[1] for group in flat]
        held = list(zip(flat, places, strict=True))
        states = {
            number: state
            for number, (group, place) in enumerate(held)
            if (state := group.state(outline, chosen, place))
        }
        groups = [
            {**group.options, "params": [number for number, part in enumerate(flat) if part.number == place]}
            for place, group in enumerate(self._groups)
        ]
        base = {"state": states, "param_groups": groups}
        masters = [group.master(outline, chosen, place) for group, place in held]
        inner = wrapper_values(outline, chosen.stage)
        if chosen.stage == 3:
            inner |= {
                "partition_count": chosen.world_size,
                "optimizer_state_dict": base,
                "fp32_flat_groups": masters,
            }
        else:
            inner |= {
                "base_optimizer_state": base,
                "single_partition_of_fp32_groups": masters,
                "group_paddings": [group.part_size - group.used(place) for group, place in held],
                "param_alignment_paddings": [[0] * len(group.names) for group in flat],
                "partition_count": [group.degree for group in flat],
                "ds_version": VERSION,
                "param_slice_mappings": [group.addresses(outline, place) for group, place in held],
            }
        config = configuration(outline, chosen.tensor_degree)
        return {"optimizer_state_dict": inner, "ds_config": config, "ds_version": VERSION}


def _own_names(group: SharedGroup) -> dict[str, str]:
    """Return what a stage calls those of its parameters that another stage has under the same name."""
    return {name: own[0] for names in group.names for name in names if (own := own_parts(name))}


def _is_bfloat16(outline: Outline) -> bool:
    """Return whether DeepSpeed would train in bf16, which the names of the optimizer's files tell."""
    return any(outline.module[name]["value"].dtype.name == "bfloat16" for name in outline.trained)
