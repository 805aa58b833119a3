"""`mqbroker rescue`: comparison of a group's stores, and the choice of those to keep."""
