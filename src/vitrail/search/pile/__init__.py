"""A pile of images as its embeddings show it: copies, clusters, outliers, a map, and what to label next."""
