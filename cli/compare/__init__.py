"""``foldmq verify``: a broker's state and its projections, compared with its log."""
