"""The rules of the house that a machine can hold, and the figures that a person reads."""
