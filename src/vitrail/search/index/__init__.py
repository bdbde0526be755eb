"""An index of images on disk: Parquet files are the truth, `index.json` points to those of the newest generation."""
