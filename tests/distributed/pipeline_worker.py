"""One rank of a pipeline of three stages that stashes weights (PipeDream): 1F1B, an update for every minibatch.

Arguments: the folder, the widths of the stages as ``1,2,1``, the updates to make, and, each 0 for never, behind which
update a checkpoint is made, behind which one every rank kills itself, and from which one to resume.

A stage of two ranks has halves of each minibatch and sums its gradients. Every rank writes the weights that it ends
with; all of them save the drained pipeline.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import ucpformat as ucp
from tests.processes import join, leave

STAGES = 3
BATCH = 8
SIZES = (6, 10, 8, 4)
RATE, MOMENTUM = 0.1, 0.9
Weights = dict[str, Tensor]


def data(minibatch: int) -> tuple[Tensor, Tensor]:
    """What goes into the pipeline, and what should come out."""
    generator = torch.Generator().manual_seed(minibatch)
    return (
        torch.randn(BATCH, SIZES[0], generator=generator),
        torch.randn(BATCH, SIZES[-1], generator=generator),
    )


def initial(stage: int) -> Weights:
    """A layer's weight and bias, by their names in the whole model."""
    generator = torch.Generator().manual_seed(1000 + stage)
    made = {"weight": (SIZES[stage + 1], SIZES[stage]), "bias": (SIZES[stage + 1],)}
    return {
        f"layers.{stage}.{name}": torch.randn(shape, generator=generator) / 3 for name, shape in made.items()
    }


