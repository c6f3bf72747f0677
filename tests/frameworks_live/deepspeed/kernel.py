"""One rank that lets DeepSpeed compile its kernel for CPUs, under `tests.processes.launch`."""

from __future__ import annotations

from tests.processes import join, leave


def main() -> None:
    import deepspeed

    join()
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False, verbose=False)
    leave()


if __name__ == "__main__":
    main()
