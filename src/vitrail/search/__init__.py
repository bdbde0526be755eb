"""What a model makes of images without its head: embeddings, and what they find."""
