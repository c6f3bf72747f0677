"""Works by whichever `ucpformat` is on the path: one side of `benchmarks revisions`.

``python revision_worker.py MEASURE``: one line of JSON for each line of JSON on standard input, ``{"do", "path"}``;
the first has the state's shapes by name. It imports nothing of this folder but the module MEASURE, by its file, since
another revision's folder of this name may be on the path.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import warnings
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import asdict
from importlib.util import module_from_spec, spec_from_file_location
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import ucpformat


def main() -> None:
    """Answer until standard input ends."""
    warnings.simplefilter("ignore")
    spec = spec_from_file_location("measure", sys.argv[1])
    assert spec is not None
    assert spec.loader is not None
    measure = sys.modules["measure"] = module_from_spec(spec)
    spec.loader.exec_module(measure)
    state = _State(json.loads(sys.stdin.readline()))
    _say({"revision": ucpformat.__file__})
    for line in sys.stdin:
        order = json.loads(line)
        work: Callable[[str], None] = getattr(state, order["do"])
        _say(asdict(measure.measured(lambda work=work, path=order["path"]: work(path))))


def _say(answer: object) -> None:
    print(json.dumps(answer), flush=True)


class _State:
    """What is saved, and what is loaded into."""

    def __init__(self, shapes: dict[str, list[int]]) -> None:
        draw = np.random.default_rng(16)
        self._state: Any = {"model": {name: draw.random(shape, np.float32) for name, shape in shapes.items()}}
        self._loaded: Any = {"model": {name: np.ones(shape, np.float32) for name, shape in shapes.items()}}
        self._name = f"model.{next(iter(shapes))}"

    def save(self, path: str) -> None:
        ucpformat.save(path, self._state)

    def load(self, path: str) -> None:
        ucpformat.load(path, self._loaded)

    def check(self, path: str) -> None:
        """Load, and compare with what was saved."""
        self.load(path)
        saved, loaded = self._state["model"], self._loaded["model"]
        assert all(np.array_equal(saved[name], loaded[name]) for name in saved)

    def open_and_slice(self, path: str) -> None:
        with ucpformat.open(path) as checkpoint:
            name = next(name for name in checkpoint if name == self._name or f"model.{name}" == self._name)
            checkpoint[name]["value"][0:10]

    def validate(self, path: str) -> None:
        assert not list(ucpformat.validate(path))

    def prepare(self, path: str) -> None:
        """Write the state as a safetensors file, for `convert`."""
        save_file(self._state["model"], f"{path}.safetensors")

    def convert(self, path: str) -> None:
        """Convert that file by the command line, whose words have not changed."""
        sys.argv = ["ucp", "convert", f"{path}.safetensors", f"{path}.converted"]
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
            try:
                runpy.run_module("ucpformat", run_name="__main__", alter_sys=True)
            except SystemExit as ended:
                if ended.code:
                    raise RuntimeError(f"ucp convert ended with {ended.code}") from None


if __name__ == "__main__":
    main()
