"""Dataset to batches: cache, sampler, loader, targets, augmentation, transforms, splits."""
