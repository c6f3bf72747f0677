"""Takes the pictures of docs/viewing.md of a run that it makes: ``python -m tests.viewing.screenshots``."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import ucpformat as ucp
from tests.viewing.chromium import CHROMIUM, Chromium
from tests.viewing.looking import change
from ucpformat.jsonio import JsonValue
from ucpformat.manager.run_directory import METRICS
from ucpformat.patterns import Patterns
from ucpformat.planning import checkpoint_side, movements, pair, patterns_side
from ucpformat.viewing.server import PageServer

PICTURES = Path(__file__).parents[2] / "docs" / "images"
WORDS = Path(__file__).with_name("screenshots.json")
"""What is to be read in each picture."""
STEPS = (1000, 2000, 3000, 4000)
WIDTH, LAYERS = 256, 12


def _tensors(step: int) -> dict[str, np.ndarray]:
    """Return tensors of a small GPT, of which the embeddings stay as they are."""
    fixed, random = np.random.default_rng(0), np.random.default_rng(step)
    tensors = {"embed.weight": fixed.standard_normal((4096, WIDTH)).astype(np.float32)}
    for layer in range(LAYERS):
        name = f"layers.{layer}"
        for part, rows, columns in (
            ("attention.wqkv", 3 * WIDTH, WIDTH),
            ("attention.wo", WIDTH, WIDTH),
            ("mlp.up", 4 * WIDTH, WIDTH),
            ("mlp.down", WIDTH, 4 * WIDTH),
        ):
            scale = np.linspace(0.2, 2.0, rows, dtype=np.float32)[:, None]
            tensors[f"{name}.{part}.weight"] = (
                random.standard_normal((rows, columns)).astype(np.float32) * scale
            )
        tensors[f"{name}.norm.weight"] = np.ones(WIDTH, np.float32)
    return tensors


def _columns() -> Patterns:
    """Return patterns that split every matrix by columns over four ranks."""
    shard: dict[str, JsonValue] = {"kind": "shard", "axis": "tp", "dim": 1, "rule": "even"}
    return Patterns.from_json(
        {
            "format": "ucp", "format_version": 0, "read_features": [], "write_features": [], "extensions": {},
            "annotations": {}, "kind": "patterns", "parameters": [], "meshes": [{"axes": [{"name": "tp", "size": 4}]}],
            "rules": [
                {"match": "**.norm.weight", "layout": {"mesh": 0, "steps": []}},
                {"match": "**", "layout": {"mesh": 0, "steps": [shard]}},
            ],
        },
        at="columns",
    )  # fmt: skip


def _save(path: Path, step: int, folder: Path) -> None:
    mesh = ucp.Mesh((ucp.MeshAxis("dp", 2), ucp.MeshAxis("tp", 4)))
    by_rows, by_columns = (ucp.Layout(mesh, (ucp.Shard("tp", dim, "even"),)) for dim in (0, 1))
    tensors = _tensors(step)
    atoms = [
        ucp.AtomSpec(
            name,
            {
                "value": ucp.SlotSpec(
                    "float32",
                    data.shape,
                    None if data.ndim == 1 else by_columns if ".wo." in name or ".down." in name else by_rows,
                )
            },
        )
        for name, data in tensors.items()
    ]
    annotations: dict[str, JsonValue] = {METRICS: {"loss": 2.0 + 1500 / step}}
    base = None if step == STEPS[0] else folder / f"step-{step - STEPS[0]}.ucp"
    with ucp.CheckpointWriter(path, atoms, step=step, annotations=annotations, base=base) as writer:
        for name, data in tensors.items():
            writer.write(name, "value", data)
        writer.set_value("epoch", step // 1000)
        writer.set_value("sampler", {"seed": 17, "position": (step, 0)})
        decayed = [name for name, data in tensors.items() if data.ndim > 1]
        rest = [name for name in tensors if name not in decayed]
        writer.set_optimizer(
            "adamw",
            [(decayed, {"lr": 3e-4, "weight_decay": 0.1}), (rest, {"lr": 3e-4, "weight_decay": 0.0})],
        )


def _flawed(paths: list[Path]) -> None:
    """Flip a byte of the newest checkpoint, so that there is a problem to show."""
    pack = max((paths[0] / "packs").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)


def _views(page: Chromium) -> Iterator[str]:
    """Bring the page into the state of each picture, and yield its name."""
    page.type("#search", "layers.3.attention.wqkv")
    page.wait("document.querySelectorAll('.row').length === 1")
    page.click(".row")
    page.wait("document.querySelector('table.values')")
    for panel in ("what changed", "heat map", "statistics"):
        page.click(f"[data-panel='{panel}'] button")
    page.wait(
        "document.querySelectorAll('canvas').length === 2 && document.querySelector('[data-panel=statistics] svg')"
    )
    page.type("#search", "")
    page.wait("document.querySelectorAll('.row').length > 5")
    page.value("document.querySelector('[data-panel=values]').scrollIntoView()")
    yield "tensor"
    change(page, "[data-panel=layout] input", 2)
    page.value("document.querySelector('[data-panel=layout]').scrollIntoView()")
    page.click("[data-view=map]")
    yield "map-and-layout"
    page.click("[data-view=plan]")
    change(page, "#plan label + label input", 2)
    page.click("#plan button")
    page.wait("document.querySelectorAll('#plan table').length === 2")
    page.value("document.querySelector('#plan form').scrollIntoView()")
    page.value(
        "(() => { const text = document.querySelector('[data-panel=plan] textarea');"
        " text.value = text.value.replace('\"size\":2', '\"size\":1').replace('\"dim\":0', '\"dim\":1'); })()"
    )
    page.click("[data-panel=plan] button")
    page.wait("document.querySelector('[data-panel=plan] table')")
    page.value("document.querySelector('[data-panel=plan]').scrollIntoView()")
    yield "plan"
    page.click("[data-view=state]")
    page.wait("document.querySelector('#state table')")
    page.value("document.querySelector('[data-panel=layout]').scrollIntoView()")
    yield "state"
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.click("[data-view=run]")
    page.wait("document.querySelectorAll('#run polyline ~ circle').length > 0")
    page.value("document.querySelector('[data-panel=statistics]').scrollIntoView()")
    yield "run-dark"
    page.call("Emulation.setEmulatedMedia", features=[])
    page.click("[data-view=problems]")
    page.wait("document.querySelector('#problems button')")
    page.click("#problems button")
    page.wait("document.querySelector('#problems tbody tr')")
    page.click("#problems tbody button")
    page.wait("document.querySelector('[data-panel=values] td, [data-panel=values] .error')")
    yield "problems"


def pictures(page: Chromium, folder: Path) -> Iterator[tuple[str, str]]:
    """Show each of the pictures, and yield its name and the words in it, but for digests, which differ each time."""
    paths = [folder / f"step-{step}.ucp" for step in reversed(STEPS)]
    for path, step in zip(reversed(paths), STEPS, strict=True):
        _save(path, step, folder)
    with ucp.open(paths[0]) as newest:
        source = checkpoint_side(paths[0].name, newest)
        columns = patterns_side("columns of 4", _columns(), source, {})
        plan = movements(pair(source, columns, "ranks")).to_json()
    _flawed(paths)
    checkpoints = [(path.name, ucp.open(path)) for path in paths]
    with PageServer(checkpoints, compared=1, plan=plan) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            page.go(server.url)
            page.wait(f"location.href === {json.dumps(server.url)} && document.body.dataset.ready")
            for name in _views(page):
                page.wait("!document.querySelector('main').innerText.includes('reading…')")
                words = page.value(
                    "['header', 'nav', 'main'].map((name) => document.querySelector(name).innerText).join('\\n')"
                )
                yield name, re.sub(r"(sha256|crc32c-tree):[0-9a-f…]+|[0-9a-f]{8}(-\d+)+\.pack", "…", words)
        finally:
            page.go("about:blank")
            server.shutdown()
            thread.join()
            for _, checkpoint in checkpoints:
                checkpoint.close()


def main() -> None:
    """Write the pictures, and the words in them, by which a test sees that they are current."""
    if CHROMIUM is None:
        sys.exit("there is no Chromium here; Debian's package is `chromium`")
    PICTURES.mkdir(exist_ok=True)
    words: dict[str, list[str]] = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Chromium(Path(folder) / "chromium", width=1280, height=800) as page,
    ):
        for name, text in pictures(page, Path(folder)):
            page.screenshot(PICTURES / f"viewing-{name}.png")
            words[name] = text.splitlines()
    WORDS.write_text(json.dumps(words, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
