"""Spark itself: sessions, Java, and errors on their way through the JVM."""
