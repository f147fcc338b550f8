"""What levels measure with: memory that must not grow, and time that is compared by ratio."""
