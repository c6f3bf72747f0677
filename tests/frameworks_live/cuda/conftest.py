"""These tests are collected where torch finds a CUDA device: `make test-cuda`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]


@pytest.fixture
def nccl(tmp_path: Path) -> Iterator[None]:
    """A default process group of one rank: gloo for host memory, NCCL for the device."""
    rendezvous = (tmp_path / "rendezvous").as_uri()
    device = torch.device("cuda", 0)
    torch.cuda.set_device(device)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=rendezvous, rank=0, world_size=1, device_id=device
    )
    try:
        yield
    finally:
        dist.destroy_process_group()
