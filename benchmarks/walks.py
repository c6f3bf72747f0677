"""`make walks`: what a newcomer meets who follows one operation through the library, call by call.

For each walk it counts calls, distinct functions and modules of the library, and calls that go upward: from a module
to one of a layer above it, by the import contracts of pyproject.toml. All threads are followed. Each operation is done
once before, so that imports and what is remembered are left out. Comprehensions count with the function that they are
in; methods that `dataclasses` makes do not count, nor those that the interpreter calls of objects which it frees.
``--upward`` names the calls upward, ``--modules`` and ``--functions`` what was entered.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import threading
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

import ucpformat as ucp

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["WALKS", "Walk", "walked"]

_ROOT: Final = Path(__file__).parents[1]
_COMPREHENSIONS: Final = frozenset({"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"})

_Function = tuple[str, str]
"""A module's name, and the qualified name of a function in it."""


@dataclass
class Walk:
    """What was called: how often each function, and by whom from below."""

    calls: Counter[_Function] = field(default_factory=Counter)
    upward: Counter[tuple[_Function, _Function]] = field(default_factory=Counter)

    @property
    def modules(self) -> list[str]:
        """Names of the modules that were entered."""
        return sorted({module for module, _ in self.calls})


class _Layers:
    """The contracts of the type ``layers``: which module stands above which."""

    def __init__(self, contracts: Sequence[Mapping[str, Any]]) -> None:
        self._orders: list[dict[str, int]] = []
        for contract in contracts:
            if contract["type"] == "layers":
                for container in contract.get("containers", [""]):
                    self._orders.append(
                        {
                            f"{container}.{module}".lstrip("."): rank
                            for rank, layer in enumerate(contract["layers"])
                            for module in re.split(r" [|:] ", layer)
                        }
                    )

    def is_upward(self, caller: str, called: str) -> bool:
        """Whether a module stands below one that it calls."""
        for order in self._orders:
            below, above = self._rank(order, caller), self._rank(order, called)
            if below is not None and above is not None and above < below:
                return True
        return False

    @staticmethod
    def _rank(order: Mapping[str, int], module: str) -> int | None:
        while module:
            if module in order:
                return order[module]
            module = module.rpartition(".")[0]
        return None


