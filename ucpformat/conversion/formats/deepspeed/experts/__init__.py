"""Map DeepSpeed's mixtures of experts to and from atoms."""
