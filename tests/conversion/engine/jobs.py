"""A checkpoint with tensors of all sizes, and ways to break off while it is converted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import ucpformat
from ucpformat.comparison import compare
from ucpformat.conversion.contract.foreign import ExportPlan
from ucpformat.conversion.contract.job import Job
from ucpformat.conversion.convert import ConversionReport, convert_checkpoint
from ucpformat.conversion.engine.exporting import Export
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.rewriting import rewrite_job
from ucpformat.conversion.engine.work_order import compressed
from ucpformat.conversion.engine.writing import Engine
from ucpformat.model.compressor import Compression
from ucpformat.tensor_files.out_files import OutFiles

CHUNK = 4096
BATCH = 8192


def run_job(job: Job, path: str | Path, *, compressor: Compression | None = None, **options: Any) -> str:
    """Write the checkpoint of a job in threads, and return its root digest."""
    progress = options.pop("progress", None)
    return Engine(compressed(job, compressor), path, EngineOptions(**options), progress=progress).run()


def write_files(files: OutFiles, path: str | Path, options: EngineOptions | None = None) -> None:
    """Write an export that only this process knows; what fails or is interrupted leaves nothing."""
    Export(files, path, options or EngineOptions()).run()


def make(path: Path) -> None:
    """Large slots of several chunks, many small ones, numbers, empty ones and zeros."""
    random = np.random.default_rng(7)
    model: dict[str, Any] = {
        f"layers.{n}.w": random.standard_normal((40, 33)).astype(np.float32) for n in range(30)
    }
    model |= {f"layers.{n}.b": random.standard_normal(5).astype(np.float32) for n in range(30)}
    model |= {
        "empty": np.zeros((0, 4), np.float32),
        "zeros": np.zeros((50, 50)),
        "scalar": np.array(2.5, np.float32),
    }
    whole = path.with_name("whole.ucp")
    ucpformat.save(whole, {"model": model, "rng": b"state", "epoch": 3})
    with ucpformat.open(whole) as checkpoint:
        # Small chunks, so that a small checkpoint has many.
        run_job(replace(rewrite_job(checkpoint), chunk_bytes=CHUNK, step=9), path)


def rewrite(source: str | Path, out: str | Path, storage: Any = "packed", **options: Any) -> ConversionReport:
    return convert_checkpoint(
        source,
        out,
        source_format="ucp",
        destination_format="ucp",
        storage=storage,
        engine=EngineOptions(durability="none", batch_bytes=BATCH, **options),
    )


def assert_same(source: Path, out: str | Path) -> None:
    assert ucpformat.validate(out) == []  # nor anything that the root does not reach
    with ucpformat.open(source) as first, ucpformat.open(out) as second:
        assert compare(first, second).differences == ()
        assert second.root.progress is not None
        assert second.root.progress.step == 9


class Breaks:
    """Raises at the n-th call, and every one after it."""

    def __init__(self, calls: int, failure: BaseException) -> None:
        self.left = calls
        self.failure = failure

    def __call__(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise self.failure
            return wrapped(*arguments, **named)

        return call


def carry_out(plan: ExportPlan, path: Path) -> None:
    """Write an export, which consists of files or writes itself."""
    if plan.files is not None:
        write_files(plan.files, path)
    else:
        assert plan.write is not None
        plan.write()
