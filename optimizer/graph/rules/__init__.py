"""The rule families of the canonicalize stage, one file each."""
