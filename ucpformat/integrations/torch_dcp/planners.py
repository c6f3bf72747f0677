"""Planners for DTensors of which a rank holds several boxes: strided shards in any position.

DCP's own planner takes the local tensor of a rank for one box that begins at its first element, which is wrong for
these (torch/distributed/checkpoint/planner_helpers.py, `_create_write_items_for_dtensor`, PyTorch 2.13). Everything
else goes DCP's own way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import (
    DefaultLoadPlanner,
    DefaultSavePlanner,
    create_default_local_load_plan,
)
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.tensor import DTensor

from ucpformat.geometry import row_major_strides
from ucpformat.state_dict.tensors.local_tensors import local_tensor

__all__ = ["UcpLoadPlanner", "UcpSavePlanner"]


@dataclass(frozen=True, slots=True)
class _LocalBox:
    """A box of a DTensor: where it begins as a whole, and in the local tensor."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    local: tuple[int, ...]

    def chunk(self) -> ChunkStorageMetadata:
        return ChunkStorageMetadata(torch.Size(self.offset), torch.Size(self.shape))

    def of(self, local: torch.Tensor) -> torch.Tensor:
        for dim, (start, length) in enumerate(zip(self.local, self.shape, strict=True)):
            local = local.narrow(dim, start, length)
        return local


def _boxes(key: str, tensor: object) -> list[_LocalBox] | None:
    """Return the boxes of a DTensor with a strided shard; None for everything else."""
    if not isinstance(tensor, DTensor) or all(
        getattr(placement, "split_factor", 1) == 1 for placement in tensor.placements
    ):
        return None
    if tensor.device_mesh.get_coordinate() is None:
        return []
    rank = torch.distributed.get_rank()
    found = local_tensor(tensor, rank=rank, at=key)
    local_map = None if found is None else found.local_map(rank)
    if local_map is None:
        return []
    strides = row_major_strides(local_map.shape)
    boxes = []
    for piece in local_map.pieces:
        rest = piece.local.offset
        local = []
        for stride in strides:
            place, rest = divmod(rest, stride)
            local.append(place)
        boxes.append(_LocalBox(piece.box.offset, piece.box.shape, tuple(local)))
    return boxes


class UcpSavePlanner(DefaultSavePlanner):
    """DCP's default planner, which also knows ranks that hold several boxes of a DTensor."""

    def create_local_plan(self) -> SavePlan:
        """Return items for the state dict; those of strided shards are one for each box."""
        self._boxes = {
            (key, box.offset): box
            for key, tensor in self.state_dict.items()
            for box in _boxes(key, tensor) or ()
        }
        strided = {key: tensor for key, tensor in self.state_dict.items() if _boxes(key, tensor) is not None}
        everything = self.state_dict
        self.state_dict = {key: value for key, value in everything.items() if key not in strided}
        try:
            plan = super().create_local_plan()
        finally:
            self.state_dict = everything
        if not plan.usable:  # the same as last time, which planners may remember
            return plan
        items = [
            WriteItem(
                index=MetadataIndex(key, offset),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(
                    chunk=box.chunk(),
                    properties=TensorProperties.create_from_tensor(strided[key].to_local()),
                    size=strided[key].size(),
                ),
            )
            for (key, offset), box in self._boxes.items()
        ]
        self.plan = replace(plan, items=[*plan.items, *items])
        return self.plan

    def lookup_object(self, index: MetadataIndex) -> Any:
        """Return the object, or the box of a local tensor that an item is about."""
        box = self._boxes.get((index.fqn, tuple(index.offset or ())))
        if box is None:
            return super().lookup_object(index)
        return box.of(self.state_dict[index.fqn].to_local())


class UcpLoadPlanner(DefaultLoadPlanner):
    """DCP's default planner, which also knows ranks that hold several boxes of a DTensor."""

    def create_local_plan(self) -> Any:
        """Return items for the state dict; those of strided shards are one or more for each box."""
        strided = {
            key: boxes
            for key, tensor in self.state_dict.items()
            if (boxes := _boxes(key, tensor)) is not None
        }
        self._boxes = {(key, box.offset): box for key, boxes in strided.items() for box in boxes}
        if self.metadata is None:
            raise AssertionError("the planner was not set up by a load")
        # DCP's own method takes keys that are left out for those of an old release.
        others = {key: value for key, value in self.state_dict.items() if key not in strided}
        plan = create_default_local_load_plan(others, self.metadata, not self.allow_partial_load)
        for key, boxes in strided.items():
            found = self.metadata.state_dict_metadata.get(key)
            if isinstance(found, TensorStorageMetadata) and found.size == self.state_dict[key].size():
                plan.items += create_read_items_for_chunk_list(key, found, [box.chunk() for box in boxes])
            elif found is None and self.allow_partial_load:
                continue
            else:
                raise RuntimeError(f"{key} is missing in the checkpoint, or has another size there")
        return plan

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        """Return the tensor, or the box of a local tensor that an item is about."""
        box = self._boxes.get((index.fqn, tuple(index.offset or ())))
        if box is None:
            found: torch.Tensor = super().lookup_tensor(index)
            return found
        return box.of(self.state_dict[index.fqn].to_local())
