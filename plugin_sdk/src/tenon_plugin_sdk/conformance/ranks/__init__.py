"""Ranks of a platform in processes of their own, that do what the check in the parent orders."""
