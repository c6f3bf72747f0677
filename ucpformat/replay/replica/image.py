"""The whole state of a model and its optimizer as a JSON document and bytes, from process to process."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch

from ucpformat.errors import error
from ucpformat.model.dtype import dtype
from ucpformat.model.values import decode, encode
from ucpformat.replay.gradients import like
from ucpformat.replay.replica.sharding import Sharding
from ucpformat.replay.replica.wire import receive_into
from ucpformat.replay.tracked import flat_elements, local_of, optimizer_name, options_of, plain_name
from ucpformat.state_dict.objects import WITH_TORCH, extend
from ucpformat.state_dict.tensors.local_tensors import destination_of, tensor_dtype, to_torch
from ucpformat.storage.host_memory import flat_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator, Mapping, Sequence

    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.jsonio import JsonValue

__all__ = ["Image", "filled", "image_of", "made", "require_known", "require_same", "send_tensors"]

_OPTIMIZERS: Final = frozenset(
    {
        "ASGD",
        "Adadelta",
        "Adafactor",
        "Adagrad",
        "Adam",
        "AdamW",
        "Adamax",
        "NAdam",
        "RAdam",
        "RMSprop",
        "Rprop",
    }
    | {"SGD"}
)
"""Classes of torch.optim that a replica makes; what is not here is never imported or called."""


class ModelTensor(NamedTuple):
    """A parameter or buffer of a model: its names, the first of which is the atom's, and what this rank holds of it."""

    names: tuple[str, ...]
    dtype: str
    shape: tuple[int, ...]
    is_parameter: bool
    requires_grad: bool
    sharding: Sharding | None = None

    def to_json(self) -> list[JsonValue]:
        """Return what `from_json` reads."""
        sharding = None if self.sharding is None else self.sharding.to_json()
        return [
            list(self.names),
            self.dtype,
            list(self.shape),
            self.is_parameter,
            self.requires_grad,
            sharding,
        ]

    @classmethod
    def from_json(cls, value: Any) -> ModelTensor:
        """Read what `to_json` has made."""
        names, dtype_, shape, is_parameter, requires_grad, sharding = value
        return cls(
            tuple(names), dtype_, tuple(shape), is_parameter, requires_grad, Sharding.from_json(sharding)
        )


class OptimizerState(NamedTuple):
    """A state that an optimizer has of a parameter: a tagged value, or a tensor, over the ranks as that or whole."""

    tensor: int
    name: str
    dtype: str | None
    shape: tuple[int, ...]
    value: JsonValue = None
    is_spread: bool = False


@dataclass(frozen=True, slots=True)
class Image:
    """What a state is made of; its bytes are those of ``tensors`` and then of ``states``, in order."""

    tensors: tuple[ModelTensor, ...]
    optimizer: str
    groups: tuple[tuple[int, ...], ...]
    options: tuple[Mapping[str, JsonValue], ...]
    states: tuple[OptimizerState, ...]

    def to_json(self) -> dict[str, JsonValue]:
        """Return the JSON object that `from_json` reads."""
        return {
            "tensors": [one.to_json() for one in self.tensors],
            "optimizer": self.optimizer,
            "groups": [list(one) for one in self.groups],
            "options": [dict(one) for one in self.options],
            "states": [
                [one.tensor, one.name, one.dtype, list(one.shape), one.value, one.is_spread]
                for one in self.states
            ],
        }

    @classmethod
    def from_json(cls, value: Any) -> Image:
        """Read what a process of this library, and of the same user, has sent."""
        return cls(
            tuple(map(ModelTensor.from_json, value["tensors"])),
            value["optimizer"],
            tuple(map(tuple, value["groups"])),
            tuple(value["options"]),
            tuple(
                OptimizerState(one[0], one[1], one[2], tuple(one[3]), one[4], one[5])
                for one in value["states"]
            ),
        )


