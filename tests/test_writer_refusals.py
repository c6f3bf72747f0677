"""What a writer finds out while it writes: bytes that are no bools, another content than expected (SPEC 17)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ucpformat import AtomSpec, CheckpointWriter, SlotSpec
from ucpformat.errors import UcpError
from ucpformat.model.root import Storage


@pytest.mark.parametrize("storage", ["plain", "packed"])
def test_a_bool_that_is_neither_0_nor_1_is_not_written(tmp_path: Path, storage: Storage) -> None:
    """UCP-W-026."""
    data = np.frombuffer(b"\0\1\2\1", np.bool_)
    with (
        pytest.raises(UcpError) as caught,
        CheckpointWriter(
            tmp_path / "x", [AtomSpec("w", {"value": SlotSpec("bool", (4,))})], storage=storage
        ) as writer,
    ):
        writer.write("w", "value", data)
    assert caught.value.code == "UCP-E-PADDING"


def test_a_slot_of_another_content_than_expected_is_not_committed(tmp_path: Path) -> None:
    """UCP-W-029."""
    writer = CheckpointWriter(tmp_path / "x", [AtomSpec("w", {"value": SlotSpec("float32", (4,))})])
    writer.expect_contents({("w", "value"): "crc32c-tree:" + "5" * 64})
    writer.write("w", "value", np.ones(4, np.float32))
    with pytest.raises(UcpError) as caught:
        writer.commit()
    writer.abort()
    assert (caught.value.code, caught.value.at) == ("UCP-E-CONTENT", "w/value")
    assert not (tmp_path / "x" / "ucp.json").exists()
