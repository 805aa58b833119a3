"""What the measuring tools measure with."""
