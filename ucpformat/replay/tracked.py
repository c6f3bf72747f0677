"""Parameters and buffers of a module whose changes a log has, as this rank holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from ucpformat.errors import error
from ucpformat.geometry import Box, Piece, Strided, row_major_strides
from ucpformat.model.values import encode
from ucpformat.state_dict.objects import extend
from ucpformat.state_dict.tensors.local_tensors import elements_of, local_tensor
from ucpformat.update_log.documents import LoggedTensor, LogPiece

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch.nn import Module
    from torch.optim import Optimizer

    from ucpformat.distributed.group import Group
    from ucpformat.jsonio import JsonValue
    from ucpformat.update_log.documents import Epoch, Role

__all__ = [
    "RESIDUALS",
    "GroupOptions",
    "Tracked",
    "TrackedState",
    "follow_buffers",
    "local_of",
    "options_of",
    "piece_view",
    "plain_name",
    "shared_out",
    "tracked_state",
]

RESIDUALS: Final = "residuals"
"""What begins the names of residuals of error feedback, before the name of the parameter."""
_FIXED: Final = frozenset({bool, int, float, str, type(None)})
_PLAIN: Final = frozenset({torch.float16, torch.float32, torch.float64})
"""What numpy knows as it is, and has at once."""
_WRAPPERS: Final = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


@dataclass(eq=False, slots=True)
class Tracked:
    """A parameter, buffer or residual: its atom's name, and which boxes of it lie where in local memory."""

    atom: str
    role: Role
    tensor: Any
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    owner: Any = None
    """The module that has it as a buffer."""
    name: str = ""
    """What its owner calls it."""

    def described(self) -> LoggedTensor:
        """Return what an epoch says of it."""
        return LoggedTensor(self.atom, self.role, self.dtype, self.shape)

    @property
    def is_whole(self) -> bool:
        """Whether this rank holds the whole tensor, as it is."""
        return tuple(local_of(self.tensor).shape) == self.shape and len(self.pieces) == 1


@dataclass(eq=False, slots=True)
class TrackedState:
    """All that a log follows: parameters in the order of the optimizer's groups, buffers, then residuals.

    ``others`` are parameters that the optimizer does not have, by name, with the versions that they had: nothing
    changes them while a log is open.
    """

    tensors: list[Tracked]
    groups: list[list[int]]
    others: list[tuple[str, torch.Tensor, int]] = field(default_factory=list)


def local_of(tensor: Any) -> torch.Tensor:
    """Return what this rank holds of a tensor: the local part of a DTensor, else the tensor itself."""
    found: torch.Tensor = tensor.to_local() if hasattr(tensor, "device_mesh") else tensor
    return found.detach()


def tracked_state(
    model: Module, optimizer: Optimizer, group: Group, residuals: dict[str, Any] | None = None
) -> TrackedState:
    """Return what a log of this model and its optimizer follows.

    ``residuals`` are those of a compressor with error feedback; parameters that have none get zeros.

    Raises:
        UcpError: ``UCP-E-OBJECT`` for a parameter that the model does not have, ``UCP-E-MISMATCH`` or ``UCP-E-DTYPE``
            for a tensor that cannot be followed, or a residual of another parameter.
    """
    names = {id(one): plain_name(name) for name, one in model.named_parameters()}
    tensors: list[Tracked] = []
    groups: list[list[int]] = []
    for options in optimizer.param_groups:
        members = []
        for parameter in options["params"]:
            name = names.get(id(parameter))
            if name is None:
                message = "the optimizer has a parameter that the model has not; give the model that has all of them"
                raise error("UCP-E-OBJECT", message)
            members.append(len(tensors))
            tensors.append(_tracked(name, "gradient", parameter, group))
        groups.append(members)
    persistent = set(model.state_dict(keep_vars=True))
    for name, buffer in model.named_buffers():
        if name in persistent:
            owner, _, own = name.rpartition(".")
            tensors.append(
                replace(
                    _tracked(plain_name(name), "value", buffer, group),
                    owner=model.get_submodule(owner),
                    name=own,
                )
            )
    if residuals is not None:
        parameters = [one for one in tensors if one.role == "gradient"]
        tensors += [_residual(one, residuals, group) for one in parameters]
    mine = {id(one.tensor) for one in tensors}
    others: list[tuple[str, torch.Tensor, int]] = [
        (name, one, one._version)
        for name, one in model.named_parameters()
        if id(one) not in mine and not hasattr(one, "device_mesh") and not one.is_inference()
    ]
    return TrackedState(tensors, groups, others)


