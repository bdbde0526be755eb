"""Pictures that int8 is calibrated on and faster engines are checked on; int8, judged by the task's own metric."""
