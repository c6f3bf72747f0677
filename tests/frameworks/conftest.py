"""Fixtures of the framework tests."""

from tests.frameworks.torch_dcp.cases import dcp_case

__all__ = ["dcp_case"]
