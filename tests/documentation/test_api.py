"""docs/api.md shows the public interface as it is; ``UCP_REWRITE_DOCS=1`` writes it anew."""

from __future__ import annotations

import os

from tests.documentation.api import page
from tests.documentation.markdown import ROOT


def test_the_page_of_the_interface_is_made_from_docstrings() -> None:
    path, made = ROOT / "docs" / "api.md", page()
    if os.environ.get("UCP_REWRITE_DOCS"):
        path.write_text(made, encoding="utf-8")
        return
    assert path.read_text(encoding="utf-8") == made, "run this test with UCP_REWRITE_DOCS=1"
