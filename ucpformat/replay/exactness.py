"""What replay of an optimizer gives: the very bits, or nearly (SPEC-UPDATE-LOGS section 2).

Measured with torch 2.13 on CPU, over 200 steps under random splits of every parameter: the for-loop and foreach kernels
of AdamW, of Adam with L2 and AMSGrad, and of SGD with momentum give the same bits in float32, and AdamW in bfloat16.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from ucpformat.errors import error
from ucpformat.replay.tracked import local_of, optimizer_name

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch.optim import Optimizer

    from ucpformat.replay.tracked import TrackedState
    from ucpformat.update_log.documents import Exactness

__all__ = ["exactness_of", "profile_of", "require_replayable"]

_EXACT: Final[Mapping[str, frozenset[str]]] = {
    "torch.optim.AdamW": frozenset({"float32", "bfloat16"}),
    "torch.optim.Adam": frozenset({"float32"}),
    "torch.optim.SGD": frozenset({"float32"}),
}
"""Data types of parameters for which replay was seen to give the same bits."""
_REFUSED: Final = {
    "fused": "a fused optimizer gives other bits under every split of a parameter; make it with `fused` set to False",
    "capturable": "a step in a CUDA graph cannot be logged; make the optimizer with `capturable` set to False",
    "differentiable": "steps that are differentiated through cannot be replayed; set `differentiable` to False",
}


def require_replayable(optimizer: Optimizer) -> None:
    """Refuse an optimizer whose steps cannot be logged.

    Raises:
        MismatchError: ``UCP-E-MISMATCH``, with what to do.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        message = (
            "LBFGS evaluates the model several times a step, which a log does not have; use checkpoints alone"
        )
        raise error("UCP-E-MISMATCH", message)
    if isinstance(optimizer, torch.optim.SparseAdam):
        message = "torch makes no state dict of a fresh SparseAdam; take Adagrad or SGD, which take sparse gradients"
        raise error("UCP-E-MISMATCH", message)
    for number, options in enumerate(optimizer.param_groups):
        for name, message in _REFUSED.items():
            if options.get(name):
                raise error("UCP-E-MISMATCH", message, at=f"param_groups/{number}/{name}")


def exactness_of(optimizer: Optimizer, state: TrackedState) -> Exactness:
    """Return what replay gives under the same profile."""
    known = _EXACT.get(optimizer_name(optimizer), frozenset())
    plain = all(
        not isinstance(value, torch.Tensor)
        for options in optimizer.param_groups
        for name, value in options.items()
        if name != "params"
    )
    parameters = [one for one in state.tensors if one.role == "gradient"]
    is_exact = plain and all(
        one.dtype in known
        and local_of(one.tensor).is_contiguous()
        and local_of(one.tensor).device.type == "cpu"
        for one in parameters
    )
    return "bitwise" if is_exact else "tolerance"


def profile_of(optimizer: Optimizer, state: TrackedState) -> dict[str, str]:
    """Return what decides the bits of a step beside gradients and options, by name."""
    devices = sorted({local_of(one.tensor).device.type for one in state.tensors})
    profile: dict[str, str] = {
        "torch": torch.__version__.partition("+")[0],
        "devices": ",".join(devices),
        "implementation": ",".join(
            sorted({_implementation(options, devices) for options in optimizer.param_groups})
        ),
    }
    if "cpu" in devices:
        profile["capability"] = torch.backends.cpu.get_cpu_capability()
    return profile


def _implementation(options: Mapping[str, Any], devices: list[str]) -> str:
    chosen = options.get("foreach")
    if chosen is None:
        return "foreach" if devices == ["cuda"] else "for-loop"
    return "foreach" if chosen else "for-loop"
