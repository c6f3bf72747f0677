"""What is not a tensor: members of DeepSpeed's files as values, and its parameter groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from ucpformat.conversion.formats.deepspeed.files.states import ModelStates
from ucpformat.errors import UcpError, error
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.state_dict.keys.origins import SOURCE
from ucpformat.tensor_files.deepspeed_globals import instance_state
from ucpformat.tensor_files.object_tree import Instance
from ucpformat.tensor_files.tagged import encode
from ucpformat.tensor_files.torch_file import TorchFile

if TYPE_CHECKING:
    from ucpformat.jsonio import JsonValue

__all__ = ["OPTIMIZER", "SCALERS", "WRAPPER", "Groups", "state_document", "step_of"]

Groups = Sequence[tuple[Sequence[str], Mapping[str, Any]]]
"""Of every parameter group the names, in order, and the options."""

OPTIMIZER: Final = "optim"
SCALERS: Final = "deepspeed.runtime.fp16.loss_scaler."
WRAPPER: Final = "zero_optimizer"
"""The value that holds what DeepSpeed's optimizer has around torch's: loss scale, overflow, clipping."""


def state_document(
    models: Sequence[ModelStates],
    wrapper: Mapping[str, Any] | None,
    groups: Groups,
    file: TorchFile,
    note: Mapping[str, JsonValue],
    others: Sequence[ModelStates] = (),
) -> StateDocument:
    """Return values of the first of ``models``, those of others where they differ, and the parameter groups.

    ``wrapper`` and the groups' options are of ``file``; ``others`` are of further model-parallel ranks.

    Raises:
        ImportRefusedError: ``UCP-E-OBJECT``, naming file and member, for what cannot be expressed.
    """
    values: dict[str, JsonValue] = {}
    for rank, model in enumerate(models):
        for key, value in model.values.items():
            encoded = _encoded(model.file, key, value)
            if rank == 0:
                values[key] = encoded
            elif values.get(key) != encoded:
                values[f"rank/{rank}/{key}"] = encoded
    for rank, model in enumerate(others, 1):
        for key, value in model.values.items():
            if (encoded := _encoded(model.file, key, value)) != values.get(key):
                values[f"mp_rank/{rank}/{key}"] = encoded
    if wrapper is not None:
        values[WRAPPER] = _encoded(
            file, WRAPPER, {key: _plain_scaler(value) for key, value in wrapper.items()}
        )
    optimizers = {}
    if groups:
        optimizers[OPTIMIZER] = Optimizer(
            tuple(
                ParameterGroup(
                    tuple(names), {key: _encoded(file, key, value) for key, value in options.items()}
                )
                for names, options in groups
            )
        )
    return StateDocument(values, optimizers, {}, {SOURCE: dict(note)})


def _plain_scaler(value: object) -> object:
    """Return a loss scaler as plain data, which every destination holds; `out_values` makes the object of it again."""
    if isinstance(value, Instance) and value.kind.startswith(SCALERS):
        return {"class": value.kind.removeprefix(SCALERS), "state": dict(instance_state(value))}
    return value


def _encoded(file: TorchFile, key: str, value: object) -> JsonValue:
    try:
        return encode(file.plain(value), at=key)
    except UcpError as refusal:
        raise error(refusal.code, f"{key!r}: {refusal.message}", at=file.name) from refusal


def step_of(model: ModelStates) -> int | None:
    """Return how many steps were taken, None where that is not said."""
    step = model.values.get("global_steps")
    return step if type(step) is int and step >= 0 else None
