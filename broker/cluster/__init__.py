"""This broker group among the groups of its cluster, and the definitions that they share."""
