"""Anthropic's Messages API, over the same chat request and the same parsers as chat completions."""
