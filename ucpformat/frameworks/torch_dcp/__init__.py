"""torch Distributed Checkpoint directories: read without torch and without running pickles, and written."""

from ucpformat.frameworks.converting.byte_source import Location
from ucpformat.frameworks.torch_dcp.directory import DcpDirectory, detect
from ucpformat.frameworks.torch_dcp.items import DcpObject, DcpTensor, Fragment, KeyPath
from ucpformat.frameworks.torch_dcp.object_tree import Limits

__all__ = ["DcpDirectory", "DcpObject", "DcpTensor", "Fragment", "KeyPath", "Limits", "Location", "detect"]
