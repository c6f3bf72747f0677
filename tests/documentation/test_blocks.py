"""Every block of README and docs is run, and compared where it shows output."""

from __future__ import annotations

import json
import os
import shlex
from collections import Counter
from difflib import unified_diff
from pathlib import Path

import pytest

from tests.documentation.commands import NoSuchCommandError, check_command
from tests.documentation.markdown import ROOT, Block, Page, page, pages
from tests.documentation.rooms import ROOMS
from tests.documentation.running import Reader, commands_of, rewrite
from tests.processes import launch

ON_RANKS = ["docs/torch.md", "docs/guides/pytorch.md", "docs/guides/torchtitan.md"]
"""Pages whose blocks every rank of a job types."""
RANKS = 2
TYPED = [page for page in pages() if any(block.is_run for block in page.blocks)]


@pytest.mark.parametrize(
    "page", [page for page in TYPED if page.name not in ON_RANKS], ids=lambda page: page.name
)
def test_the_blocks_of_a_page(page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``UCP_REWRITE_DOCS=1`` puts into console blocks and shown outputs what is printed now."""
    monkeypatch.chdir(tmp_path)
    reader = Reader(tmp_path)
    if page.name in ROOMS:
        ROOMS[page.name](tmp_path, reader.namespace)
    told = [(block, reader.run(block)) for block in page.blocks if block.is_run]
    judge([(block, text) for block, text in told if text != block.text])


@pytest.mark.distributed
def test_the_blocks_of_pages_on_two_ranks(tmp_path: Path) -> None:
    launch("tests.documentation.rank_worker", [str(tmp_path), *ON_RANKS], RANKS)
    found = json.loads((tmp_path / "wrong.json").read_text(encoding="utf-8"))
    blocks = {(block.page, block.line): block for name in ON_RANKS for block in page(name).blocks}
    judge([(blocks[name, line], text) for name, line, text in found])


def judge(wrong: list[tuple[Block, str]]) -> None:
    """Fail where blocks print something else than they show, or have them show that."""
    if os.environ.get("UCP_REWRITE_DOCS"):
        rewrite(wrong)
        return
    assert not wrong, "\n".join(
        line
        for block, text in wrong
        for line in unified_diff(block.text.splitlines(), text.splitlines(), str(block), "now", lineterm="")
    )


@pytest.mark.parametrize(
    "block",
    [block for page in pages() for block in page.blocks if block.note.startswith("commands checked: ")],
    ids=str,
)
def test_commands_that_are_not_run_exist(block: Block) -> None:
    commands = [part for line in commands_of(block.text) for part in line.split(" && ")]
    assert commands
    for command in commands:
        check_command(shlex.split(command, comments=True))


def test_blocks_that_others_run_are_named_there() -> None:
    for block in (block for one in pages() for block in one.blocks if block.note.startswith("run by ")):
        place = ROOT / block.note.removeprefix("run by ")
        assert place.exists(), f"{block}: there is no {place}"
        assert block.page in place.read_text(encoding="utf-8"), f"{block} is not run by {place}"


NOT_RUN = {
    "conformance/GETTING_STARTED.md": 1,
    "docs/hostile-input.md": 1,
}
"""How many blocks of a page nothing runs; why is said beside each."""


def test_few_blocks_are_not_run() -> None:
    left = Counter(
        block.page for page in pages() for block in page.blocks if block.note.startswith("not run: ")
    )
    assert left == NOT_RUN


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make nothing", "no nothing"),
        ("ucp convert a b --nothing", "No such option"),
        ("ucp nothing", "No such command"),
        ("python -m benchmarks save-load --only nobody", "nobody"),
        ("pip install ucpformat", "clone"),
        ("pip install '.[nothing]'", "no extra nothing"),
        ("rm -r x", "nobody can check"),
    ],
)
def test_commands_that_do_not_exist_are_found(command: str, problem: str) -> None:
    with pytest.raises(NoSuchCommandError, match=problem):
        check_command(shlex.split(command))
