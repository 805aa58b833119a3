"""Reads stores, histories and tables for an audit."""
