"""The deterministic simulator: real core, log and recovery over a simulated world.

`python -m tests.simulator --seeds N --start S` runs seeds; world.py says what one seed is.
"""
