"""Storage for stock ``torch.distributed.checkpoint``: its ``save``, ``async_save`` and ``load`` on this format.

Needs torch. Nothing is pickled into a checkpoint, and nothing is unpickled out of one.
"""

from ucpformat.integrations.torch_dcp.planners import UcpLoadPlanner, UcpSavePlanner
from ucpformat.integrations.torch_dcp.reader import UcpStorageReader
from ucpformat.integrations.torch_dcp.writer import UcpStorageWriter

__all__ = ["UcpLoadPlanner", "UcpSavePlanner", "UcpStorageReader", "UcpStorageWriter"]
