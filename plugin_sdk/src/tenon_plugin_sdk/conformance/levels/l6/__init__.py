"""Level 6 by subject: equality with Transformers, engine features, claims."""
