"""How tokens are chosen: parameters and their checks. Structured output will live here too."""
