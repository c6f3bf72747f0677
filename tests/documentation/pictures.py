"""Makes every picture of the documentation: ``python -m tests.documentation.pictures``, which is ``make pictures``.

Drawings are of a checkpoint that is saved for them, curves and bars of kept runs of the benchmarks and of a demo; tests
make them again and compare. Screenshots need Chromium and look a little different everywhere: beside them lies what
they were made from.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from typing import Final

import numpy as np
from click.testing import CliRunner

import ucpformat as ucp
from benchmarks.growth.curves import Curves
from benchmarks.plots import draw, draw_curves
from benchmarks.results import Run
from tests.viewing import screenshots
from tests.viewing.chromium import CHROMIUM
from ucpformat.cli import main as run_ucp
from ucpformat.geometry import Blocks

__all__ = ["RUNS", "SCREENSHOTS", "draw_checkpoint", "draw_run", "made_from"]

ROOT: Final = Path(__file__).parents[2]
IMAGES: Final = ROOT / "docs" / "images"
PLOTS: Final = ROOT / "docs" / "benchmarks"
RUNS: Final = {
    "save-load-1GiB": "save-load-1GiB-run-13",
    **{f"growth-{over}": f"growth-{over}-run-1" for over in ("atoms", "bytes", "layouts", "ranks")},
}
"""Kept runs by the pictures in docs/benchmarks that are drawn of them."""
SCREENSHOTS: Final = IMAGES / "screenshots.json"
"""Digests of the screenshots, and of what they were made from."""


def draw_run(name: str, folder: Path) -> Path:
    """Draw a kept run of the benchmarks."""
    value = json.loads((ROOT / "benchmarks" / "results" / f"{RUNS[name]}.json").read_text(encoding="utf-8"))
    path = folder / f"{name}.svg"
    if name.startswith("growth-"):
        draw_curves(Curves.from_json(value), path)
    else:
        draw(Run.from_json(value), path)
    return path


def _save(path: Path) -> None:
    """Save a layer whose queries, keys and values are fused, and an embedding of an odd number of rows, on 4 ranks."""
    mesh = ucp.Mesh((ucp.MeshAxis("tp", 4),))
    fused = ucp.Layout(mesh, (Blocks(0, (64, 16, 16)), ucp.Shard("tp", 0, "even")))
    uneven = ucp.Layout(mesh, (ucp.Shard("tp", 0, "ceil"),))
    atoms = [
        ucp.AtomSpec("attention.wqkv.weight", {"value": ucp.SlotSpec("float32", (96, 64), fused)}),
        ucp.AtomSpec("embed.weight", {"value": ucp.SlotSpec("float32", (509, 64), uneven)}),
    ]
    with ucp.CheckpointWriter(path, atoms, step=1000) as writer:
        for atom in atoms:
            writer.write(atom.name, "value", np.ones(atom.slots["value"].shape, np.float32))


def draw_checkpoint(folder: Path) -> Iterator[Path]:
    """Draw who holds what of a checkpoint, and what moves when it is resumed on two ranks."""
    checkpoint = folder / "step-1000.ucp"
    _save(checkpoint)
    target = folder / "two-ranks.json"
    halves = {"kind": "shard", "axis": "tp", "dim": 0, "rule": "ceil"}
    target.write_text(
        json.dumps(
            {
                "format": "ucp", "format_version": 0, "read_features": [], "write_features": [], "extensions": {},
                "annotations": {}, "kind": "patterns", "parameters": [],
                "meshes": [{"axes": [{"name": "tp", "size": 2}]}],
                "rules": [{"match": "**", "layout": {"mesh": 0, "steps": [halves]}}],
            }
        )
    )  # fmt: skip
    path, to = checkpoint.name, target.name
    for name, words in {
        "shards-fused": ["shards", path, "attention.wqkv.weight"],
        "plan": ["plan", "--from", path, "--to", to, "--via", "ranks", "--picture"],
    }.items():
        with chdir(folder):  # a drawing has the words of the command
            CliRunner().invoke(run_ucp, [*words, "-o", f"{name}.svg"], catch_exceptions=False)
        yield folder / f"{name}.svg"


def made_from() -> dict[str, str]:
    """Return digests of what screenshots are made from, without comments: the page, the script, what is shown."""
    sources = [*sorted((ROOT / "js" / "view").iterdir()), Path(screenshots.__file__), screenshots.WORDS]
    return {path.relative_to(ROOT).as_posix(): _digest(_code(path)) for path in sources}


def digests_of_screenshots() -> dict[str, str]:
    """Return digests of the screenshots."""
    return {path.name: _digest(path.read_bytes()) for path in sorted(IMAGES.glob("*.png"))}


def _code(path: Path) -> bytes:
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return "\n".join(line for line in lines if line and not _is_comment(line)).encode()


def _is_comment(line: str) -> bool:
    return line.startswith("//") or (line.startswith(("/*", "*")) and not line.partition("*/")[2])


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    """Write all pictures; screenshots where there is Chromium."""
    IMAGES.mkdir(exist_ok=True)
    for name in RUNS:
        draw_run(name, PLOTS)
    sys.path.insert(0, str(ROOT / "examples"))
    demo_run = importlib.import_module("demo_run")
    demo_run.keep(IMAGES / "demo-run.svg", *demo_run.kept(IMAGES / "demo-run.svg"))
    with tempfile.TemporaryDirectory() as folder:
        for drawn in draw_checkpoint(Path(folder)):
            (IMAGES / drawn.name).write_bytes(drawn.read_bytes())
    if CHROMIUM is None:
        sys.exit(
            "there is no Chromium here, so that screenshots stay as they are; Debian's package is `chromium`"
        )
    screenshots.main()
    found = {"made from": made_from(), "pictures": digests_of_screenshots()}
    SCREENSHOTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
