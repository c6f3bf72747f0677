"""One rank that runs an example script's ``main`` with the arguments given, and keeps the losses."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

# Both, so that ranks need not import them one by one.
import accelerate
import transformers

from tests.processes import ROOT, join, leave

sys.path.insert(0, str(ROOT / "examples"))

VERSIONS = (accelerate.__version__, transformers.__version__)

if __name__ == "__main__":
    rank, _ = join()
    # Accelerate asks for them, and finds the group made.
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    script, run, *numbers = sys.argv[1:]
    module: Any = importlib.import_module(script)
    losses = module.main(Path(run), *map(int, numbers))
    if rank == 0:
        Path(f"{run}.{numbers[-1]}.json").write_text(json.dumps(losses))
    leave()
