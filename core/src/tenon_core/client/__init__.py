"""One interface to an engine, in this process or across ZMQ; tokenizing, chat templates, detokenizing, stop strings."""
