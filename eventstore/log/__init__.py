"""The log in JetStream: the journal that writes it, readers, and what is kept beside it."""
