"""Looking inside: what a token attends to, why the answer came out, every step from pixels to logits."""
