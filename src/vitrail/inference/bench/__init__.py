"""`vitrail bench`: engines, precisions and batch sizes side by side on this machine, each engine in its own process."""
