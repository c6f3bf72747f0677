"""What other frameworks' optimizers are as Megatron's distributed optimizer, in its format ``fully_reshardable``.

Source: megatron-core 0.16.1, optimizer/distrib_optimizer.py (``sharded_state_dict``, ``load_state_dict``,
``sharded_param_state_fully_reshardable``): a float32 copy and Adam's two moments of every parameter, groups that are
known again by four of their options, and one count of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ucpformat.conversion.contract.content import SlotContent
from ucpformat.conversion.contract.sources import CastSource
from ucpformat.conversion.formats.megatron.parameter_groups import (
    EXPERTS_OWN,
    IDENTIFIERS,
    STEP,
    Parameter,
    decays,
    is_expert_name,
)
from ucpformat.jsonio import equal
from ucpformat.state_dict.keys.origins import SOURCE

if TYPE_CHECKING:
    from ucpformat.conversion.contract.content import AtomContent, Content
    from ucpformat.jsonio import JsonValue

__all__ = ["OPTIMIZER_ENTRY", "DistributedOptimizer", "content_metadata", "distributed_optimizer", "is_own"]

OPTIMIZER_ENTRY: Final = "optimizer"
"""Where ``common.pt`` has the groups."""
SHARDING: Final = "fully_reshardable"

_TORCH_DIST: Final = "megatron-torch-dist"
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")
_FLOATS: Final = ("float32", "bfloat16", "float16")
_WIDE: Final = "float32"
_Identity = tuple[Any, ...]


@dataclass(slots=True)
class DistributedOptimizer:
    """``entry`` belongs into the common state; ``states`` are the slots by atom and the name of the state."""

    entry: dict[Any, Any]
    states: dict[str, dict[str, SlotContent]] = field(default_factory=dict)


def is_own(content: Content) -> bool:
    """Return whether the groups came from Megatron, so that they go back as they are."""
    source = content.state.annotations.get(SOURCE)
    kind = source.get("kind") if isinstance(source, dict) else None
    return kind == _TORCH_DIST or OPTIMIZER_ENTRY in content.state.values


def distributed_optimizer(
    content: Content, decoded: Callable[[JsonValue, str], object], *, chained: bool
) -> DistributedOptimizer | str:
    """Return the optimizers of ``content`` as one of Megatron's, or why that cannot be.

    ``chained`` is for a job with expert parallelism, which has an optimizer of its own for experts.
    """
    identities: dict[_Identity, Mapping[str, JsonValue]] = {}
    states: dict[str, dict[str, SlotContent]] = {}
    steps: dict[float, str] = {}
    for optimizer in content.state.optimizers.values():
        for group in optimizer.groups:
            for name in group.atoms:
                atom = content[name]
                missing = [slot for slot in ("value", *_MOMENTS) if slot not in atom]
                if missing:
                    return f"{name!r} has no {missing[0]!r}, and Megatron's distributed optimizer is Adam's"
                wide = _wide_states(atom)
                if wide is None:
                    return f"the states of {name!r} are of a type that float32 does not hold"
                states[name] = wide
                if STEP in atom:
                    steps.update((float(number), name) for number in np.unique(atom[STEP].read()))
                identity = _identity(Parameter(name, atom["value"].shape), group.options, decoded, chained)
                known = identities.setdefault(identity, group.options)
                if known is not group.options and not equal(dict(known), dict(group.options)):
                    return (
                        f"Megatron would have {name!r} in a group with parameters of other hyper-parameters"
                    )
    if len(steps) > 1:
        told = ", ".join(f"{name!r} {step:g}" for step, name in sorted(steps.items())[:2])
        return f"Megatron counts steps once for all parameters, and these differ: {told}"
    if not states:
        return "no parameter is in a group"
    step = next(iter(steps), None)
    groups = [_group(identity, options, decoded, step) for identity, options in identities.items()]
    return DistributedOptimizer(_entry(groups, chained=chained), states)


def content_metadata(content: Content) -> dict[str, Any]:
    """Return what Megatron-LM asks a checkpoint before it loads it (``content_metadata``)."""
    return {
        "distrib_optim_sharding_type": SHARDING,
        "singleton_local_shards": False,
        "non_homogeneous_layers": any(
            part.isdecimal()
            for name in content
            for before, part in zip(name.split("."), name.split(".")[1:], strict=False)
            if before == "layers"
        ),
        "chained_optim_avoid_prefix": True,
    }


def _wide_states(atom: AtomContent) -> dict[str, SlotContent] | None:
    """Return the parameter's copy and the moments, all as float32, which holds every value of the narrower types."""
    chosen = {"param": atom.get("master", atom["value"]), **{slot: atom[slot] for slot in _MOMENTS}}
    wide = {}
    for state, slot in chosen.items():
        if slot.dtype.name not in _FLOATS or slot.shape != atom["value"].shape:
            return None
        wide[state] = slot
        if slot.dtype.name != _WIDE:
            spec = replace(slot.spec, dtype=_WIDE)
            read = CastSource(slot.read_box, slot.dtype.numpy)
            wide[state] = SlotContent(slot.name, spec, read, at=f"{atom.name}/{slot.name}")
    return wide


def _identity(
    parameter: Parameter,
    options: Mapping[str, JsonValue],
    decoded: Callable[[JsonValue, str], object],
    chained: bool,
) -> _Identity:
    """Return what Megatron knows the parameter's group by: what the options say, else its standard rule."""
    if "wd_mult" in options:
        identity = {
            key: decoded(options[key], key) if key in options else IDENTIFIERS[key] for key in IDENTIFIERS
        }
    else:
        identity = {**IDENTIFIERS, "wd_mult": 1.0 if decays(parameter) else 0.0}
    identity[EXPERTS_OWN] = chained and is_expert_name(parameter.name)
    return tuple(identity[key] for key in IDENTIFIERS)


def _group(
    identity: _Identity,
    options: Mapping[str, JsonValue],
    decoded: Callable[[JsonValue, str], object],
    step: float | None,
) -> dict[str, object]:
    group: dict[str, object] = {"default_config": True, "bias_correction": True}
    group |= {key: decoded(value, key) for key, value in options.items()}
    group |= dict(zip(IDENTIFIERS, identity, strict=True))
    if step is not None:
        group[STEP] = int(step) if step.is_integer() else step
    return group


def _entry(groups: list[dict[str, object]], *, chained: bool) -> dict[Any, Any]:
    def one(mine: list[dict[str, object]]) -> dict[str, object]:
        # As Megatron lists them: those without overrides first.
        mine.sort(key=lambda group: group["wd_mult"] == 0)
        return {OPTIMIZER_ENTRY: {"param_groups": mine}, "param_state_sharding_type": SHARDING}

    experts = [group for group in groups if group[EXPERTS_OWN]]
    if not chained or not experts:
        return one(groups)
    return {0: one([group for group in groups if not group[EXPERTS_OWN]]), 1: one(experts)}