def require_known(optimizer: Optimizer) -> None:
    """Refuse an optimizer that a replica does not make.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``.
    """
    module, _, name = optimizer_name(optimizer).rpartition(".")
    if module != "torch.optim" or name not in _OPTIMIZERS:
        message = f"a replica makes optimizers of torch.optim, not {module}.{name}; log without a replica"
        raise error("UCP-E-MISMATCH", message, at="replica")


def image_of(model: Module, optimizer: Optimizer) -> tuple[Image, list[Any]]:
    """Return what a state is made of, and its tensors in the order of their bytes.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a model whose state dict has more than tensors, or tensors on several
            ranks.
    """
    names: dict[int, list[str]] = {}
    found: dict[int, Any] = {}
    for name, one in model.state_dict(keep_vars=True).items():
        if not isinstance(one, torch.Tensor):
            message = "a replica holds a model of tensors alone; log without a replica"
            raise error("UCP-E-MISMATCH", message, at=name)
        names.setdefault(id(one), []).append(plain_name(name))
        found[id(one)] = one
    order = {key: number for number, key in enumerate(found)}
    tensors = [
        ModelTensor(
            tuple(names[key]),
            tensor_dtype(local_of(one), at=names[key][0]),
            tuple(local_of(one).shape),
            isinstance(one, torch.nn.Parameter),
            one.requires_grad,
            Sharding.of(one, at=names[key][0]),
        )
        for key, one in found.items()
    ]
    groups = tuple(tuple(order[id(one)] for one in group["params"]) for group in optimizer.param_groups)
    states: list[OptimizerState] = []
    sent: list[Any] = list(found.values())
    for number in chain.from_iterable(groups):
        for name, value in optimizer.state.get(sent[number], {}).items():
            at = f"{tensors[number].names[0]}/{name}"
            if isinstance(value, torch.Tensor):
                if Sharding.of(value, at=at) not in (None, tensors[number].sharding):
                    message = "a replica holds states that lie over the ranks as their parameters do"
                    raise error("UCP-E-MISMATCH", f"{message}; log without a replica", at=at)
                held = local_of(value)
                is_spread = hasattr(value, "device_mesh")
                states.append(
                    OptimizerState(
                        number, name, tensor_dtype(held, at=at), tuple(held.shape), None, is_spread
                    )
                )
                sent.append(value)
            else:
                states.append(OptimizerState(number, name, None, (), encode(value, at=at, extend=extend)))
    options = tuple(options_of(optimizer))
    return Image(tuple(tensors), optimizer_name(optimizer), groups, options, tuple(states)), sent


def send_tensors(stream: socket.socket, tensors: Sequence[Any]) -> None:
    """Send the bytes of tensors; raises `OSError`."""
    for one in tensors:
        elements = flat_elements(local_of(one), "replica")
        if elements.size:
            stream.sendall(flat_bytes(np.ascontiguousarray(elements)))


def _received(stream: socket.socket, name: str, shape: tuple[int, ...]) -> torch.Tensor:
    memory = np.empty(shape, dtype(name).numpy)
    if memory.size:
        receive_into(stream, flat_bytes(memory.reshape(-1)))
    found: torch.Tensor = to_torch(memory, name)
    return found


def made(image: Image, stream: socket.socket) -> tuple[Module, Optimizer]:
    """Return a model without a forward, and an optimizer, with the state whose bytes come.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` for an optimizer that is not on the list, ``UCP-E-VALUE``.
        OSError: where the stream ends.
    """
    module, _, name = image.optimizer.rpartition(".")
    if module != "torch.optim" or name not in _OPTIMIZERS:
        raise error("UCP-E-MISMATCH", f"{image.optimizer} is not on the list of optimizers", at="replica")
    model = torch.nn.Module()
    tensors: list[torch.Tensor] = []
    for one in image.tensors:
        tensor = _received(stream, one.dtype, one.shape)
        if one.sharding is not None:
            tensor = one.sharding.spread(tensor)
        if one.is_parameter:
            tensor = torch.nn.Parameter(tensor, requires_grad=one.requires_grad)
        tensors.append(tensor)
        for path in one.names:
            _register(model, path, tensor, is_parameter=one.is_parameter)
    groups = [{"params": [tensors[number] for number in members]} for members in image.groups]
    optimizer: Optimizer = getattr(torch.optim, name)(groups, lr=1e-3)
    _give_states(image, optimizer, tensors, stream)
    return model, optimizer


