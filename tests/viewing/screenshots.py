"""Takes the pictures of docs/viewing.md of a checkpoint that it makes: ``python -m tests.viewing.screenshots``."""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path

import numpy as np

import ucpformat as ucp
from tests.viewing.chromium import CHROMIUM, Chromium
from ucpformat.manager.run_directory import METRICS
from ucpformat.viewing.server import PageServer

PICTURES = Path(__file__).parents[2] / "docs" / "images"
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


def _save(path: Path, step: int) -> None:
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
    annotations: dict[str, object] = {METRICS: {"loss": 2.0 + 1500 / step}}
    with ucp.CheckpointWriter(path, atoms, step=step, annotations=annotations) as writer:  # type: ignore[arg-type]
        for name, data in tensors.items():
            writer.write(name, "value", data)


def _take(page: Chromium) -> None:
    page.type("#search", "layers.3.attention.wqkv")
    page.wait("document.querySelectorAll('.row').length === 1")
    page.click(".row")
    page.wait("document.querySelector('table.values')")
    for panel in ("heat map", "statistics"):
        page.click(f"[data-panel='{panel}'] button")
    page.wait("document.querySelector('canvas') && document.querySelector('[data-panel=statistics] svg')")
    page.type("#search", "")
    page.wait("document.querySelectorAll('.row').length > 5")
    page.value("document.querySelector('[data-panel=values]').scrollIntoView()")
    page.screenshot(PICTURES / "viewing-tensor.png")
    page.value(
        "(() => { const slider = document.querySelector('[data-panel=layout] input'); slider.value = 2;"
        " slider.dispatchEvent(new Event('input')); slider.closest('section').scrollIntoView(); })()"
    )
    page.click("[data-view=map]")
    page.screenshot(PICTURES / "viewing-map-and-layout.png")
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    page.click("[data-view=run]")
    page.wait("document.querySelectorAll('#run circle').length > 0")
    page.value("document.querySelector('[data-panel=statistics]').scrollIntoView()")
    page.screenshot(PICTURES / "viewing-run-dark.png")


def main() -> None:
    """Write the pictures."""
    if CHROMIUM is None:
        sys.exit("there is no Chromium here; Debian's package is `chromium`")
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"step-{step}.ucp" for step in reversed(STEPS)]
        for path, step in zip(paths, reversed(STEPS), strict=True):
            _save(path, step)
        server = PageServer([(path.name, ucp.open(path)) for path in paths], compared=1)
        with server, Chromium(Path(folder) / "chromium", width=1280, height=800) as page:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            page.go(server.url)
            page.wait("document.body.dataset.ready")
            _take(page)
            server.shutdown()


if __name__ == "__main__":
    main()
