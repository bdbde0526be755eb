"""What in a dataset would spoil training: broken files, copies, odd classes, masks and boxes."""
