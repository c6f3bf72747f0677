"""Every block of README and docs is run, and compared where it shows output."""

from __future__ import annotations

import os
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.documentation.markdown import ROOT, Page, pages
from tests.documentation.rooms import ROOMS
from tests.documentation.running import Reader, rewrite

PENDING = {
    "benchmarks/README.md",
    "conformance/CLASSES.md",
    "conformance/GETTING_STARTED.md",
    "conformance/drivers/node/README.md",
    "docs/compression.md",
    "docs/convert.md",
    "docs/frameworks/deepspeed.md",
    "docs/frameworks/orbax.md",
    "docs/frameworks/safetensors.md",
    "docs/frameworks/torch_save.md",
    "docs/guides/accelerate.md",
    "docs/guides/deepspeed.md",
    "docs/guides/lightning.md",
    "docs/guides/pytorch.md",
    "docs/guides/torchtitan.md",
    "docs/guides/trainer.md",
    "docs/plugins.md",
    "docs/scale.md",
    "docs/torch.md",
}


def here(note: str) -> bool:
    """Whether `test_the_blocks_of_a_page` runs a block with that note."""
    return not note.startswith(("not run: ", "run by ", "commands checked: "))


@pytest.mark.parametrize(
    "page",
    [page for page in pages() if page.name not in PENDING and any(here(block.note) for block in page.blocks)],
    ids=lambda page: page.name,
)
def test_the_blocks_of_a_page(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``UCP_REWRITE_DOCS=1`` puts into console blocks and shown outputs what is printed now."""
    monkeypatch.chdir(tmp_path)
    for folder in ("docs", "examples"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    reader = Reader(tmp_path)
    if page.name in ROOMS:
        ROOMS[page.name](tmp_path, reader.namespace)
    told = [(block, reader.run(block)) for block in page.blocks if here(block.note)]
    wrong = [(block, text) for block, text in told if text != block.text]
    if os.environ.get("UCP_REWRITE_DOCS"):
        rewrite(page.name, wrong)
        return
    assert not wrong, "\n".join(
        line
        for block, text in wrong
        for line in unified_diff(block.text.splitlines(), text.splitlines(), str(block), "now", lineterm="")
    )
