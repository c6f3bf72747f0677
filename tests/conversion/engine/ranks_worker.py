"""One rank of a gloo job that converts together with the others; a rank may fail, or be killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed

from tests.conversion.engine.jobs import BATCH
from tests.processes import join, leave
from ucpformat.conversion.convert import convert_checkpoint
from ucpformat.conversion.engine import exporting, worker
from ucpformat.conversion.engine.options import EngineOptions
from ucpformat.conversion.engine.ranks import together
from ucpformat.errors import UcpError, error
from ucpformat.state_dict.torch_group import group_of

Call = Callable[..., Any]


def all_at_work(folder: Path, rank: int, world: int, call: Call) -> Call:
    """``call``, which waits at first until each rank was given one."""

    def wrapper(*arguments: Any) -> Any:
        (folder / f"began-{rank}").touch()
        while len(list(folder.glob("began-*"))) < world:
            time.sleep(0.01)
        return call(*arguments)

    return wrapper


def failing(failure: BaseException) -> Call:
    def wrapper(*arguments: Any) -> Any:
        raise failure

    return wrapper


def killing(*arguments: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def work(task: dict[str, Any], rank: int, world: int) -> dict[str, Any]:
    """Convert; what this rank heard of it."""
    out = Path(task["out"])
    module, name = (worker, "_copy") if task["format"] == "ucp" else (exporting, "_written")
    call = getattr(module, name)
    scratch = out.with_name(f"{out.name}-ranks")
    scratch.mkdir(exist_ok=True)
    mine: dict[str, Call] = {
        "killed": killing,
        "refused": failing(error("UCP-E-CHECKSUM", "damaged", at="a place")),
        "broken": failing(OSError(28, "full")),
    }
    chosen = mine.get(task.get("fate", "") if rank == task.get("victim") else "", call)
    setattr(module, name, all_at_work(scratch, rank, world, chosen))
    told: list[int] = []
    engine = EngineOptions(durability="none", batch_bytes=BATCH if task["format"] == "ucp" else 1)
    try:
        report = together(
            group_of(None),
            lambda executor: convert_checkpoint(
                task["source"],
                out,
                source_format="ucp",
                destination_format=task["format"],
                engine=replace(engine, resume=task.get("resume", False), executor=executor, workers=world),
                progress=told.append,
            ),
        )
        found: dict[str, Any] = {"bytes": report.nbytes, "told": sum(told)}
    except UcpError as failure:
        found = {"code": failure.code, "message": failure.message, "at": failure.at}
    except OSError as failure:
        found = {"code": type(failure).__name__, "message": str(failure)}
    finally:
        setattr(module, name, call)
    (scratch / f"heard-{rank}").write_text(json.dumps(found))
    return found


def main() -> None:
    tasks = json.loads(sys.argv[1])
    if any(task.get("fate") == "killed" for task in tasks):
        # A process of its own again: `launch` takes the death of one of its own for a failure of the test.
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
    rank, world = join()
    for task in tasks:
        work(task, rank, world)
        if task.get("fate") == "killed":
            os._exit(0)
        torch.distributed.barrier()
    leave()


if __name__ == "__main__":
    main()
