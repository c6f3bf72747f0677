"""Files that hold tensors, read and written without torch: archives of ``torch.save``, pickles, safetensors headers."""
