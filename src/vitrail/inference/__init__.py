"""Using a finished model: answers for images, and how good they are on images whose answers are known."""
