"""Optimizers and what belongs to them: schedule, EMA, LoRA, the first kernels, memory."""
