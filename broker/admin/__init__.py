"""The part of a broker that operators and their tools see and use."""
