"""Streams of bytes in what stock torch Distributed Checkpoint writes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

import ucpformat
from ucpformat.conversion.contract.foreign import PICKLE
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.formats.dcp.importer import import_dcp
from ucpformat.errors import UcpError


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_stream_of_bytes_is_a_blob_and_comes_back(tmp_path: Path) -> None:
    """What stock torch pickles of an ``io.BytesIO``; it comes back rewound, as ``ucp.save`` and ``load`` have it."""
    data = bytes(range(256)) * 5
    stream = io.BytesIO(data)
    stream.seek(7)
    state = {"w": torch.arange(4.0), "model": {"_extra_state": stream, "empty": io.BytesIO()}}
    save(state, checkpoint_id=tmp_path / "in")
    convert_checkpoint(tmp_path / "in", tmp_path / "ucp", source_format="dcp", destination_format="ucp")
    with ucpformat.open(tmp_path / "ucp") as checkpoint:
        assert checkpoint.blobs["model._extra_state"] == data
    back = ucpformat.load(tmp_path / "ucp")
    assert back["model"]["_extra_state"].read() == data
    assert back["model"]["empty"].read() == b""
    convert_checkpoint(tmp_path / "ucp", tmp_path / "out", source_format="ucp", destination_format="dcp")
    again: dict[str, Any] = {"w": torch.zeros(4), "model": {"_extra_state": None, "empty": None}}
    load(again, checkpoint_id=tmp_path / "out")
    assert again["model"]["_extra_state"].read() == data


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_stream_that_is_more_than_its_bytes_is_refused_by_name(tmp_path: Path) -> None:
    marked = io.BytesIO(b"x")
    marked.mark = "y"  # type: ignore[attr-defined]
    for number, value in enumerate(([io.BytesIO(b"x"), 3], marked)):
        save({"w": torch.arange(4.0), "odd": value}, checkpoint_id=tmp_path / f"{number}")
        with pytest.raises(UcpError, match=r"io\.BytesIO") as caught:
            import_dcp(tmp_path / f"{number}")
        assert caught.value.code == "UCP-E-OBJECT"
        assert caught.value.at.endswith("#odd")
        job = import_dcp(tmp_path / f"{number}", foreign_objects="opaque")
        assert job.blobs["odd"][0] == PICKLE
