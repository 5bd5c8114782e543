"""Limits on connections, rates, memory and topics; validated options."""
