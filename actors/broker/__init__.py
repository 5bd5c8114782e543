"""The root actor: it starts, supervises and drains the others."""