def _register(model: Module, path: str, tensor: torch.Tensor, *, is_parameter: bool) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        if parent not in model._modules:
            model.add_module(parent, torch.nn.Module())
        model = getattr(model, parent)
    if is_parameter:
        model.register_parameter(last, tensor)  # type: ignore[arg-type]
    else:
        model.register_buffer(last, tensor)


def _give_states(
    image: Image, optimizer: Optimizer, tensors: Sequence[torch.Tensor], stream: socket.socket
) -> None:
    states: dict[int, dict[str, Any]] = {}
    for one in image.states:
        owner = tensors[one.tensor]
        if one.dtype is None:
            value = decode(one.value, at=f"replica/{one.name}", restore=WITH_TORCH)
        else:
            value = _received(stream, one.dtype, one.shape)
            local = local_of(owner)
            if one.shape == tuple(local.shape) and one.shape:
                # In the order of the parameter's own memory, and where that is, as torch makes it.
                value = torch.empty_like(local, dtype=value.dtype).copy_(value)
            if one.is_spread:
                value = like(value, owner)
        states.setdefault(one.tensor, {})[one.name] = value
    optimizer.state.clear()
    for number, found in states.items():
        optimizer.state[tensors[number]] = found
    for group, options in zip(optimizer.param_groups, image.options, strict=True):
        for name, value in options.items():
            group[name] = decode(value, at=f"replica/options/{name}", restore=WITH_TORCH)


def require_same(image: Image, model: Module, optimizer: Optimizer) -> None:
    """Refuse a model and an optimizer that have other tensors or groups.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``.
    """
    mine, _ = image_of(model, optimizer)
    for one, other in _pairs(mine, image):
        if (
            one is None
            or other is None
            or (one.names, one.dtype, one.shape, one.sharding)
            != (other.names, other.dtype, other.shape, other.sharding)
        ):
            known = one or other
            message = "the replica is of a model that has this tensor otherwise, or not at all"
            raise error("UCP-E-MISMATCH", message, at=known.names[0] if known else "")
    if (mine.optimizer, mine.groups) != (image.optimizer, image.groups):
        message = f"the replica is of {image.optimizer}, with other parameter groups or of another class"
        raise error("UCP-E-MISMATCH", message, at="replica")


def filled(image: Image, stream: socket.socket, model: Module, optimizer: Optimizer) -> None:
    """Give a model and its optimizer, which are of the same tensors and groups, the state whose bytes come.

    Raises:
        OSError: where the stream ends: they are partly filled.
    """
    _, tensors = image_of(model, optimizer)
    with torch.no_grad():
        for one, tensor in zip(image.tensors, tensors[: len(image.tensors)], strict=True):
            _fill(stream, one, tensor)
    _give_states(image, optimizer, tensors, stream)


def _pairs(first: Image, second: Image) -> Iterator[tuple[ModelTensor | None, ModelTensor | None]]:
    mine = {one.names[0]: one for one in first.tensors}
    theirs = {one.names[0]: one for one in second.tensors}
    if list(mine) != list(theirs) and mine.keys() == theirs.keys():
        # Their bytes come in the order of the model that was trained.
        raise error("UCP-E-MISMATCH", "the model has its tensors in another order", at=next(iter(mine)))
    for name in {**mine, **theirs}:
        yield mine.get(name), theirs.get(name)


def _fill(stream: socket.socket, one: ModelTensor, tensor: torch.Tensor) -> None:
    local = local_of(tensor)
    if local.device.type == "cpu" and local.is_contiguous() and local.numel():
        receive_into(stream, flat_bytes(destination_of(local, at=one.names[0]).reshape(-1)))
    else:
        local.copy_(_received(stream, one.dtype, one.shape))
