"""Hugging Face Accelerate: what an ``Accelerator`` has prepared, as checkpoints of a `CheckpointManager`.

Takes the place of ``accelerator.save_state`` and ``load_state``; sources: accelerate/accelerator.py and
checkpointing.py of accelerate 1.15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ucpformat.integrations.random_states import fill_random_states, random_states

if TYPE_CHECKING:
    from ucpformat.manager import CheckpointManager

__all__ = ["load_state", "save_state", "state_of"]


def state_of(accelerator: Any) -> dict[str, Any]:
    """Return everything prepared or registered: models, their optimizers, schedulers, the scaler, other objects.

    Names count from the second on: ``model``, ``model1``; ``optim``, ``optim1``. Models and optimizers are those
    below Accelerate's wrappers: names of parameters are those of the plain model, whatever divides it.
    """
    state: dict[str, Any] = {}
    for stem, objects in (
        ("model", accelerator._models),
        ("optim", [wrapper.optimizer for wrapper in accelerator._optimizers]),
        ("schedule", accelerator._schedulers),
        ("custom", accelerator._custom_objects),
    ):
        for number, one in enumerate(objects):
            state[f"{stem}{number or ''}"] = one
    if accelerator.scaler is not None:
        state["scaler"] = accelerator.scaler
    return state


def save_state(accelerator: Any, manager: CheckpointManager, step: int, **options: Any) -> Any:
    """Save everything of ``accelerator`` as the checkpoint of ``step``; every rank calls this.

    ``options`` are those of `CheckpointManager.save`, which also says what comes back.
    """
    return manager.save(step, {**state_of(accelerator), **random_states()}, **options)


def load_state(accelerator: Any, manager: CheckpointManager, step: int | None = None) -> int | None:
    """Fill everything of ``accelerator`` from a step, or from the newest good one; None where there is none.

    Random generators go on where they were if as many ranks load as saved; else they stay as they are, with a warning.

    Raises:
        UcpError: as `CheckpointManager.restore`.
    """
    state = state_of(accelerator)
    found = manager.resume(state) if step is None else manager.restore(state, step)
    if found is not None:
        fill_random_states(manager.path(found))
    return found
