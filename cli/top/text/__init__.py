"""The figures of ``foldmq top`` as text: rates, columns, curves and the summary."""
