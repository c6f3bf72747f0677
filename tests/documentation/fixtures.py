"""What examples in docstrings find: names that are imported, and a small checkpoint that is open."""

from __future__ import annotations

from typing import Any

__all__ = ["EXAMPLE", "names"]

EXAMPLE = """\
>>> import numpy as np
>>> import torch
>>> import ucpformat as ucp
>>> weight = np.arange(6, dtype=np.float32).reshape(3, 2)
>>> state = {"model": {"fc.weight": weight, "fc.bias": np.zeros(3, np.float32)}, "epoch": 3}
>>> report = ucp.save("example.ucp", state, step=100, annotations={"org.example.run": "a"})
>>> ckpt = ucp.open("example.ucp")
>>> view = ckpt["fc.weight"]["value"]
>>> atoms = [ucp.AtomSpec("w", {"value": ucp.SlotSpec("float32", (3, 2))})]
>>> mesh = ucp.Mesh((ucp.MeshAxis("dp", 2), ucp.MeshAxis("tp", 4)))
>>> layout = ucp.Layout(mesh, (ucp.Shard("tp", 0, "even"),))
>>> lost = (ucp.layouts.Box((64, 0), (64, 64)),)
>>> loss = ucp.Loss("fc.weight", "value", "float32", (256, 64), lost, nbytes=16384)
>>> measured = ucp.TensorDifference(256, 1, ((64, 65),), 3, 0.5, 0.2, 4194304, 0.2, 0)
>>> difference = ucp.Difference("changed", "atoms/fc.weight/value", str(measured), tensor=measured)
"""


def names() -> dict[str, Any]:
    """Run `EXAMPLE` in the current directory, and return what it names."""
    found: dict[str, Any] = {}
    exec("".join(line.removeprefix(">>> ") for line in EXAMPLE.splitlines(keepends=True)), found)
    return found
