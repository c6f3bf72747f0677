"""What training waits at for copies that a save makes behind its call: steps of optimizers, updates of averages.

Torch calls `_before_step` before the step of any optimizer, whether it was named or not; who has other ways to change
parameters is found by version counters, which some kernels of torch do not count up (fused ones, those of DTensors).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.errors import error
from ucpformat.state_dict.stateful import as_state
from ucpformat.state_dict.tensors.local_tensors import same_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch.nn import Module

    from ucpformat.distributed.local_state import SlotName
    from ucpformat.errors import UcpError
    from ucpformat.state_dict.tensors.local_tensors import LocalTensor

__all__ = ["Fence", "TrainingFences", "fences_of"]

Fence = Any
"""An optimizer, a `torch.optim.swa_utils.AveragedModel`, several of these, or ``"staged"``."""
_UPDATE: Final = "update_parameters"

_armed: dict[int, TrainingFences] = {}
"""Those that wait, by their `id`: a step waits for all saves of the process."""
_hooked: list[object] = []
"""The handle of torch's hook, once it is there."""


def fences_of(fence: Fence, state: Mapping[str, Any] | Module | None = None) -> TrainingFences | None:
    """Return the fences of an option ``fence=`` for a state; None without one.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for what is no fence, or whose changes nothing can wait for.
    """
    if fence is None:
        return None
    if isinstance(fence, str):
        if fence != "staged":
            raise _no_fence(fence)
        return TrainingFences(None, _buffers(state))
    mutators = list(_flat(fence))
    if not mutators:
        raise _no_fence(fence)
    return TrainingFences(mutators)


def _buffers(state: Mapping[str, Any] | Module | None) -> Iterator[Any]:
    """Yield buffers of modules of a state: they may change in a forward pass."""
    for one in as_state(state).values() if state is not None else ():
        if hasattr(one, "buffers") and hasattr(one, "state_dict"):
            yield from one.buffers()


def _flat(fence: Fence) -> Iterator[Any]:
    """Yield optimizers and averages, those of containers one by one: their own steps are what is called."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(fence, torch.optim.Optimizer):
        inner = getattr(fence, "optimizers", None)
        if isinstance(inner, list | tuple) and inner:
            yield from _flat(inner)
            return
        if any(group.get("capturable") for group in fence.param_groups):
            message = "a step with `capturable` may be in a CUDA graph, which waits for nothing: save without fence="
            raise error("UCP-E-MISMATCH", message, at="fence")
        yield fence
    elif torch is not None and isinstance(fence, torch.optim.swa_utils.AveragedModel):
        yield fence
    elif isinstance(fence, Iterable) and not hasattr(fence, "parameters"):
        for one in fence:
            yield from _flat(one)
    else:
        raise _no_fence(fence)


def _no_fence(fence: object) -> UcpError:
    message = (
        'fence= is an optimizer, an AveragedModel, several of them, or "staged", '
        f"not {fence if isinstance(fence, str) else type(fence).__name__!r}"
    )
    return error("UCP-E-MISMATCH", message, at="fence")


def _tensors(mutator: Any) -> Iterator[Any]:
    """Yield what a mutator changes, as it is now."""
    if hasattr(mutator, _UPDATE):
        yield from mutator.parameters()
        yield from mutator.buffers()
        return
    torch = sys.modules["torch"]
    for group in mutator.param_groups:
        for parameter in group["params"]:
            yield parameter
            states = mutator.state.get(parameter)
            for value in states.values() if isinstance(states, dict) else ():
                if isinstance(value, torch.Tensor):
                    yield value


def _local(tensor: Any) -> Any:
    return tensor.to_local() if hasattr(tensor, "device_mesh") else tensor


def _is_dense(tensor: Any) -> bool:
    return not tensor.is_meta and bool(tensor.layout == sys.modules["torch"].strided)


def _is_tracked(tensor: Any) -> bool:
    """Return whether torch counts the versions of a tensor: not of numpy's arrays, and of none in inference mode."""
    return not (isinstance(tensor, np.ndarray) or tensor.is_inference())


