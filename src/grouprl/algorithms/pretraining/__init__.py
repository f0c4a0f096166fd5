"""What happens once, between the warm-up and the first step."""
