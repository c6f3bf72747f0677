"""The ranks that torchrun has started, for programs that are no training script."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from ucpformat.errors import error
from ucpformat.state_dict.torch_group import TorchGroup

if TYPE_CHECKING:
    from ucpformat.distributed.group import Group

__all__ = ["job_group", "started_by_torchrun"]


def started_by_torchrun() -> bool:
    """Return whether this process is one of several ranks of torchrun's."""
    return "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("WORLD_SIZE", "1") != "1"


@contextmanager
def job_group() -> Iterator[Group]:
    """Provide all ranks of the job: its default process group, or one over gloo that is joined here and left again.

    Raises:
        StoreError: ``UCP-E-STORE`` where torch is missing, ``UCP-E-RANK`` where there is no job to join.
    """
    try:
        import torch.distributed as dist
    except ImportError:
        raise error("UCP-E-STORE", "torch is missing, which joins the ranks of a job") from None
    if dist.is_initialized():
        yield TorchGroup()
        return
    try:
        dist.init_process_group("gloo")
    except (ValueError, RuntimeError) as problem:
        raise error("UCP-E-RANK", f"there is no job to join, start it with torchrun: {problem}") from problem
    try:
        yield TorchGroup()
    finally:
        with suppress(Exception):
            dist.destroy_process_group()
