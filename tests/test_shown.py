"""What views and checkpoints show of themselves in an interpreter or a notebook."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import ucpformat as ucp


def test_what_a_checkpoint_says_of_itself(tmp_path: Path) -> None:
    ucp.save(tmp_path / "run.ucp", {"a.w": np.ones((3, 2), np.float32), "b": np.ones(2)}, step=7)
    ucp.save(tmp_path / "bare.ucp", {})
    with ucp.open(tmp_path / "run.ucp") as ckpt:
        assert repr(ckpt) == f"<Checkpoint {tmp_path / 'run.ucp'}: step 7, 2 atoms, packed>"
        assert repr(ckpt["a.w"]) == "<AtomView a.w: value: float32[3, 2]>"
        assert ckpt._ipython_key_completions_() == ["a.w", "b"]
        assert ckpt["b"]._ipython_key_completions_() == ["value"]
        assert ckpt.table() == [
            {
                "atom": name,
                "slot": "value",
                "dtype": dtype,
                "shape": shape,
                "nbytes": nbytes,
                "chunks": 1,
                "layout": None,
            }
            for name, dtype, shape, nbytes in (("a.w", "float32", (3, 2), 24), ("b", "float64", (2,), 16))
        ]
        assert ckpt.fetched == 0
    assert repr(ckpt).startswith("<Checkpoint ")  # closed, too
    with ucp.open(tmp_path / "bare.ucp") as ckpt:
        assert repr(ckpt).endswith("bare.ucp: 0 atoms, packed>")
