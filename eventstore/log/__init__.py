"""The log in JetStream: journal, writer, reader, stores, salvage and backup."""