class Rank:
    """What one rank holds, and what it does with it."""

    def __init__(self, rank: int, widths: tuple[int, ...]) -> None:
        self.mesh = ucp.Mesh((ucp.MeshAxis("pp", STAGES), ucp.layouts.RaggedAxis("dp", "pp", widths)))
        self.stage, self.replica = self.mesh.coordinate_of(rank)
        self.widths = widths
        self.peers = [
            [sum(widths[:stage]) + replica for replica in range(width)] for stage, width in enumerate(widths)
        ]
        # Every rank makes every group.
        self.group = [dist.new_group(peers) for peers in self.peers][self.stage]
        self.weights = initial(self.stage)
        self.momenta = {name: torch.zeros_like(weight) for name, weight in self.weights.items()}
        self.updates = 0
        self.forwards = 0
        self.versions: dict[int, Weights] = {}
        self.in_flight: dict[int, tuple[int, Tensor, Tensor]] = {}
        """By minibatch: the version that it went through, its input, its output."""
        self.sent: list[Any] = []

    # Messages

    def neighbours(self, stage: int, last: int) -> list[tuple[int, slice, tuple[int, ...]]]:
        """Ranks of a stage beside this one with the rows that go to or come from each, and their shape.

        One of any two neighbouring stages has one rank.
        """
        if self.widths[stage] == 1:
            rows = BATCH // self.widths[self.stage]
            return [(self.peers[stage][0], slice(0, rows), (rows, last))]
        rows = BATCH // self.widths[stage]
        return [
            (peer, slice(number * rows, (number + 1) * rows), (rows, last))
            for number, peer in enumerate(self.peers[stage])
        ]

    def send(self, tensor: Tensor, stage: int, tag: int) -> None:
        for peer, rows, _ in self.neighbours(stage, tensor.shape[1]):
            part = tensor.detach()[rows].contiguous()
            self.sent.append((dist.isend(part, peer, tag=tag), part))

    def receive(self, stage: int, last: int, tag: int) -> Tensor:
        parts = []
        for peer, _, shape in self.neighbours(stage, last):
            parts.append(torch.empty(shape))
            dist.recv(parts[-1], peer, tag=tag)
        return torch.cat(parts)

    # Steps

    def forward(self, minibatch: int, version: int) -> None:
        """Send a minibatch forward through a version of the weights, which is stashed until it comes back."""
        if version not in self.versions:
            self.versions[version] = {
                name: weight.clone().requires_grad_() for name, weight in self.weights.items()
            }
        weights = self.versions[version]
        if self.stage == 0:
            x = data(minibatch)[0]
        else:
            x = self.receive(self.stage - 1, SIZES[self.stage], 2 * minibatch).requires_grad_()
        weight, bias = (weights[f"layers.{self.stage}.{name}"] for name in ("weight", "bias"))
        y = torch.tanh(x @ weight.T + bias)
        if self.stage < STAGES - 1:
            self.send(y, self.stage + 1, 2 * minibatch)
        self.in_flight[minibatch] = (version, x, y)
        self.forwards = minibatch + 1

    def backward(self, minibatch: int) -> None:
        """Take a minibatch back through the version that it went through, and update the newest."""
        version, x, y = self.in_flight.pop(minibatch)
        weights = self.versions[version]
        inputs = [*weights.values()] + [x] * (self.stage > 0)
        if self.stage == STAGES - 1:
            found = torch.autograd.grad(((y - data(minibatch)[1]) ** 2).mean(), inputs)
        else:
            gradient = self.receive(self.stage + 1, SIZES[self.stage + 1], 2 * minibatch + 1)
            found = torch.autograd.grad(y, inputs, gradient)
        if self.stage > 0:
            self.send(found[-1], self.stage - 1, 2 * minibatch + 1)
        for name, gradient in zip(weights, found, strict=False):
            dist.all_reduce(gradient, group=self.group)
            self.momenta[name].mul_(MOMENTUM).add_(gradient)
            self.weights[name].sub_(self.momenta[name], alpha=RATE)
        self.updates += 1
        if version not in {used for used, _, _ in self.in_flight.values()}:
            del self.versions[version]

    # Checkpoints

    def state(self, versions: Mapping[int, Weights]) -> tuple[dict[str, Any], dict[str, ucp.TensorLayout]]:
        """What this rank holds, and how: the same on all ranks of its stage, and nothing on others."""
        stashed = {
            version: {"model": {name: one.detach() for name, one in weights.items()}}
            for version, weights in versions.items()
        }
        state: dict[str, Any] = {"model": self.weights, "momentum": self.momenta}
        trees = {"model": self.weights, "momentum": self.momenta}
        for version, tree in stashed.items():
            state.setdefault("versions", {})[version] = tree
            trees[f"versions.{version}.model"] = tree["model"]
        layout = ucp.Layout(self.mesh, (ucp.Only("pp", (self.stage,)),))
        return state, {
            f"{path}.{name}": ucp.TensorLayout(layout, tuple(tensor.shape))
            for path, tensors in trees.items()
            for name, tensor in tensors.items()
        }

    def pipeline(self) -> ucp.Pipeline:
        """What is in flight behind an update: by the schedule, which every rank knows."""
        stages = []
        for stage in range(STAGES):
            ahead = STAGES - 1 - stage
            flying = range(self.updates, self.updates + ahead)
            stages.append(
                ucp.PipelineStage(
                    self.updates,
                    tuple(initial(stage)),
                    tuple((minibatch, max(0, minibatch - ahead)) for minibatch in flying),
                )
            )
        mine = tuple((minibatch, version) for minibatch, (version, _, _) in sorted(self.in_flight.items()))
        assert stages[self.stage].in_flight == mine
        assert {*stages[self.stage].stashed} == {*self.versions}
        return ucp.Pipeline("pp", tuple(stages))

    def save(self, path: Path, pipeline: ucp.Pipeline | None) -> None:
        state, layouts = self.state(self.versions)
        ucp.save(path, state, layouts=layouts, step=self.updates, pipeline=pipeline)

    def resume(self, path: Path) -> None:
        """Load weights and versions, and send forward again what was in flight."""
        with ucp.open(path) as checkpoint:
            pipeline = checkpoint.pipeline
        assert pipeline is not None
        stage = pipeline.stages[self.stage]
        versions = {
            version: {name: torch.empty_like(weight) for name, weight in self.weights.items()}
            for version in stage.stashed
        }
        state, layouts = self.state(versions)
        ucp.load(path, state, layouts=layouts)
        self.updates = self.forwards = stage.updates
        self.versions = {
            version: {name: weight.requires_grad_() for name, weight in weights.items()}
            for version, weights in versions.items()
        }
        for minibatch, version in stage.in_flight:
            self.forward(minibatch, version)


def main() -> None:
    rank, _ = join()
    folder, widths, *numbers = sys.argv[1:]
    total, saved, killed, resumed = map(int, numbers)
    own = Rank(rank, tuple(map(int, widths.split(","))))
    if resumed:
        own.resume(Path(folder) / f"step-{resumed}.ucp")
    while own.updates < total:
        while own.forwards < min(total, own.updates + STAGES - own.stage):
            own.forward(own.forwards, own.updates)
        if killed and own.updates == killed:
            os.kill(os.getpid(), signal.SIGKILL)
        own.backward(own.updates)
        if own.updates == saved:
            own.save(Path(folder) / f"step-{own.updates}.ucp", own.pipeline())
    for sending, _ in own.sent:
        sending.wait()
    assert not own.in_flight
    assert not own.versions
    name = f"drained-{resumed}-{widths}.ucp"
    own.save(Path(folder) / name, None)
    leave()


if __name__ == "__main__":
    main()
