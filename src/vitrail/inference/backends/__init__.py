"""What runs a model: one file a backend. `backend.py` has the contract and the list."""
