"""The state as folds over events: sessions, retained messages, and the node that has them."""
