"""Comparison of states: of a log with a broker or its projections, and of two points of one log.

``Comparison`` folds a log once and runs checks at their positions, ``find_divergences`` folds it
a second time to find where each difference began.
"""