class TrainingFences:
    """The fences of one save: one for each of ``mutators``; without, one that the caller waits at (``"staged"``).

    `slots` is asked for what they are in front of, when the state is described: not of ``buffers``. The rest is that of
    `Fences`.
    """

    def __init__(self, mutators: list[Any] | None, buffers: Iterable[Any] = ()) -> None:
        self._mutators = mutators
        self._buffers = {same_memory(_local(one)) for one in buffers if _is_dense(_local(one))}
        self._numbers = {id(mutator): number for number, mutator in enumerate(mutators or ())}
        self._guards: dict[int, list[tuple[SlotName, Any, int]]] = {}
        self._by_memory: dict[object, frozenset[int]] = {}
        self._wait: Callable[[int], None] | None = None

    def slots(self, held: Mapping[SlotName, LocalTensor]) -> dict[SlotName, frozenset[int]]:
        """Return the fences of slots that have some; tensors that are not tracked by torch have none.

        Raises:
            MismatchError: ``UCP-E-MISMATCH`` for a mutator that changes nothing of the state.
        """
        if self._mutators is None:
            free = {name: one for name, one in held.items() if same_memory(one.local) not in self._buffers}
            guarded = [
                name for name, one in free.items() if self._are_guarded(name, [(0, one.local)], one.local)
            ]
            return dict.fromkeys(guarded, frozenset({0}))
        tensors: dict[object, list[tuple[int, Any]]] = {}
        empty = set()
        for number, mutator in enumerate(self._mutators):
            size = 0
            for tensor in _tensors(mutator):
                local = _local(tensor)
                size += local.numel()
                if local.numel() and _is_dense(local):
                    tensors.setdefault(same_memory(local), []).append((number, tensor))
            if not size:
                empty.add(number)  # a rank may have nothing of what others train
        found: dict[SlotName, frozenset[int]] = {}
        alone = [frozenset({number}) for number in range(len(self._mutators))]
        for name, one in held.items():
            memory = same_memory(one.local)
            owners = tensors.get(memory)
            if owners is None or not self._are_guarded(name, owners, one.local):
                continue
            numbers = alone[owners[0][0]] if len(owners) == 1 else frozenset(number for number, _ in owners)
            found[name] = self._by_memory[memory] = numbers
        unused = {*self._numbers.values()} - empty - frozenset[int]().union(*found.values())
        if unused:
            kind = type(self._mutators[min(unused)]).__name__
            message = (
                f"the {kind} of fence= changes no tensor of the state; give that which trains what is saved"
            )
            raise error("UCP-E-MISMATCH", message, at="fence")
        return found

    def _are_guarded(self, name: SlotName, owners: list[tuple[int, Any]], local: Any) -> bool:
        """Note versions of a slot's tensors, by their fences; return whether all have some."""
        if not _is_tracked(local):
            return False
        for _, tensor in owners:
            if tensor is not local and not _is_tracked(tensor):
                return False
        for number, tensor in owners:
            guards = self._guards.setdefault(number, [])
            guards.append((name, tensor, tensor._version))
            if tensor is not local:
                guards.append((name, local, local._version))
        return True

    def arm(self, wait: Callable[[int], None]) -> None:
        """Do as `Fences.arm`."""
        self._wait = wait
        if self._mutators is None:
            return
        if not _hooked:
            from torch.optim.optimizer import register_optimizer_step_pre_hook

            _hooked.append(register_optimizer_step_pre_hook(_before_step))
        for mutator, number in zip(self._mutators, self._numbers.values(), strict=True):
            if hasattr(mutator, _UPDATE):
                mutator.__dict__[_UPDATE] = MethodType(_waiting_update(wait, number), mutator)
        _armed[id(self)] = self

    def before(self, optimizer: Any) -> None:
        """Wait for what an optimizer is about to change, which is also that of another one of the same tensors."""
        wait = self._wait
        if wait is None:
            return
        numbers = {self._numbers.get(id(optimizer))}
        if numbers == {None}:
            numbers = set()
            for tensor in _tensors(optimizer):
                local = _local(tensor)
                if _is_dense(local):
                    numbers |= self._by_memory.get(same_memory(local), frozenset())
        for number in sorted(one for one in numbers if one is not None):
            wait(number)

    def changed(self, fence: int) -> SlotName | None:
        """Do as `Fences.changed`."""
        return next(
            (name for name, one, before in self._guards.get(fence, ()) if one._version != before), None
        )

    def disarm(self) -> None:
        """Do as `Fences.disarm`."""
        _armed.pop(id(self), None)
        self._wait = None
        for mutator in self._mutators or ():
            mutator.__dict__.pop(_UPDATE, None)


def _waiting_update(wait: Callable[[int], None], number: int) -> Callable[..., Any]:
    """Return an `AveragedModel.update_parameters` that waits; as a method, so that a deep copy has its own."""

    def update_parameters(self: Any, *arguments: Any, **options: Any) -> Any:
        wait(number)
        return getattr(type(self), _UPDATE)(self, *arguments, **options)

    return update_parameters


def _before_step(optimizer: Any, arguments: Any, options: Any) -> None:
    """Wait for what the optimizer is about to change; called by torch before any step."""
    del arguments, options
    for fences in list(_armed.values()):
        fences.before(optimizer)
