"""What stock torch makes of a DCP directory, and bit-exact comparison of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from tests.conversion.formats.dcp.stand_ins import spelled, stand_in


def loaded(path: Path) -> dict[str, Any]:
    """Everything in the directory as a nested state, through torch's own reader and planner."""
    state: dict[str, Any] = {}
    planner = _EmptyStateDictLoadPlanner()  # type: ignore[no-untyped-call]
    _load_state_dict(state, FileSystemReader(path), planner=planner, no_dist=True)
    return state


def flat(state: dict[str, Any]) -> dict[str, Any]:
    """A nested state by DCP's keys."""
    return dict(flatten_state_dict(state)[0])


def fingerprint(state: dict[str, Any]) -> dict[str, tuple[object, ...]]:
    """Every leaf by DCP's key: its path, its type, and its content bit for bit."""
    leaves, paths = flatten_state_dict(state)
    return {key: (paths[key], type(leaf), spelled(stand_in(leaf))) for key, leaf in leaves.items()}
