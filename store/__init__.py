"""Files of a broker. CommitLog, ConsumeQueues, IndexFiles, and their recovery."""
