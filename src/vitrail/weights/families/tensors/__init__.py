"""How the tensors of some networks are cut and named, where that takes more than a table of names."""
