"""Makes the shared modules (``specification``, ``randomnode``) importable for the tests below."""
