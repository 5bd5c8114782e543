"""``foldmq passwd`` and ``foldmq acl``: the files of users and permissions."""
