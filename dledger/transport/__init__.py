"""The links between replicas: bytes, connections, peer authentication and the group id."""
