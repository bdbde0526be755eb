"""How a network learns without labels: one file a loss, and what student and teacher are made of."""
