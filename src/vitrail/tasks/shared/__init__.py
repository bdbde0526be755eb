"""What several tasks use: intervals, maps over pixels, pairs of folders, charts of the check, words for metrics."""
