"""Parsers of what models say: text into content, reasoning and tool calls, as it comes.

engine.py      `OutputParser`: one incremental state machine for every family
reader.py      text that comes in pieces; steps that wait for more
scan.py        the reader plus what a parser tells: content, reasoning, calls
values.py      JSON, Python's and Gemma's literals, copied as JSON
formats/       how calls are written: objects, headers, tags, Python, channels
tools/ reasoning/   families: declarations over the formats
"""