def _residual(parameter: Tracked, residuals: dict[str, Any], group: Group) -> Tracked:
    tensor = residuals.get(parameter.atom)
    if tensor is None:
        tensor = residuals[parameter.atom] = torch.zeros_like(parameter.tensor.detach())
    found = _tracked(f"{RESIDUALS}.{parameter.atom}", "residual", tensor, group)
    if (found.dtype, found.shape, found.pieces) != (parameter.dtype, parameter.shape, parameter.pieces):
        message = "the compressor has a residual of another parameter of this name; make a new compressor"
        raise error("UCP-E-MISMATCH", message, at=parameter.atom)
    return found


def plain_name(name: str) -> str:
    """Return the name of a parameter without those that wrappers add, as torch's state dicts have it."""
    parts = [part for part in name.split(".") if part not in _WRAPPERS]
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] == "module" else parts) or name


def follow_buffers(state: TrackedState) -> None:
    """Take the tensors that modules have as buffers now: a forward may have put others in their places.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for one of another shape or data type.
    """
    for one in state.tensors:
        if one.owner is None or (found := getattr(one.owner, one.name, None)) is one.tensor:
            continue
        old = one.tensor
        if not isinstance(found, torch.Tensor) or (found.shape, found.dtype) != (old.shape, old.dtype):
            has = "is gone" if found is None else "has another shape or data type than when the log was begun"
            raise error("UCP-E-MISMATCH", f"the buffer {has}; recover(), and begin another log", at=one.atom)
        one.tensor = found


def _tracked(name: str, role: Role, tensor: Any, group: Group) -> Tracked:
    held = local_tensor(tensor.detach(), rank=group.rank, at=name)
    if held is None:
        return Tracked(name, role, tensor, "float32", tuple(tensor.shape), ())
    found = held.local_map(group.rank)
    pieces = () if found is None else tuple(piece for piece in found.pieces if piece.box.size)
    return Tracked(name, role, tensor, held.dtype, held.shape, pieces)


def piece_view(elements: NDArray[np.generic], place: Strided, box: Box) -> NDArray[np.generic]:
    """Return the elements of a box in the dense local memory ``elements``, 1-D, without a copy."""
    if place.strides == row_major_strides(box.shape):  # most are, and this is several times as fast
        return elements[place.offset : place.offset + box.size].reshape(box.shape)
    strides = [stride * elements.itemsize for stride in place.strides]
    return np.lib.stride_tricks.as_strided(elements[place.offset :], box.shape, strides)


def flat_elements(local: torch.Tensor, name: str) -> NDArray[np.generic]:
    """Return the elements of a local tensor in host memory, 1-D in row-major order; a copy where they lie otherwise."""
    host = local if local.device.type == "cpu" else local.to("cpu")
    is_plain = type(host) is torch.Tensor and host.layout == torch.strided and host.dtype in _PLAIN
    if is_plain and not host.is_neg():
        found: NDArray[np.generic] = host.numpy()
        return found.reshape(-1)
    return elements_of(host, at=name).reshape(-1)


