"""Model files: ours, one .safetensors that carries everything, and every foreign family of published ViT weights."""
