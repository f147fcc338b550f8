"""OpenAI's Responses API, over the same chat request and the same parsers as chat completions."""
