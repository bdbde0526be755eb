"""Numbers as pictures: charts, colours, palettes, and pictures embedded in a page."""