class _Tracer:
    """Follows calls of functions of the library, in this thread and in those that it starts."""

    def __init__(self, layers: _Layers) -> None:
        self.walk = Walk()
        self._layers = layers
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.setprofile(self._saw)
        sys.setprofile(self._saw)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _saw(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code.co_name in _COMPREHENSIONS:
            return
        called = _function(frame)
        if called is None:
            return
        caller = _caller(frame)
        with self._lock:
            self.walk.calls[called] += 1
            if caller is not None and self._layers.is_upward(caller[0], called[0]):
                self.walk.upward[caller, called] += 1


def _function(frame: FrameType) -> _Function | None:
    module = frame.f_globals.get("__name__", "")
    is_ours = module == "ucpformat" or module.startswith("ucpformat.")
    if not is_ours or frame.f_code.co_filename == "<string>" or frame.f_code.co_name == "__del__":
        return None
    return module, frame.f_code.co_qualname


def _caller(frame: FrameType) -> _Function | None:
    """Return the nearest function of the library that a frame was called from, by others if need be.

    None within `__del__`, which interrupts any other function.
    """
    back = frame.f_back
    while back is not None and back.f_code.co_name != "__del__":
        function = _function(back)
        if function is not None:
            return function
        back = back.f_back
    return None


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is saved, read and converted."""

    state: dict[str, Any]
    checkpoint: Path
    safetensors: Path


def _prepared(directory: Path) -> Inputs:
    """Return what a training script saves (a model of torch, its optimizer after a step, and a number), and files."""
    import torch
    from safetensors.numpy import save_file

    model = torch.nn.Linear(16, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(4, 16)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 3}
    inputs = Inputs(state, directory / "run.ucp", directory / "model.safetensors")
    ucp.save(inputs.checkpoint, state)
    save_file({"w": np.ones((64, 8), np.float32)}, inputs.safetensors)
    return inputs


def _save(inputs: Inputs, out: Path) -> None:
    ucp.save(out / "saved.ucp", inputs.state)


def _save_together(_: Inputs, out: Path) -> None:
    from tests.distributed.thread_group import ThreadGroup, run_threads
    from ucpformat.distributed.save import SaveOptions
    from ucpformat.state_dict.save_load import save_state

    mesh = ucp.Mesh((ucp.MeshAxis("dp", 2),))
    layouts = {"model.w": ucp.TensorLayout(ucp.Layout(mesh, (ucp.Shard("dp", 0),)), (64, 8))}

    def work(group: ThreadGroup) -> None:
        held = {"model": {"w": np.ones((32, 8), np.float32)}, "step": 3}
        options = SaveOptions("packed", 1 << 24, None)
        save_state(out / "together.ucp", held, options, group=group, layouts=layouts)

    for failure in run_threads(2, work):
        if isinstance(failure, BaseException):
            raise failure


def _slice(inputs: Inputs, _: Path) -> None:
    with ucp.open(inputs.checkpoint) as checkpoint:
        checkpoint["weight"]["value"][0:4]


def _validate(inputs: Inputs, _: Path) -> None:
    assert not ucp.validate(inputs.checkpoint)


def _convert(inputs: Inputs, out: Path) -> None:
    from ucpformat.conversion.contract.registry import UCP
    from ucpformat.conversion.convert import convert_checkpoint

    convert_checkpoint(
        inputs.safetensors, out / "converted.ucp", source_format="safetensors", destination_format=UCP
    )


WALKS: Final[Mapping[str, Callable[[Inputs, Path], None]]] = {
    "save, one process": _save,
    "save, two ranks": _save_together,
    "open and slice": _slice,
    "validate": _validate,
    "convert safetensors to ucp": _convert,
}
"""What is done with the inputs and an empty directory."""


def walked() -> dict[str, Walk]:
    """Do each operation twice, and follow the second."""
    with (_ROOT / "pyproject.toml").open("rb") as file:
        layers = _Layers(tomllib.load(file)["tool"]["importlinter"]["contracts"])
    walks = {}
    with tempfile.TemporaryDirectory() as directory:
        inputs = _prepared(Path(directory))
        for number, (name, operation) in enumerate(WALKS.items()):
            first, second = (Path(directory, f"{number}-{turn}") for turn in (1, 2))
            first.mkdir()
            second.mkdir()
            operation(inputs, first)
            with _Tracer(layers) as tracer:
                operation(inputs, second)
            walks[name] = tracer.walk
    return walks


def main() -> None:
    """Print a table of the walks."""
    parser = argparse.ArgumentParser(description=__doc__)
    for option, text in (("upward", "calls upward"), ("modules", "modules"), ("functions", "functions")):
        parser.add_argument(f"--{option}", action="store_true", help=f"name the {text} of each walk")
    parser.add_argument("--only", default="", help="walks whose names have this in them")
    options = parser.parse_args()
    walks = {name: walk for name, walk in walked().items() if options.only in name}
    print("| walk | calls | functions | modules | calls upward |\n|---|---:|---:|---:|---:|")
    for name, walk in walks.items():
        counts = walk.calls.total(), len(walk.calls), len(walk.modules), walk.upward.total()
        print(f"| {name} | {' | '.join(f'{count:,}' for count in counts)} |")
    for name, walk in walks.items():
        if options.modules:
            print(f"\n{name}:", *walk.modules, sep="\n  ")
        if options.functions:
            print(
                f"\n{name}:",
                *(f"{'.'.join(called)} {count}" for called, count in walk.calls.items()),
                sep="\n  ",
            )
        if options.upward:
            pairs = (f"{'.'.join(one)} -> {'.'.join(other)} {n}" for (one, other), n in walk.upward.items())
            print(f"\n{name}:", *pairs, sep="\n  ")


if __name__ == "__main__":
    main()
