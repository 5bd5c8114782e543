"""Findings and traffic statistics as text, JSON and HTML.

Reports of an audit: text, JSON, and one HTML page with plots.

Traffic statistics of a log, and their report.
"""
