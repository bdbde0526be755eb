"""The parts of pages: headline, curves, tables, cards."""
