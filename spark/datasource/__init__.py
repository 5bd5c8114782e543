"""The data source ``foldmq``: options, planning, pushdown, batches and streams."""
