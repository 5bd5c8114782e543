"""Reports of an audit: text, JSON, and one HTML page with plots."""
