"""Makes what pages speak of importable from the checkout: the conformance suite, and the benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "conformance"))
