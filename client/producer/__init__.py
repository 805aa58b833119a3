"""Producers, with sends, retries, transactions, request and reply."""
