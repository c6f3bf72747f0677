"""What ``ucp inspect`` shows of checkpoints that DeepSpeed wrote, at three widths: ZeRO-1, ZeRO-3, experts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.kept_pages import WIDTHS, compare_page
from tests.frameworks_live.deepspeed.jobs import converted, made_by
from tests.processes import launch

pytestmark = pytest.mark.distributed

ZERO = ("z1-bf16", "z3-bf16")
MOE = "moe-z2-bf16-ep4"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    launch("tests.frameworks_live.deepspeed.make", [str(folder), *ZERO], 2, timeout=560)
    sources = {name: folder / f"{name}-dp2" / "ckpt" for name in ZERO}
    sources[MOE] = made_by("make_moe", [MOE], tmp_path_factory) / MOE / "ckpt"
    return {name: converted(path, folder / f"{name}.ucp") for name, path in sources.items()}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", [*ZERO, MOE])
def test_the_pages_are_as_they_are_kept(
    pages: dict[str, Path], name: str, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compare_page(pages[name], f"deepspeed-{name}", width, monkeypatch)
