"""The HTTP server: OpenAI's routes over the client. Knows no engine internals, and imports no torch."""
