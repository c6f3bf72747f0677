"""Places that a user names on the command line, before anything is read or written there."""

from __future__ import annotations

import os

from ucpformat.errors import error
from ucpformat.storage.stores.urls import local_path

__all__ = ["refuse_swapped"]


def refuse_swapped(source: str, target: str) -> None:
    """Refuse a source that is not there where the target is: the two were most likely swapped.

    Raises:
        StoreError: ``UCP-E-NOT-FOUND``, with the right order.
    """
    here, there = local_path(source), local_path(target)
    if here is not None and there is not None and not os.path.lexists(here) and os.path.lexists(there):
        raise error(
            "UCP-E-NOT-FOUND", f"nothing lies there, but {target} exists; the source comes first", at=source
        )
