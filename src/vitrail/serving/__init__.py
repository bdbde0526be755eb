"""`vitrail serve`: a model behind HTTP, for programs and for the page in `web/`."""
