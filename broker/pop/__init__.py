"""Pop consumption: the broker shares out a topic's messages one by one (docs/pop.md)."""
