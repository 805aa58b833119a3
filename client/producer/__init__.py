"""Producers: sends, retries, transactions, request and reply."""
