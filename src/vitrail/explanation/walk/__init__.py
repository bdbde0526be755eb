"""One image through one model, step by step, with the real numbers."""