def shared_out(state: TrackedState, group: Group) -> tuple[list[LoggedTensor], list[LogPiece]]:
    """Return tensors and pieces of an epoch: each box that several ranks hold is one rank's, so that shares are even.

    Ranks count in the order of the group. All ranks call this, and get the same.

    Raises:
        UcpError: ``UCP-E-MISMATCH`` where ranks have other tensors.
    """
    mine = [
        [
            one.atom,
            one.role,
            one.dtype,
            list(one.shape),
            [[piece.box.offset, piece.box.shape] for piece in one.pieces],
        ]
        for one in state.tensors
    ]
    texts = group.all_gather(json.dumps(mine).encode())
    all_ranks: list[list[Any]] = [json.loads(text) for text in texts]
    loads = [0] * len(all_ranks)
    tensors: list[LoggedTensor] = []
    pieces: list[LogPiece] = []
    for number, one in enumerate(state.tensors):
        holders: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
        for rank, told in enumerate(all_ranks):
            if len(told) != len(mine) or [told[number][0], told[number][3]] != [one.atom, list(one.shape)]:
                raise error("UCP-E-MISMATCH", "ranks of one job have other parameters", at=one.atom)
            for offset, shape in told[number][4]:
                holders.setdefault((tuple(offset), tuple(shape)), []).append(rank)
        tensors.append(one.described())
        for (offset, shape), ranks in sorted(holders.items()):
            # Buffers that differ from rank to rank are those of the first one, as a checkpoint has them.
            owner = ranks[0] if one.role == "value" else min(ranks, key=lambda rank: (loads[rank], rank))
            loads[owner] += Box(offset, shape).size
            pieces.append(LogPiece(number, owner, offset, shape))
    return tensors, pieces


def held_pieces(state: TrackedState, epoch: Epoch) -> frozenset[int]:
    """Return the numbers of the pieces of an epoch that this rank holds, whoever logs them."""
    mine = {
        (number, piece.box.offset, piece.box.shape)
        for number, one in enumerate(state.tensors)
        for piece in one.pieces
    }
    return frozenset(
        number
        for number, piece in enumerate(epoch.pieces)
        if (piece.tensor, piece.offset, piece.shape) in mine
    )


def optimizer_name(optimizer: Optimizer) -> str:
    """Return what an epoch calls the optimizer."""
    kind = type(optimizer)
    module = "torch.optim" if kind.__module__.startswith("torch.optim.") else kind.__module__
    return f"{module}.{kind.__qualname__}"


def options_of(optimizer: Optimizer) -> list[Mapping[str, JsonValue]]:
    """Return the options of each group of an optimizer, tagged; raises ``UCP-E-OBJECT``."""
    return [
        {
            name: encode(value, at=f"param_groups/{number}/{name}", extend=extend)
            for name, value in options.items()
            if name != "params"
        }
        for number, options in enumerate(optimizer.param_groups)
    ]


class GroupOptions:
    """Options of an optimizer as `options_of` says, tagged anew only where one may have changed."""

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._seen: list[dict[str, Any]] = []
        self._tagged: tuple[Mapping[str, JsonValue], ...] = ()

    def now(self) -> tuple[Mapping[str, JsonValue], ...]:
        """Return the options of each group."""
        groups = self._optimizer.param_groups
        if len(groups) != len(self._seen) or not all(map(_are_same, groups, self._seen)):
            self._tagged = tuple(options_of(self._optimizer))
            self._seen = [dict(options) for options in groups]
        return self._tagged


def _are_same(options: Mapping[str, Any], seen: Mapping[str, Any]) -> bool:
    """Return whether options are surely those that were seen: the same objects, of which none can change."""
    return options.keys() == seen.keys() and all(
        value is seen[name] and _is_fixed(value) for name, value in options.items() if name != "params"
    )


def _is_fixed(value: object) -> bool:
    return type(value) in _FIXED or (type(value) is tuple and all(type(one) in _FIXED for one in value))


def group_names(state: TrackedState) -> Sequence[Sequence[str]]:
    """Return the names of the parameters of each group."""
    return [[state.tensors[number].atom for number in members] for members in state.groups]


def by_name(state: TrackedState) -> Mapping[str, Tracked]:
    """Return what is tracked by name."""
    return {one.atom: one for one in state.tensors}
