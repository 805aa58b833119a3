"""Checks of the promises that a history proves or disproves.

Pure.
"""
