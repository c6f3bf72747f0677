"""torch Distributed Checkpoint directories: read without torch and without running pickles, and written."""

from ucpformat.conversion.dcp_files.directory import DcpDirectory, detect
from ucpformat.conversion.dcp_files.items import DcpObject, DcpTensor, Fragment, KeyPath
from ucpformat.tensor_files.byte_source import Location
from ucpformat.tensor_files.object_tree import Limits

__all__ = ["DcpDirectory", "DcpObject", "DcpTensor", "Fragment", "KeyPath", "Limits", "Location", "detect"]
