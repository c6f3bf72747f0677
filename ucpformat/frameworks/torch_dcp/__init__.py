"""torch Distributed Checkpoint directories: read without torch and without running pickles, and written."""

from ucpformat.frameworks.torch_dcp.directory import DcpDirectory, detect
from ucpformat.frameworks.torch_dcp.items import DcpObject, DcpTensor, Fragment, KeyPath, Location
from ucpformat.frameworks.torch_dcp.object_tree import Limits

__all__ = ["DcpDirectory", "DcpObject", "DcpTensor", "Fragment", "KeyPath", "Limits", "Location", "detect"]
