"""What a plug-in for another checkpoint format needs (docs/plugins.md)."""

from __future__ import annotations

from ucpformat.conversion.contract.content import AtomContent, Content, SlotContent
from ucpformat.conversion.contract.foreign import (
    ExportOptions,
    ExportPlan,
    ForeignFormat,
    ImportOptions,
    Lost,
    Path,
    Setting,
)
from ucpformat.conversion.contract.job import Job, SlotSource
from ucpformat.errors import UcpError, error
from ucpformat.geometry import Box
from ucpformat.model.state import Optimizer, ParameterGroup, StateDocument
from ucpformat.model.values import decode, encode
from ucpformat.tensor_files.out_files import OutFile, OutFiles
from ucpformat.writer import AtomSpec, SlotSpec

__all__ = [
    "AtomContent",
    "AtomSpec",
    "Box",
    "Content",
    "ExportOptions",
    "ExportPlan",
    "ForeignFormat",
    "ImportOptions",
    "Job",
    "Lost",
    "Optimizer",
    "OutFile",
    "OutFiles",
    "ParameterGroup",
    "Path",
    "Setting",
    "SlotContent",
    "SlotSource",
    "SlotSpec",
    "StateDocument",
    "UcpError",
    "decode",
    "encode",
    "error",
]
