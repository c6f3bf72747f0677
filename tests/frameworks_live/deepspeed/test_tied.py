"""Embeddings that DeepSpeed ties between the first and the last stage, at two, four and one stages."""

from __future__ import annotations

from tests.processes import launch


def test_tied_weights_are_where_the_layout_says() -> None:
    launch("tests.frameworks_live.deepspeed.tied", [], 4, timeout=200)
