"""Makes the conformance suite importable from the checkout, installed or not."""

from __future__ import annotations

import sys

from tests.documentation.markdown import ROOT

sys.path.insert(0, str(ROOT / "conformance"))
