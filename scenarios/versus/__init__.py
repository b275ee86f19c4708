"""The figures of Perdure beside those of other systems."""
