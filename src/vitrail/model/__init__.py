"""The network, nothing else: tensors in, tensors out."""
