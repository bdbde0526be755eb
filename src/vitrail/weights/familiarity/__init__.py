"""How like the training pictures a new one is: what a model file keeps for it, and the score."""
