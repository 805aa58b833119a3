"""What is done to a cluster on purpose: the catalogue, whom it hits, when, and how it is undone."""
