"""Pictures that a faster engine is checked on and int8 is calibrated on; int8 itself, judged by the task's own metric."""
