"""What a pile of labelled images says about its own labels."""
