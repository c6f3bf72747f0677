"""Layouts of the block-wise states of torchao's optimizers under FSDP2 (torchao/optim/subclass_8bit.py, torchao 0.18).

Each rank quantises its own local tensor: codes lie as the parameter does, and there is one scale for every block of
the flattened local tensor. With whole blocks on every rank these are the scales of the whole, divided.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ucpformat.errors import error
from ucpformat.geometry import Layout, Shard
from ucpformat.state_dict.keys.paths import dotted, flatten
from ucpformat.state_dict.stateful import state_to_save
from ucpformat.state_dict.tensors.local_tensors import TensorLayout, is_tensor
from ucpformat.state_dict.tensors.torch_layouts import layout_of

__all__ = ["block_layouts"]

_KINDS = ("OptimState8bit", "OptimStateFp8")


def block_layouts(state: Mapping[str, Any]) -> dict[str, TensorLayout]:
    """Return the ``layouts=`` of `save` and `load` for a state of modules and optimizers, or of their state dicts.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, naming the entry, for parameters that are not divided in equal parts
            along dim 0 over one axis of the mesh.
    """
    found: dict[str, TensorLayout] = {}
    for path, leaf in flatten(state_to_save(state), is_tensor).items():
        if not is_tensor(leaf) or not hasattr(leaf, "device_mesh"):
            continue
        whole: Any = leaf
        local = whole.to_local()
        if type(local).__name__ in _KINDS:
            name = dotted(path)
            found[f"{name}.scale"] = _scales(whole, local, name)
            if hasattr(local, "qmap"):
                table = Layout(layout_of(whole).mesh, ())
                found[f"{name}.qmap"] = TensorLayout(table, tuple(local.qmap.shape))
    return found


def _scales(whole: Any, local: Any, name: str) -> TensorLayout:
    layout = layout_of(whole)
    shards = [step for step in layout.steps if isinstance(step, Shard)]
    parts = whole.numel() // max(1, local.numel())
    count = int(local.scale.numel()) * parts
    sizes = {axis.name: axis.size for axis in layout.mesh.axes}
    if len(shards) > 1 or len(shards) < len(layout.steps) or local.numel() * parts != whole.numel():
        shards = []
    if parts > 1 and (not shards or shards[0].dim != 0 or sizes[shards[0].axis] != parts):
        raise error(
            "UCP-E-MISMATCH",
            "blocks of a parameter that is not divided in equal parts along dim 0 over one axis; "
            "give the layouts of its scales, or keep states in full precision",
            at=name,
        )
    return TensorLayout(Layout(layout.mesh, tuple(Shard(step.axis, 0) for step in shards)), (count,))
