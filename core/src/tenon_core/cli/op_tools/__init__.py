"""Tools for those who write kernels: record a real run's op cases, and find the op behind wrong tokens."""
