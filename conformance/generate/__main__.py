"""`python -m generate [FOLDER]`: all vectors, from nothing, and beside the folder those of lowering in one file.

Promoted vectors stay as they are.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from generate.bad_chunks import bad_chunk_cases
from generate.bad_commit import bad_commit_cases
from generate.bad_documents import bad_document_cases
from generate.bad_index import bad_index_cases
from generate.bad_json import bad_json_cases
from generate.bad_log_writes import bad_log_write_cases
from generate.bad_logs import bad_log_cases
from generate.bad_tables import bad_table_cases
from generate.bad_values import bad_value_cases
from generate.buffer_cases import buffer_cases
from generate.cases import Case
from generate.damaged_logs import damaged_log_cases
from generate.forward import forward_cases
from generate.good import good_cases
from generate.images import image_cases
from generate.increments import increment_cases, row_set_cases
from generate.layout_cases import layout_cases
from generate.levels import level_cases
from generate.log_cases import log_cases
from generate.log_writes import log_write_cases
from generate.lowering import write as write_lowering
from generate.pipelines import pipeline_cases
from generate.precedence import precedence_cases
from generate.residual_cases import residual_cases
from generate.value_steps import value_step_cases
from generate.write_refusals import write_refusal_cases
from generate.writes import write_cases
from ucp_conformance.vectors import write_vectors

__all__ = ["all_cases", "main"]


def all_cases() -> Iterator[Case]:
    """Yield every static case, made anew."""
    yield from good_cases()
    yield from layout_cases()
    yield from buffer_cases()
    yield from value_step_cases()
    yield from write_cases()
    yield from write_refusal_cases()
    yield from bad_document_cases()
    yield from bad_value_cases()
    yield from bad_json_cases()
    yield from bad_index_cases()
    yield from bad_commit_cases()
    yield from bad_table_cases()
    yield from bad_chunk_cases()
    yield from increment_cases()
    yield from row_set_cases()
    yield from pipeline_cases()
    yield from image_cases()
    yield from log_cases()
    yield from damaged_log_cases()
    yield from bad_log_cases()
    yield from residual_cases()
    yield from log_write_cases()
    yield from bad_log_write_cases()
    yield from forward_cases()
    yield from level_cases()
    yield from precedence_cases()


def main(folder: Path) -> int:
    """Write them, and beside their folder the vectors of lowering; returns their number."""
    cases = list(all_cases())
    vectors = [case.vector() for case in cases]  # nothing is removed before everything could be made
    for kind in ("good", "bad", "forward"):
        for family in (folder / kind).glob("*"):
            if family.name != "promoted":
                shutil.rmtree(family)
    write_vectors(vectors, folder)
    write_lowering(cases, folder.parent)
    return len(vectors)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent.parent / "vectors"
    print(f"{main(target)} cases in {target}")
