"""The scaffold: `tenon-sdk new NAME` writes a plugin that installs, conforms and serves, ready to be filled in."""
