"""The HTTP toolkit of brokers and name servers: operations declared once, served and described."""
