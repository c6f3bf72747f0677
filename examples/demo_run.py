"""Keep every step: training is killed with SIGKILL, twice, and goes on from the very step before, under other layouts.

A small GPT trains on 4 processes (2 FSDP2 shards x 2 tensor-parallel ranks) and logs every step. All its processes are
killed at a random step. What one process recovers equals, byte for byte, a run that was never stopped. Training goes on
on 3 processes, is killed again, and ends on 1. Then one process measures what keeping every step costs: by full
checkpoints, by increments, and by logs.

Run ``make demo-run``. Everything it writes is under ``out/demo-run``; exit status 0 means that every check held. With
``--picture`` the picture is kept there too, with the figures that it shows beside it, as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from demo import (
    EXAMPLES,
    LAUNCH_SECONDS,
    TOLERANCE,
    Curve,
    DemoFailed,
    Narrator,
    differences,
    ucp,
    wait_for_all,
)
from train_gpt import Parallelism, Training, standard_library_text

import ucpformat

Costs = dict[str, tuple[int, float, float]]
"""What keeping a step costs, by kind: bytes, seconds that training stops, seconds of a step."""
JUDGED_STEPS = 10
MEASURED = {
    "full checkpoints": "0.65",
    "increments": "0.65",
    "log, all gradients": "tab:purple",
    "log, TopK(0.01)": "tab:purple",
}


class Job:
    """The processes of one start of `train_every_step.py`."""

    def __init__(self, out: Path, dp: int, tp: int, options: Sequence[str]) -> None:
        self._scratch = tempfile.TemporaryDirectory()
        rendezvous = Path(self._scratch.name, "rendezvous").as_uri()
        script = [sys.executable, str(EXAMPLES / "train_every_step.py"), "--dp", str(dp), "--tp", str(tp)]
        world = {"WORLD_SIZE": str(dp * tp), "OMP_NUM_THREADS": "1"}
        self.output = out / "output.log"
        with self.output.open("wb") as sink:
            self.processes = [
                subprocess.Popen(
                    [*script, "--rendezvous", rendezvous, *options],
                    cwd=out,
                    env={**os.environ, **world, "RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                )
                for rank in range(dp * tp)
            ]

    def wait(self) -> None:
        """Wait until all have ended well."""
        failed = wait_for_all(self.processes)
        self._scratch.cleanup()
        if failed is not None:
            tail = self.output.read_text(errors="replace").splitlines()[-20:]
            raise DemoFailed("\n".join([f"process {failed} did not finish; its log ends:", *tail]))

    def kill_at(self, losses: Path, step: int, delay: float) -> None:
        """Kill all processes, ``delay`` seconds after the loss of a step is there."""
        deadline = time.monotonic() + LAUNCH_SECONDS
        while step not in curve(losses):
            codes = [one.poll() for one in self.processes]
            if time.monotonic() > deadline or None not in codes or any(codes):
                self.wait()
                raise DemoFailed(f"the job has ended before step {step}")
            time.sleep(0.002)
        time.sleep(delay)
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
        self._scratch.cleanup()


def curve(losses: Path) -> Curve:
    """Return the losses by step; a line that is not whole is not there yet."""
    found = {}
    for line in losses.read_text().splitlines(keepends=True) if losses.exists() else ():
        if line.endswith("\n"):
            entry = json.loads(line)
            found[entry["step"]] = entry["loss"]
    return found


def durable_step(out: Path) -> int:
    """Return the step that a recovery ends at, as ``ucp log`` says."""
    command = [sys.executable, "-m", "ucpformat", "log", "run", "--format", "json"]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=True)
    step: int = json.loads(done.stdout)["recovery"]["step"]
    return step


def size(directory: Path) -> int:
    """Return the bytes of all files; one with several names counts once."""
    files = {}
    for path in directory.rglob("*") if directory.exists() else ():
        if path.is_file():
            found = path.stat()
            files[found.st_dev, found.st_ino] = found.st_size
    return sum(files.values())


def measure(out: Path, kind: str, steps: int) -> tuple[int, float, float]:
    """Train and keep each step in this process; medians: bytes, seconds that training stops, seconds of a step."""
    run = out / f"measured-{list(MEASURED).index(kind)}"
    training = Training(Parallelism(None, 1, 1))
    text = standard_library_text()
    optimizer = training.optimizer
    stalls: list[float] = []
    took: list[float] = []
    sizes: list[int] = []

    def timed(step: Callable[[], object]) -> None:
        begin = time.perf_counter()
        step()
        stalls.append(time.perf_counter() - begin)

    with_log = kind.startswith("log")
    # What the optimizer's own step takes is no cost of keeping it.
    alone: list[float] = []
    for _ in range(steps):
        training.advance(text, partial(timed, optimizer.step))
    alone, stalls[:] = [*stalls], []
    log = manager = None
    if with_log:
        compressor = ucpformat.TopK(0.01) if "TopK" in kind else None
        log = ucpformat.UpdateLog(
            run, training.model, optimizer, batch=1, full_every=None, compressor=compressor
        )
        log.flush()
    else:
        manager = ucpformat.CheckpointManager(run, incremental=kind == "increments", asynchronous=True)
    before = size(run)
    for _ in range(steps):
        begin = time.perf_counter()
        if log is not None:
            training.advance(text, partial(timed, log.step))
        elif manager is not None:
            training.advance(text)
            state = {"model": training.model, "optim": optimizer}
            timed(partial(manager.save, training.step, state))
        took.append(time.perf_counter() - begin)
        # Outside of the time: how much the step has left on the disk.
        (log.flush if log is not None else manager.wait)()  # type: ignore[union-attr]
        now = size(run)
        sizes.append(now - before)
        before = now
    (log or manager).close()  # type: ignore[union-attr]
    shutil.rmtree(run)
    # The first checkpoint of a run has nothing to share with, and first calls are slow.
    stall = statistics.median(stalls[2:]) - (statistics.median(alone[2:]) if with_log else 0.0)
    return round(statistics.median(sizes[2:])), max(stall, 0.0), statistics.median(took[2:])


def keep(path: Path, reference: Curve, parts: dict[str, Curve], costs: Costs) -> None:
    """Draw a picture, and write the figures in it beside it."""
    draw(path, reference, parts, costs)
    figures = {
        "losses": {
            name: {step: round(loss, 4) for step, loss in part.items()} for name, part in parts.items()
        },
        "never stopped": {step: round(loss, 4) for step, loss in reference.items()},
        "costs": costs,
    }
    path.with_suffix(".json").write_text(json.dumps(figures, indent=1) + "\n")


def kept(path: Path) -> tuple[Curve, dict[str, Curve], Costs]:
    """Return the figures in a picture that was kept, as `draw` takes them."""
    found = json.loads(path.with_suffix(".json").read_text())

    def by_step(losses: dict[str, float]) -> Curve:
        return {int(step): loss for step, loss in losses.items()}

    parts = {name: by_step(part) for name, part in found["losses"].items()}
    return (
        by_step(found["never stopped"]),
        parts,
        {name: tuple(cost) for name, cost in found["costs"].items()},
    )


def draw(path: Path, reference: Curve, parts: dict[str, Curve], costs: Costs) -> None:
    """Draw losses above; bytes and stalls for each step below."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "ucpformat"  # the same file for the same figures
    from matplotlib import pyplot as plt

    figure, axes = plt.subplot_mosaic(
        [["loss", "loss"], ["bytes", "stall"]], figsize=(9, 7), height_ratios=(3, 2), layout="constrained"
    )
    axes["loss"].plot(
        list(reference), list(reference.values()), color="0.75", lw=6, label="never stopped: FSDP2 2 x TP 2"
    )
    for number, (label, part) in enumerate(parts.items()):
        axes["loss"].plot(list(part), list(part.values()), color=f"C{number}", lw=1.5, label=label)
        if number:
            axes["loss"].axvline(min(part) - 0.5, color="0.4", lw=1, ls="--")
            axes["loss"].annotate(
                f"kill -9; goes on from step {min(part)}",
                (min(part) - 0.5, 0.7 - 0.09 * number),
                xycoords=("data", "axes fraction"),
                xytext=(6, 0),
                textcoords="offset points",
                color="0.3",
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
            )
    axes["loss"].set(
        xlabel="step", ylabel="loss, nats per byte", title="Killed twice, under other layouts; no step lost"
    )
    for one in axes.values():
        one.spines[["top", "right"]].set_visible(False)
    axes["loss"].legend(frameon=False)
    names = list(costs)[::-1]
    for name, position, scale, label in (
        ("bytes", 0, 2**20, "MiB written for each step"),
        ("stall", 1, 1e-3, "ms that training stops for each step"),
    ):
        values = [costs[one][position] / scale for one in names]
        bars = axes[name].barh(names, values, color=[MEASURED[one] for one in names])
        axes[name].bar_label(bars, fmt="%.2g", padding=3)
        axes[name].set_xlabel(label)
        axes[name].margins(x=0.2)
        axes[name].tick_params(axis="y", length=0)
    axes["stall"].set_yticklabels([])
    figure.savefig(path, dpi=120, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(figure)


def demonstrate(out: Path, steps: int, seed: int, picture: Path | None = None) -> None:
    """Run every step; raise `DemoFailed` at the first that fails."""
    source = random.Random(seed)
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    narrator = Narrator(steps=7)
    parts: dict[str, Curve] = {}

    def killed(title: str, dp: int, tp: int, at: int, name: str) -> int:
        with narrator.step(f"{title}; log every step; SIGKILL at a random step"):
            options = ["--into", "run", "--until", str(steps), "--losses", f"{name}.jsonl"]
            job = Job(out, dp, tp, options)
            job.kill_at(out / f"{name}.jsonl", at, source.random() * 0.1)
            parts[title] = curve(out / f"{name}.jsonl")
            done, durable = max(parts[title]) + 1, durable_step(out)
            narrator.detail(f"killed when {done} steps were done; {durable} are durable")
            # The loss of a step is told when the next one may be under way, and the newest batch being written.
            if not done - 2 <= durable <= done + 1:
                raise DemoFailed(f"{done} steps were done, and {durable} are durable")
        return durable

    first = killed("FSDP2 2 x TP 2, 4 processes", 2, 2, source.randrange(steps // 4, steps // 2), "first")
    with narrator.step(f"Train without a stop, and save step {first}"):
        options = ["--until", str(steps), "--losses", "reference.jsonl"]
        Job(out, 2, 2, [*options, "--save-at", str(first), "--save", "reference.ucp"]).wait()
        reference = curve(out / "reference.jsonl")
    with narrator.step("Recover in one process, and compare with that"):
        job = Job(out, 1, 1, ["--into", "run", "--until", "0", "--recovered", "recovered.ucp"])
        job.wait()
        narrator.detail(job.output.read_text())
        ucp(["diff", "reference.ucp", "recovered.ucp", "--bytes"], out, narrator)
    second = killed("FSDP2 3, 3 processes", 3, 1, source.randrange(first + 5, first + 12), "second")
    with narrator.step("Go on in 1 process, to the end"):
        Job(out, 1, 1, ["--into", "run", "--until", str(steps), "--losses", "third.jsonl"]).wait()
        parts["1 process"] = curve(out / "third.jsonl")
        ucp(["log", "run"], out, narrator)
    with narrator.step("Compare every loss with the run that never stopped"):
        begins = [0, first, second]
        for begin, (title, part) in zip(begins, parts.items(), strict=True):
            apart = differences(part, reference)
            # Another layout sums in another order, and training makes more of that with each step: so the second kill
            # comes soon behind the first, and the first steps of each part are judged.
            soon = max(apart[step] for step in list(apart)[:JUDGED_STEPS])
            narrator.detail(
                f"{title:28} from step {min(part)}: {soon:.1e} in the first {JUDGED_STEPS} steps,"
                f" {max(apart.values()):.1e} at most"
            )
            if list(part) != list(range(begin, max(part) + 1)) or not soon <= TOLERANCE:
                raise DemoFailed(
                    f"{title}: begins at step {min(part)}, not {begin}, or differs by {soon:.1e}"
                )
        if max(parts["1 process"]) != steps - 1:
            raise DemoFailed("the last job did not come to the end")
    with narrator.step("Measure what keeping each step costs, in one process"):
        torch.set_num_threads(1)
        costs = {kind: measure(out, kind, 15) for kind in MEASURED}
        for kind, (nbytes, stall, took) in costs.items():
            narrator.detail(
                f"{kind:20} {nbytes / 2**20:8.3f} MiB, training stops for {1e3 * stall:5.1f} ms of {1e3 * took:.0f}"
            )
        draw(out / "run.png", reference, parts, costs)
        if picture is not None:
            keep(picture, reference, parts, costs)


def main() -> int:
    parser = argparse.ArgumentParser(description="Keep every step of a job that is killed.")
    parser.add_argument(
        "--out", type=Path, default=EXAMPLES.parent / "out" / "demo-run", help="emptied first"
    )
    parser.add_argument("--steps", type=int, default=80, help="steps of the whole training, 60 or more")
    parser.add_argument("--seed", type=int, default=None, help="of the random steps")
    parser.add_argument("--picture", type=Path, default=None, help="where to keep the picture, .svg or .png")
    arguments = parser.parse_args()
    seed = random.randrange(1 << 16) if arguments.seed is None else arguments.seed
    begin = time.perf_counter()
    try:
        demonstrate(arguments.out.resolve(), arguments.steps, seed, arguments.picture)
    except DemoFailed as failure:
        print(f"\nFAILED with --seed {seed}: {failure}", flush=True)
        return 1
    print(f"\nPicture: {os.path.relpath(arguments.out / 'run.png')}")
    print(
        f"PASSED in {time.perf_counter() - begin:.0f} s (--seed {seed}): what was durable came back to the last bit."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
