"""Collected with DeepSpeed 0.16 alone: each version has an environment of its own."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path

os.environ["DS_ACCELERATOR"] = "cpu"
os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))

collect_ignore_glob = [] if version("deepspeed").startswith("0.16.") else ["test_*.py"]
