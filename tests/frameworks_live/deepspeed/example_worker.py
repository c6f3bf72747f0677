"""One rank that runs the example script's ``main`` for several runs in turn, and keeps the losses."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import deepspeed

from tests.processes import ROOT, join, leave

sys.path.insert(0, str(ROOT / "examples"))
script: Any = importlib.import_module("deepspeed_engine")

if __name__ == "__main__":
    rank, _ = join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    for job in sys.argv[1:]:
        run, *numbers = job.split(":")
        losses = script.main(Path(run), *map(int, numbers))
        if rank == 0:
            Path(f"{run}.{numbers[0]}.json").write_text(json.dumps(losses))
    leave()
