"""Map ZeRO's flat groups, and optimizer states without ZeRO, to and from the tensors of a model."""
