"""The HTML pages that a run or a check leaves behind: one self-contained file each."""
