"""Objects and their boxes."""
