"""Hugging Face's model directories and single safetensors files, in and out; neither needs the package safetensors."""
