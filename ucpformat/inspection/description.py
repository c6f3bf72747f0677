"""What a checkpoint holds, from its documents alone: `ucpformat.inspect`."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

from ucpformat.errors import error
from ucpformat.model.atom import place_to_json
from ucpformat.reader import open_checkpoint

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from ucpformat.inspection.statistics import SlotStatistics
    from ucpformat.reader import AtomView, Checkpoint

__all__ = ["chosen_atoms", "described", "inspect"]


def inspect(path: str | os.PathLike[str], *, only: str | Sequence[str] = ()) -> dict[str, object]:
    """Describe a checkpoint: its documents are read, its data are not.

    Args:
        path: a local path or any fsspec URL.
        only: one or more globs over names of atoms, as those of `load`; all where none is given.

    Returns:
        What ``ucp inspect --format json`` prints: `Checkpoint.metadata`, and ``log`` (the ``id`` of the update log that
        goes on from it, and the ``epoch``, or None), ``nbytes`` of all tensors, ``packs`` (none in storage plain),
        ``meshes``, ``layouts``, ``atoms`` (with each slot's ``dtype``, ``shape`` in elements and ``nbytes``),
        ``values``, ``optimizers``, ``pipeline``, ``blobs`` and ``images``. Its schema is
        ``inspection/description.schema.json`` of the package.

    Raises:
        UcpError: as `open`; ``UCP-E-MISMATCH`` for a glob that matches no atom.

    >>> report = ucp.save("run.ucp", {"fc.weight": np.ones((3, 2)), "fc.bias": np.ones(3), "epoch": 3}, step=100)
    >>> found = ucp.inspect("run.ucp", only="*.weight")
    >>> found["step"], [(atom["name"], atom["slots"]["value"]["shape"]) for atom in found["atoms"]], found["values"]
    (100, [('fc.weight', [3, 2])], {'epoch': 3})
    """
    with open_checkpoint(path) as checkpoint:
        return described(checkpoint, chosen_atoms(checkpoint, [only] if isinstance(only, str) else only))


def chosen_atoms(checkpoint: Checkpoint, only: Sequence[str]) -> list[AtomView]:
    """Return the atoms that match one of some globs, or all where there is none.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a glob that matches none.
    """
    for glob in only:
        if not checkpoint.glob(glob):
            message = f"none of the {len(checkpoint)} atoms matches {glob!r}; leave it out to see all names"
            raise error("UCP-E-MISMATCH", message, at=checkpoint.path)
    return list(checkpoint.glob(*only).values() if only else checkpoint.values())


def described(
    checkpoint: Checkpoint,
    atoms: Sequence[AtomView],
    statistics: Mapping[tuple[str, str], SlotStatistics] = MappingProxyType({}),
) -> dict[str, object]:
    """Describe an open checkpoint, and of its atoms these; slots with the statistics that there are of them."""
    meshes_and_layouts = checkpoint.root.to_json()
    state, packs, log = checkpoint.state, checkpoint.packs, checkpoint.root.log
    return {
        **checkpoint.metadata,
        "log": None if log is None else log.to_json(),
        "nbytes": sum(slot.nbytes for view in checkpoint.values() for slot in view.values()),
        "packs": packs
        and [{"key": pack.key, "length": pack.length, "shared": pack.shared} for pack in packs],
        "meshes": meshes_and_layouts["meshes"],
        "layouts": meshes_and_layouts["layouts"],
        "atoms": [
            {
                "name": view.name,
                "key": view.atom.key,
                "aliases": list(view.aliases),
                "annotations": dict(view.annotations),
                "slots": {
                    name: {
                        "dtype": slot.dtype.name,
                        "shape": list(slot.shape),
                        "nbytes": slot.nbytes,
                        "chunk_shape": list(slot.chunk_shape),
                        "chunks": slot.stored.grid.count,
                        "layout": slot.stored.slot.layout,
                        "place": None if slot.place is None else place_to_json(slot.place),
                        "annotations": dict(slot.annotations),
                        "content": slot.stored.slot.content,
                        **(
                            {"statistics": statistics[view.name, name].to_json()}
                            if (view.name, name) in statistics
                            else {}
                        ),
                    }
                    for name, slot in view.items()
                },
            }
            for view in atoms
        ],
        "values": dict(state.values),
        "optimizers": {name: optimizer.to_json() for name, optimizer in state.optimizers.items()},
        "pipeline": None if checkpoint.pipeline is None else checkpoint.pipeline.to_json(),
        "blobs": {name: blob.to_json() for name, blob in state.blobs.items()},
        "images": {name: image.to_json() for name, image in state.images.items()},
    }
