"""What lies in the directory of a page before its first block, and what its blocks find defined."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from ucpformat.model.dtype import dtype
from ucpformat.writer import AtomSpec, CheckpointWriter, SlotSpec

Namespace = dict[str, Any]


def plan(directory: Path, namespace: Namespace) -> None:
    """The checkpoint that the page speaks of; keys and bytes are always the same."""
    spec = AtomSpec("wq.weight", {"value": SlotSpec("bfloat16", (4096, 512))})
    with CheckpointWriter(directory / "saved.ucp", [spec], attempt="5f3a9c01") as writer:
        writer.write("wq.weight", "value", np.ones((4096, 512), dtype("bfloat16").numpy))


def readme(directory: Path, namespace: Namespace) -> None:
    """What stock torch saves, which the reader is expected to have."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model = torch.nn.Linear(512, 512)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(512)).sum().backward()
    optimizer.step()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        dcp.save(  # type: ignore[attr-defined]
            state, checkpoint_id=directory / "step-1000.dcp", no_dist=True
        )


ROOMS: Final[dict[str, Callable[[Path, Namespace], None]]] = {
    "README.md": readme,
    "docs/plan.md": plan,
}
"""By page; a page that is not here begins in an empty directory, with nothing defined."""
