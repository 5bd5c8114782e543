"""Programs that run beside a broker or in its place, and how they are started."""
