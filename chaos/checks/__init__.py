"""What a history proves or disproves. Pure."""
