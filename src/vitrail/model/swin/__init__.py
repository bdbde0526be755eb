"""Swin: attention inside windows that shift from block to block, patches merged from stage to stage."""
