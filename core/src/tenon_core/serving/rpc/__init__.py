"""The gRPC face: `inference.proto`, the modules made from it, and the server over the same application as HTTP."""
