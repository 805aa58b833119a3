"""The deterministic simulator: whole clusters of the real programs in a simulated world.

`python -m tests.simulator --seeds N --start S` runs seeds; cluster/world.py says what one seed is.
"""
