# ruff: noqa: E402
"""Worker: as `tests.frameworks_live.megatron.make`, with the formats that Megatron-core 0.15 saves and 0.16 does not.

``python -m tests.frameworks_live.megatron_015.make save|load FOLDER CASE``.
"""

from __future__ import annotations

import signal
from typing import Any

import numpy

anything: Any = numpy
anything.product = numpy.prod  # 0.15 asks for the name that numpy 2 has dropped

from dataclasses import replace

import torch

from tests.frameworks_live.megatron import make
from tests.frameworks_live.megatron.cases import CASES
from tests.frameworks_live.megatron_015.cases import NAMES

if __name__ == "__main__":
    # An argument of Megatron-LM's that 0.15 writes and does not list as safe to read.
    torch.serialization.add_safe_globals([signal.Signals])
    for name in NAMES:
        CASES[name] = replace(CASES[name], sharding="fully_sharded_model_space")
    make.main()
