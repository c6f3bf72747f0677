"""Storage for stock ``torch.distributed.checkpoint``: its ``save``, ``async_save`` and ``load`` on this format.

Needs torch. Nothing is pickled into a checkpoint, and nothing is unpickled out of one.
"""

from ucpformat.frameworks.torch_dcp_plugin.planners import UcpLoadPlanner, UcpSavePlanner
from ucpformat.frameworks.torch_dcp_plugin.reader import UcpStorageReader
from ucpformat.frameworks.torch_dcp_plugin.writer import UcpStorageWriter

__all__ = ["UcpLoadPlanner", "UcpSavePlanner", "UcpStorageReader", "UcpStorageWriter"]
