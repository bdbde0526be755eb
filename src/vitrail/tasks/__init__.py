"""What an answer is: one file a task, with its targets, its loss, its metrics and the words it answers in."""

from vitrail.tasks.task import Mix, Task, task_for

__all__ = ["Mix", "Task", "task_for"]
