"""One rank of a job that types the blocks of pages, after `torch.distributed` is initialised as by torchrun.

Arguments: a directory, and the names of pages. What the first rank would write otherwise is put into the directory.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch._dynamo  # by optimizers, when they are made
import torch.distributed.checkpoint.state_dict
import torch.distributed.fsdp
import torch.distributed.tensor.parallel

from tests.documentation.markdown import page
from tests.documentation.rooms import ROOMS
from tests.documentation.running import Reader
from tests.processes import join, leave


def main(folder: str, *names: str) -> None:
    rank, _ = join()
    wrong = []
    for name in names:
        directory = Path(folder, name.replace("/", "-"))
        directory.mkdir(exist_ok=True)
        torch.distributed.barrier()
        os.chdir(directory)
        reader = Reader(directory)
        if name in ROOMS:
            ROOMS[name](directory, reader.namespace)
        for block in page(name).blocks:
            if block.is_run:
                text = reader.run(block)
                if text != block.text:
                    wrong.append((name, block.line, text))
    if rank == 0:
        Path(folder, "wrong.json").write_text(json.dumps(wrong), encoding="utf-8")
    leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
