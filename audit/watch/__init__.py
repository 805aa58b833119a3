"""The continuous audit of running brokers, `mqaudit watch`."""
