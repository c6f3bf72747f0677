"""Which of the checkpoints of `tests.frameworks_live.megatron` Megatron-core 0.15 writes in flattened pieces."""

from __future__ import annotations

from typing import Final

NAMES: Final = ("tp2", "dp2-bf16", "tp2-pp2", "ep2")
