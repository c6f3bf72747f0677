"""`UcpCheckpointIO`: Lightning's checkpoints in this format. Needs lightning.

For strategies that give a whole checkpoint to one rank (a single device, DDP); sources:
lightning/fabric/plugins/io/checkpoint_io.py, lightning/pytorch/strategies/strategy.py and
lightning/pytorch/trainer/connectors/checkpoint_connector.py of lightning 2.6.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lightning.fabric.plugins import CheckpointIO

from ucpformat.distributed.group import OneProcess
from ucpformat.errors import error
from ucpformat.manager.local_place import LocalPlace
from ucpformat.manager.run_directory import place_at
from ucpformat.state_dict.save_load import load, save

__all__ = ["UcpCheckpointIO", "named_states", "numbered_states"]

_MODEL = "state_dict"
_OPTIMIZERS = "optimizer_states"
_OURS = re.compile(r"model|optim([1-9][0-9]*)?")


class UcpCheckpointIO(CheckpointIO):  # type: ignore[misc]
    """Give one to ``Trainer(plugins=[...])``; ``ModelCheckpoint`` says when and where, and what is removed.

    ``module``, the LightningModule, lets states of optimizers bear the names of parameters instead of their numbers,
    so that other jobs can use them. Nothing is pickled: what is no plain data is refused by name.
    """

    def __init__(self, module: Any = None) -> None:
        self._module = module

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Save; a checkpoint at a local ``path`` (``save_last``) stays until the new one is committed.

        Raises:
            UcpError: as `ucpformat.save`; ``UCP-E-EXISTS`` for a committed checkpoint behind a URL.
        """
        if storage_options is not None:
            raise TypeError("UcpCheckpointIO takes no storage_options")
        if self._module is not None and _OPTIMIZERS in checkpoint:
            optimizers = self._module.trainer.optimizers
            names = {id(parameter): name for name, parameter in self._module.named_parameters()}
            checkpoint = checkpoint | {
                _OPTIMIZERS: [
                    named_states(
                        state, [names[id(one)] for group in optimizer.param_groups for one in group["params"]]
                    )
                    for state, optimizer in zip(checkpoint[_OPTIMIZERS], optimizers, strict=True)
                ]
            }
        parent, _, name = os.fspath(path).rstrip("/").rpartition("/")
        place = place_at(parent or ".")
        anew = name in place.names()
        if anew and not isinstance(place, LocalPlace):
            message = (
                "a checkpoint is there already, and behind a URL it cannot be replaced without a moment in which there "
                "is none; save under another name (save_last=False)"
            )
            raise error("UCP-E-EXISTS", message, at=os.fspath(path))
        beside = f"{name}.next"
        if beside in place.names():
            place.remove(beside)
        target = place.child(beside) if anew else path
        save(target, _renamed(checkpoint), group=OneProcess(), step=checkpoint.get("global_step"))
        if anew and isinstance(place, LocalPlace):
            place.replace(name, beside)
            place.remove(beside)

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the checkpoint with its tensors in host memory, from which Lightning fills what it has.

        Raises:
            UcpError: as `ucpformat.load`.
        """
        found = _renamed_back(load(path, tensors="torch"))
        if _OPTIMIZERS in found:
            found[_OPTIMIZERS] = [numbered_states(state) for state in found[_OPTIMIZERS]]
        return found

    def remove_checkpoint(self, path: str | os.PathLike[str]) -> None:
        """Remove it, the root document first; nothing where there is none."""
        parent, _, name = os.fspath(path).rstrip("/").rpartition("/")
        place = place_at(parent or ".")
        if name in place.names():
            place.remove(name)


def _renamed(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return the members that other jobs have as well by their names there: ``model``, ``optim``, ``optim1``, ..."""
    found = dict(checkpoint)
    if any(_OURS.fullmatch(name) for name in found):
        return found
    if _MODEL in found:
        found["model"] = found.pop(_MODEL)
    for number, state in enumerate(found.pop(_OPTIMIZERS, [])):
        found[f"optim{number or ''}"] = state
    return found


def _renamed_back(found: dict[str, Any]) -> dict[str, Any]:
    if _MODEL in found or "model" not in found:
        return found
    names = sorted(
        (name for name in found if name.startswith("optim") and _OURS.fullmatch(name)), key=_number
    )
    optimizers = [found[name] for name in names]
    others = {name: value for name, value in found.items() if not _OURS.fullmatch(name)}
    return {**others, _MODEL: found["model"], **({_OPTIMIZERS: optimizers} if optimizers else {})}


def _number(name: str) -> int:
    return int(name.removeprefix("optim") or 0)


def named_states(state: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return an optimizer's state dict with the names of its parameters for their numbers."""
    return {
        **state,
        "state": {names[number]: slots for number, slots in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[number] for number in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def numbered_states(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the way back from `named_states`: numbers are the places in the groups, as torch counts them.

    Raises:
        MismatchError: ``UCP-E-MISMATCH`` for a state of a parameter that is in no group.
    """
    names = [name for group in state["param_groups"] for name in group["params"]]
    numbers = {name: number for number, name in enumerate(names)}
    unknown = [name for name in state["state"] if name not in numbers]
    if unknown:
        raise error("UCP-E-MISMATCH", "the state of a parameter that is in no group", at=str(unknown[0]))
    return {
        **state,
        "state": {numbers[name]: slots for name, slots in state["state"].items()},
        "param_groups": [
            {**group, "params": [numbers[name] for name in group["params"]]}
            for group in state["param_groups"]
        ],
    }
