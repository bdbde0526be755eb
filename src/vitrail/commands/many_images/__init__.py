"""Commands for more images than one machine has time for."""
