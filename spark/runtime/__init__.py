"""Spark itself: sessions, Java, the JVM, and errors on their way through it."""
