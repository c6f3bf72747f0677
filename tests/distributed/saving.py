"""A save by several ranks, from the first step to the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ucpformat.distributed.group import Group
from ucpformat.distributed.local_state import LocalState
from ucpformat.distributed.save import SaveOptions, SaveReport, prepare_save


def save_together(
    path: str | Path,
    describe_state: Callable[[], LocalState],
    group: Group,
    options: SaveOptions | None = None,
) -> SaveReport:
    """Save what all ranks of ``group`` hold as one checkpoint; every rank calls this."""
    return prepare_save(path, describe_state, group, options).run()
