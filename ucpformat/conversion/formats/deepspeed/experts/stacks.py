"""Experts in universal checkpoints: what all expert-parallel ranks call by one name, stacked along dim 0.

So DeepSpeed's loader takes it apart (``checkpoint/universal_checkpoint.py``, ``load_hp_checkpoint_state``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from ucpformat.conversion.formats.deepspeed.files.states import Shapes
from ucpformat.model.dtype import dtype
from ucpformat.tensor_files.byte_source import contiguous_strides
from ucpformat.tensor_files.fields import refused
from ucpformat.tensor_files.source_files import SourceFiles
from ucpformat.tensor_files.torch_file import TorchFile
from ucpformat.tensor_files.torch_zip import StoredTensor

__all__ = [
    "ExpertStacks",
    "expert_name",
    "parts_of",
]


class ExpertStacks:
    """Of local names of experts the global ones, by expert-parallel rank; ``shapes`` are of one expert's parameters.

    Raises:
        ImportRefusedError: ``UCP-E-SOURCE``, naming the file, for stacks that are not of whole experts.
    """

    def __init__(self, files: SourceFiles, shapes: Shapes) -> None:
        counts: dict[str, int] = {}
        for name in shapes:
            if parsed := expert_name(name):
                counts[parsed[0]] = max(counts.get(parsed[0], 0), parsed[1] + 1)
        self._named: Mapping[str, Sequence[str]] = {
            name: [f"{before}{rank * counts[before] + number}{behind}" for rank in range(degree)]
            for name, shape in shapes.items()
            if (parsed := expert_name(name)) and (degree := _degree(files, name, shape)) > 1
            for before, number, behind in [parsed]
        }

    def names(self, name: str) -> Sequence[str]:
        """Return what a name stands for."""
        return self._named.get(name, [name])

    def in_order(self, names: Sequence[str]) -> list[str]:
        """Return the names of a group, rank after rank."""
        held = [self.names(name) for name in names]
        degree = max(map(len, held), default=0)
        return [of_rank[rank] for rank in range(degree) for of_rank in held if rank < len(of_rank)]


def _degree(files: SourceFiles, name: str, shape: tuple[int, ...]) -> int:
    file = TorchFile(files, f"zero/{name}/fp32.pt")
    tree = file.tree
    count = tree.get("ep_num_experts") if isinstance(tree, dict) and tree.get("is_expert_param") else None
    if count is None:
        return 1
    extent = (*shape, 1)[0]
    if type(count) is not int or count <= 0 or extent == 0 or count % extent:
        raise refused(f"a stack of {count!r:.20} rows of experts of {extent}", file.name)
    return count // extent


def parts_of(stored: StoredTensor, shape: tuple[int, ...], count: int, at: str) -> Iterator[StoredTensor]:
    """Yield the tensors that a stack of ``count`` of a shape is made of; itself where it is of one."""
    if count == 1:
        yield stored
        return
    extent, *inner = shape or (1,)
    if stored.shape != (extent * count, *inner) or stored.strides != contiguous_strides(stored.shape):
        raise refused(f"a stack of shape {list(stored.shape)}, of {count} experts of {list(shape)}", at)
    size = math.prod(shape) * dtype(stored.dtype).item_bytes
    for place in range(count):
        yield replace(
            stored, shape=shape, strides=contiguous_strides(shape), start=stored.start + place * size
        )


_EXPERT: Final = re.compile(r"(.*\.deepspeed_moe\.experts\.deepspeed_experts\.)(\d{1,9})(\..+)", re.DOTALL)


def expert_name(name: str) -> tuple[str, int, str] | None:
    """Return what is before an expert's number, the number, and what is behind it; None for what is of no expert."""
    match = _EXPERT.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), match[3])
