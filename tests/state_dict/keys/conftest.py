"""Fixtures: a checkpoint that torch wrote."""

from tests.conversion.formats.dcp.cases import dcp_case

__all__ = ["dcp_case"]
