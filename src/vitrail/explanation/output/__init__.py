"""What an explanation holds, and its text, JSON and PNG forms."""
