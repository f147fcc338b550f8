"""The null platform: no arithmetic at all."""
