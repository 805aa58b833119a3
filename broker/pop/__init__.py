"""Pop consumption, where the broker distributes single messages (docs/pop.md)."""
