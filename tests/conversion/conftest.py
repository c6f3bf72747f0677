"""Fixtures of the framework tests."""

from tests.conversion.formats.dcp.cases import dcp_case

__all__ = ["dcp_case"]
