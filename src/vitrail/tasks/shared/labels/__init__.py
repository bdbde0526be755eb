"""What tasks with labels share: names and numbers of classes, weights against imbalance, calibration, confusion."""
