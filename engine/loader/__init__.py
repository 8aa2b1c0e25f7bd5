"""From model files to weights: fetching, GGUF, safetensors."""
