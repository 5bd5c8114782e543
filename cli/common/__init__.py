"""What commands share: terminal text, units, logging and memory."""
