"""Pages of ``ucp inspect`` at three widths, against those in ``pages``; UCP_REWRITE_DOCS=1 writes these anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ucpformat.cli import main

__all__ = ["WIDTHS", "compare_page"]

PAGES = Path(__file__).parent / "pages"
WIDTHS = (60, 100, 160)
_DIGEST_LINE = 78
"""Characters: a digest is not cut, so that it can be copied."""


def compare_page(path: Path, name: str, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compare what is shown of a checkpoint with ``inspect-NAME-WIDTH.txt``, but for digests and versions."""
    monkeypatch.setenv("COLUMNS", str(width))
    result = CliRunner().invoke(main, ["inspect", str(path)], catch_exceptions=False)
    assert result.exit_code == 0
    shown = re.sub(r"digest sha256:\w{64}", "digest sha256:...", result.stdout)
    shown = re.sub(r"by (ucpformat|lightning|deepspeed) \d[^\s;]*", r"by \1 ...", shown)
    shown = re.sub(r"(_version = )'[^']*'", r"\1'...'", shown)
    kept = PAGES / f"inspect-{name}-{width}.txt"
    if os.environ.get("UCP_REWRITE_DOCS"):
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(shown, encoding="utf-8")
    assert shown == kept.read_text(encoding="utf-8")
    assert all(line.isprintable() for line in shown.splitlines())
    assert max(map(len, shown.splitlines())) <= max(width, _DIGEST_LINE)
    assert len(shown.splitlines()) <= 40
