"""The log in JetStream: journal, writer and reader, message store, watermark and salvage."""
