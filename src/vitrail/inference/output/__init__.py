"""What commands print and write: answers, metrics, a model in words."""
