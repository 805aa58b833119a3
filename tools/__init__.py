"""Generators of committed files, and hooks of builds."""
