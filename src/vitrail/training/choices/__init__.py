"""What training chooses when it is not set: the model, the recipe, how much of a picture is shown."""
