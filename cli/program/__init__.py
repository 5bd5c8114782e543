"""The program: its commands, loaded when they are called, its help pages and shell completion."""
