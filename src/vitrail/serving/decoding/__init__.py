"""Images are decoded in processes of their own, within limits of memory and time. None of them imports torch."""
