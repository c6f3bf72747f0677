"""Optimizers without ZeRO to write: torch's own ``state_dict``, wrapped under bf16 and fp16 (see `unpartitioned`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ucpformat.conversion.formats.deepspeed.out_values import scaler_state
from ucpformat.conversion.formats.deepspeed.outlines import Group, Outline
from ucpformat.errors import error

__all__ = ["unpartitioned_optimizer"]

_LOW: Final = ("bfloat16", "float16")


def unpartitioned_optimizer(outline: Outline, groups: Sequence[Group]) -> dict[str, Any]:
    """Return what the model file has as its optimizer; parameters are numbered over ``groups``.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for an empty group, which stock DeepSpeed leaves out.
    """
    kinds = {outline.module[name]["value"].dtype.name for group in groups for name in group.names}
    numbers: dict[str, int] = {}
    for number, group in enumerate(groups):
        if not group.names:
            raise error("UCP-E-MISMATCH", f"parameter group {number} is empty, which DeepSpeed leaves out")
        numbers |= {name: len(numbers) + place for place, name in enumerate(group.names)}
    state = {number: held for name, number in numbers.items() if (held := _state(outline, name))}
    listed = [{**group.options, "params": [numbers[name] for name in group.names]} for group in groups]
    tree: dict[str, Any] = {"state": state, "param_groups": listed}
    if not kinds & set(_LOW):
        return tree
    masters = [
        [
            outline.tensor(name, "master" if "master" in outline.module[name] else "value", "float32")
            for name in group.names
        ]
        for group in groups
    ]
    return {**scaler_state(outline), "optimizer_state_dict": tree, "fp32_groups": masters}


def _state(outline: Outline, name: str) -> Mapping[str, Any]:
    return {**outline.numbers(name), **{slot: outline.tensor(name, slot) for slot in outline.states(name)}}
