"""From disk to batches: reading images, recognising layouts, checking, splitting."""
