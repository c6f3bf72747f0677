"""The main job, start to end: save under FSDP2 x TP, convert to ucp, resume on other numbers of processes.

A small GPT trains on 4 processes (2 FSDP2 shards x 2 tensor-parallel ranks) and saves half way with stock
``torch.distributed.checkpoint``. The checkpoint becomes a ucp checkpoint, is validated and shown, and then
training resumes from it on 3, 2 and 1 processes. Each resumed loss curve must lie on the uninterrupted one. A
control that drops AdamW's moments must not: the tolerance tells a good resume from a bad one.

Run ``make demo``. Everything it writes is under ``out/demo``; exit status 0 means that every check held.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent
TOLERANCE = 1e-4  # nats per byte: another order of float32 sums gives about 1e-6, lost moments over 1e-2
LAUNCH_SECONDS = 240.0

Curve = dict[int, float]


class DemoFailed(Exception):  # noqa: N818 - the outcome of the demo, not a fault in it
    """A step of the demo did not do what it should."""


@dataclass(frozen=True, slots=True)
class Run:
    """One training run: its name, its layout, the style of its curve and the options it adds."""

    name: str
    dp: int
    tp: int
    style: str
    options: tuple[str, ...] = ()

    @property
    def processes(self) -> int:
        """How many processes take part."""
        return self.dp * self.tp

    @property
    def layout(self) -> str:
        """The layout in words."""
        words = [f"FSDP2 {self.dp}"] * (self.dp > 1) + [f"TP {self.tp}"] * (self.tp > 1)
        count = f"{self.processes} processes" if self.processes > 1 else "1 process"
        return f"{count}, {' x '.join(words) or 'plain tensors'}"


REFERENCE = Run("reference", dp=2, tp=2, style="-")
RESUMED = (
    Run("resume-3", dp=3, tp=1, style="C0-"),
    Run("resume-2", dp=1, tp=2, style="C1--"),
    Run("resume-1", dp=1, tp=1, style="k:"),
)
CONTROL = Run("control", dp=1, tp=1, style="C3-", options=("--forget-moments",))


class Narrator:
    """Prints numbered steps and what each one took."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.number = 0

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        """Announce a step, and close it with its time."""
        self.number += 1
        print(f"\n[{self.number}/{self.steps}] {title}", flush=True)
        begin = time.perf_counter()
        yield
        self.detail(f"{time.perf_counter() - begin:.1f} s")

    def detail(self, text: str) -> None:
        """Print lines that belong to the current step."""
        for line in text.rstrip().splitlines():
            print(f"      {line}".rstrip(), flush=True)


