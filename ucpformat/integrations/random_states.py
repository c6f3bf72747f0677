"""Random generators of this process as entries of a state, each rank's under its own name."""

from __future__ import annotations

import random
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from ucpformat.state_dict.save_load import load

if TYPE_CHECKING:
    import os

__all__ = ["fill_random_states", "random_states"]


def _rank_and_world() -> tuple[int, int]:
    import torch.distributed as dist

    ready: bool = dist.is_available() and dist.is_initialized()
    return (dist.get_rank(), dist.get_world_size()) if ready else (0, 1)


def random_states() -> dict[str, Any]:
    """Return entries ``random``, of each rank under its number, and ``world``: how many ranks there are.

    Python's, numpy's and torch's generators, and that of the current CUDA device where one is in use.
    """
    import torch

    rank, world = _rank_and_world()
    kind, keys, *rest = np.random.get_state(legacy=True)
    mine: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, np.asarray(keys), *rest),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        mine["cuda"] = torch.cuda.get_rng_state()
    return {"random": {f"rank{rank}": mine}, "world": world}


def fill_random_states(path: str | os.PathLike[str]) -> bool:
    """Set the generators of this process as they were; every rank calls this. False, with a warning, where they stay.

    They stay where another number of ranks saved: no rule says whose numbers go on.
    """
    import torch

    rank, world = _rank_and_world()
    saved: dict[str, Any] = load(path, {"world": 0})
    if saved["world"] != world:
        warnings.warn(
            f"{path}: {saved['world']} ranks saved their random generators, {world} load: they stay as they are",
            RuntimeWarning,
            stacklevel=3,
        )
        return False
    state = random_states()
    state.pop("world")
    load(path, state, strict=False)
    mine = state["random"][f"rank{rank}"]
    random.setstate(mine["python"])
    np.random.set_state(mine["numpy"])
    torch.set_rng_state(mine["torch"])
    if "cuda" in mine:
        torch.cuda.set_rng_state(mine["cuda"])
    return True
