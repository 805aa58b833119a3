"""ConsumeQueues, their files, and the checks and repair of their entries."""
