"""The checks that decide what a history proves or disproves. Pure."""
