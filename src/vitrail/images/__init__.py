"""Bytes to pixels: sniffing, decoding, orientation, channels, and one sentence for what cannot be read."""
