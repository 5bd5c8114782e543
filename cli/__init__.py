"""The ``foldmq`` command: settings, the composition root of the broker, and all subcommands."""