def train(run: Run, out: Path, until: int, options: Sequence[str], narrator: Narrator) -> Curve:
    """Launch the processes of one training run in ``out``, wait for all, and return the losses by step."""
    layout = ["--dp", str(run.dp), "--tp", str(run.tp), "--until", str(until)]
    arguments = [*layout, *options, *run.options]
    launcher = "python" if run.processes == 1 else f"torchrun --nproc-per-node {run.processes}"
    narrator.detail(f"$ {launcher} train_gpt.py {shlex.join(arguments)}")
    losses = f"{run.name}.json"
    logs = [out / "logs" / f"{run.name}-{rank}.log" for rank in range(run.processes)]
    # What torchrun does on one machine, without its agent; meeting at a file needs no port and no network.
    with tempfile.TemporaryDirectory() as scratch:
        rendezvous = Path(scratch, "rendezvous").as_uri()
        script = [str(EXAMPLES / "train_gpt.py"), "--losses", losses, "--rendezvous", rendezvous]
        world = {"WORLD_SIZE": str(run.processes), "OMP_NUM_THREADS": "1"}
        processes = []
        for rank, log in enumerate(logs):
            with log.open("wb") as sink:
                process = subprocess.Popen(
                    [sys.executable, *script, *arguments],
                    cwd=out,
                    env={**os.environ, **world, "RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                )
            processes.append(process)
        failed = wait_for_all(processes)
    if failed is not None:
        tail = logs[failed].read_text(errors="replace").splitlines()[-20:]
        raise DemoFailed("\n".join([f"process {failed} of {run.name} did not finish; its log ends:", *tail]))
    return {entry["step"]: entry["loss"] for entry in json.loads((out / losses).read_text())}


def wait_for_all(processes: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all end well, or return the rank of the first that does not and stop the others."""
    deadline = time.monotonic() + LAUNCH_SECONDS
    try:
        while True:
            codes = [process.poll() for process in processes]
            for rank, code in enumerate(codes):
                if code not in (None, 0):
                    return rank
            if None not in codes:
                return None
            if time.monotonic() > deadline:
                return codes.index(None)
            time.sleep(0.05)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def ucp(arguments: Sequence[str], out: Path, narrator: Narrator) -> None:
    """Run the ``ucp`` command line in ``out`` and show what it prints."""
    narrator.detail(f"$ ucp {shlex.join(arguments)}")
    done = subprocess.run(
        [sys.executable, "-m", "ucpformat", *arguments],
        cwd=out,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    narrator.detail(done.stdout)
    if done.returncode != 0:
        raise DemoFailed(f"ucp {arguments[0]} ended with status {done.returncode}\n{done.stderr}")


def differences(curve: Curve, reference: Curve) -> Curve:
    """Return the absolute difference at every step of ``curve``."""
    return {step: abs(loss - reference[step]) for step, loss in curve.items()}


def draw(path: Path, reference: Curve, curves: dict[Run, Curve], saved_at: int) -> None:
    """Draw the curves above and their differences from the reference below."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, (above, below) = plt.subplots(
        2, 1, figsize=(9, 7), sharex=True, height_ratios=(2, 1), layout="constrained"
    )
    label = f"never stopped: {REFERENCE.layout}"
    above.plot(list(reference), list(reference.values()), REFERENCE.style, color="0.75", lw=6, label=label)
    for run, curve in curves.items():
        label = "control: AdamW's moments dropped" if run is CONTROL else f"resumed: {run.layout}"
        depth = 2 if run is CONTROL else 3
        above.plot(list(curve), list(curve.values()), run.style, lw=1.5, label=label, zorder=depth)
        floored = [max(value, 1e-8) for value in differences(curve, reference).values()]
        below.plot(list(curve), floored, run.style, lw=1.2)
    for axes in (above, below):
        axes.axvline(saved_at - 0.5, color="0.4", lw=1)
    above.set_ylabel("loss, nats per byte")
    above.set_title(f"One checkpoint, saved on {REFERENCE.layout}, resumed through ucp")
    above.legend(frameon=False)
    below.axhline(TOLERANCE, color="k", lw=1, ls="--")
    below.text(0, TOLERANCE, f"tolerance {TOLERANCE:g}", va="bottom")
    below.set_yscale("log")
    below.set_ylim(0.7e-8, 1)
    below.set_ylabel("difference (1e-8: none)")
    below.set_xlabel("step")
    figure.savefig(path, dpi=120)


def judge(reference: Curve, curves: dict[Run, Curve], resumed: Sequence[int], narrator: Narrator) -> None:
    """Print the largest difference of each run; raise unless all but the control are within tolerance."""
    broken = []
    for run, curve in curves.items():
        title = "control, moments dropped" if run is CONTROL else run.layout
        if list(curve) != list(resumed):
            raise DemoFailed(f"{title} did not train steps {resumed[0]} to {resumed[-1]}")
        largest = max(differences(curve, reference).values())
        within = largest <= TOLERANCE
        narrator.detail(
            f"{title:26} largest difference {largest:.1e} {'<=' if within else '>'} {TOLERANCE:g}"
        )
        if within is (run is CONTROL):
            broken.append(title)
    if broken:
        raise DemoFailed(f"on the wrong side of the tolerance: {'; '.join(broken)}")


def demonstrate(out: Path, steps: int) -> None:
    """Run every step; raise `DemoFailed` at the first that fails."""
    saved_at = steps // 2
    shutil.rmtree(out, ignore_errors=True)
    (out / "logs").mkdir(parents=True)
    narrator = Narrator(steps=10)
    source, resumed = "step.dcp", "resumed.dcp"
    with narrator.step(f"Train {steps} steps on {REFERENCE.layout}; save after step {saved_at}; do not stop"):
        saving = ["--save-at", str(saved_at), "--save", source]
        reference = train(REFERENCE, out, steps, saving, narrator)
        narrator.detail(f"loss {reference[0]:.3f} at the first step, {reference[steps - 1]:.3f} at the last")
    with narrator.step("Convert the torch.distributed checkpoint to ucp"):
        ucp(["convert", source, "step.ucp", "--from", "dcp"], out, narrator)
    with narrator.step("Validate it, every byte"):
        ucp(["validate", "step.ucp", "--level", "integrity"], out, narrator)
    with narrator.step("Look inside, at one layer"):
        ucp(["inspect", "step.ucp", "--atoms", "blocks.0.up.*"], out, narrator)
    with narrator.step("Convert it back for torch.distributed.checkpoint.load"):
        ucp(["convert", "step.ucp", resumed, "--to", "dcp"], out, narrator)
    curves: dict[Run, Curve] = {}
    for run in (*RESUMED, CONTROL):
        what = "Control: drop AdamW's moments" if run is CONTROL else f"Resume on {run.layout}"
        with narrator.step(f"{what}; train steps {saved_at} to {steps - 1}"):
            curves[run] = train(run, out, steps, ["--resume", resumed], narrator)
    with narrator.step("Compare every loss with the run that never stopped"):
        draw(out / "loss.png", reference, curves, saved_at)
        judge(reference, curves, range(saved_at, steps), narrator)


def main() -> int:
    parser = argparse.ArgumentParser(description="Save under FSDP2 x TP, convert to ucp, resume elsewhere.")
    parser.add_argument("--out", type=Path, default=EXAMPLES.parent / "out" / "demo", help="emptied first")
    parser.add_argument("--steps", type=int, default=120, help="steps of the uninterrupted run")
    arguments = parser.parse_args()
    begin = time.perf_counter()
    try:
        demonstrate(arguments.out.resolve(), arguments.steps)
    except DemoFailed as failure:
        print(f"\nFAILED: {failure}", flush=True)
        return 1
    print(f"\nPicture: {os.path.relpath(arguments.out / 'loss.png')}")
    print(
        f"PASSED in {time.perf_counter() - begin:.0f} s: every resumed loss is within {TOLERANCE:g} nats per"
    )
    print("byte of the run that never stopped; only the order of float32 sums differs.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
