"""From tokens to answers: one number a class, a map over the pixels, or boxes."""
