"""What an answer is: one folder a task, with its targets, its loss, its metrics and the words it answers in."""
