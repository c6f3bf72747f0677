"""Universal checkpoint to DCP (SPEC appendix A.1): the original keys where they are known, the usual ones elsewhere.

Needs torch, to write what stock ``torch.distributed.checkpoint.load`` reads.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ucpformat.errors import error
from ucpformat.frameworks.origins import alias_paths, group_origin, key_path, slot_path, value_paths
from ucpformat.frameworks.state_groups import expand_groups
from ucpformat.frameworks.torch_dcp.export import ExportTensor, write_dcp
from ucpformat.frameworks.torch_dcp.importer import PICKLE
from ucpformat.frameworks.torch_dcp.items import KeyPath
from ucpformat.frameworks.torch_dcp.tagged import decode
from ucpformat.geometry import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ucpformat.jsonio import JsonValue
    from ucpformat.reader import Checkpoint
    from ucpformat.views import AtomView, SlotView

__all__ = ["SlotReader", "export_dcp"]


@dataclass(frozen=True, slots=True)
class SlotReader:
    """A slot as `ExportTensor` reads it."""

    checkpoint: Checkpoint
    slot: SlotView
    progress: Callable[[int], None]

    def __call__(self, offset: tuple[int, ...], shape: tuple[int, ...], out: NDArray[np.uint8]) -> None:
        """Fill ``out`` with the bytes of a box."""
        target = out.view(self.slot.dtype.numpy).reshape(shape)
        self.checkpoint.read_box(self.slot.stored, Box(offset, shape), target)
        self.progress(out.nbytes)


def export_dcp(
    checkpoint: Checkpoint, path: str | os.PathLike[str], *, progress: Callable[[int], None]
) -> int:
    """Write a checkpoint as a DCP directory; returns the number of objects beside the tensors.

    Raises:
        UcpError: ``UCP-E-EXISTS`` for a directory that is not empty, ``UCP-E-DTYPE`` for types that torch lacks,
            ``UCP-E-NAME`` where two things would get one key, and what reading raises.
    """
    paths: dict[str, KeyPath] = {}

    def claim(steps: KeyPath) -> str:
        key = ".".join(map(str, steps))
        if key in paths:
            raise error("UCP-E-NAME", f"two parts of the checkpoint would have the DCP key {key!r}")
        paths[key] = steps
        return key

    tensors = {}
    for view in checkpoint.values():
        for steps, slot in _slots(view):
            tensors[claim(steps)] = ExportTensor(
                slot.dtype.name, slot.shape, SlotReader(checkpoint, slot, progress)
            )
    objects: dict[str, object] = {}
    for steps, value in _objects(checkpoint):
        key = claim(steps)
        objects[key] = decode(value, at=key)
    stored: dict[str, bytes] = {}
    nested = value_paths(checkpoint.state)
    for name, blob in checkpoint.state.blobs.items():
        key = claim(key_path(nested.get(name, (name,))))
        (stored if blob.media_type == PICKLE else objects)[key] = checkpoint.blob(name)
    write_dcp(path, tensors, objects, paths, stored=stored)
    return len(objects) + len(stored)


def _slots(view: AtomView) -> Iterator[tuple[KeyPath, SlotView]]:
    """The slots of an atom with their DCP paths; a tied value under each of its names."""
    for name, slot in view.items():
        yield key_path(slot_path(view.atom.name, name, slot.stored.slot.annotations)), slot
    for path in alias_paths(view.atom):
        yield key_path(path), view["value"]


def _objects(checkpoint: Checkpoint) -> Iterator[tuple[KeyPath, JsonValue]]:
    """Values and parameter groups with their DCP paths, still encoded."""
    nested = value_paths(checkpoint.state)
    for name, value in checkpoint.state.values.items():
        yield key_path(nested.get(name, (name,))), value
    for name, optimizer in checkpoint.state.optimizers.items():
        yield from expand_groups(optimizer, group_origin(checkpoint.state, name)).values()
