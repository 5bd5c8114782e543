"""The log in JetStream: journal, writer, reader, messages, stored projections, watermark."""
