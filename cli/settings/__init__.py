"""The settings: their models, sources and flags; the environment of child processes."""
