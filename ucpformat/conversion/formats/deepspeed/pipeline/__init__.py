"""Join the stages of a DeepSpeed pipeline into one model, and divide a model into stages."""
