"""The administration of a broker, for operators and their tools."""
